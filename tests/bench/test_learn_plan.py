"""Learning from chosen images of a site, and options that were added after the first records."""

import shutil
from dataclasses import replace

import pytest
import torch

from ttdg.adaptation import METHODS
from ttdg.bench import jobs as job_kinds
from ttdg.bench import scoring_job
from ttdg.bench.jobs import Scoring, Tuning, from_dict, key_of, to_dict
from ttdg.bench.scoring_job import open_scoring
from ttdg.data.image_cache import TWIN, different_scenes, learning_images, ordered_images
from ttdg.errors import UserError

FOLDER = {"name": "folder", "protocol": "leave-one-out", "streams": ["folder"]}


def scorings(run):
    return {
        entry.label: run.jobs[entry.job] for entry in run.entries if isinstance(run.jobs[entry.job], Scoring)
    }


# --- which images are learned


@pytest.fixture
def patients(tmp_path, discs):
    """The discs, with two patients at the site west: cases 00 to 06, and 07 to 09."""
    root = tmp_path / "discs"
    shutil.copytree(discs, root)
    rows = [f"{case:02},{'a' if case < 7 else 'b'}" for case in range(10)]
    (root / "west" / "cases.csv").write_text("\n".join(["case,patient", *rows]))
    return root


def stream_of(root, sites=("west",), shuffle=0):
    return ordered_images(sites, root, held_out=False, shuffle=shuffle, limit=None)


def test_one_image_of_each_patient_is_the_first_in_the_stream(patients, disc_model):
    images = stream_of(patients)
    learned = learning_images(images, "one-per-patient", disc_model.card.benchmark, {})
    assert len(learned) == 2
    for _, case in learned:
        of_patient = [other for _, other in images if other.patient == case.patient]
        assert case == of_patient[0]
    positions = [images.index(image) for image in learned]
    assert positions == sorted(positions)


def test_patients_of_two_sites_are_different_people(patients, disc_model):
    shutil.copy(patients / "west" / "cases.csv", patients / "east" / "cases.csv")
    images = stream_of(patients, ("west", "east"))
    assert len(learning_images(images, "one-per-patient", disc_model.card.benchmark, {})) == 4


def test_all_images_are_learned_without_a_rule(patients, disc_model):
    images = stream_of(patients)
    assert learning_images(images, "all", disc_model.card.benchmark, {}) == images


def test_a_near_twin_of_a_learned_image_is_not_learned(patients, disc_model):
    west = patients / "west"
    for part in ("images", "masks"):
        shutil.copy(west / part / "03.png", west / part / "05.png")
    images = stream_of(patients, shuffle=None)
    benchmark = disc_model.card.benchmark
    names = [case.name for _, case in learning_images(images, "one-per-scene", benchmark, {"west": "twins"})]
    assert "03" in names
    assert "05" not in names


def test_chosen_scenes_are_no_twins_and_every_other_image_is_a_twin_of_one():
    generator = torch.Generator().manual_seed(0)
    scenes = torch.rand(4, 3, 40, 48, generator=generator)
    noise = 0.1 * torch.rand(12, 3, 40, 48, generator=generator)
    images = ((scenes.repeat(3, 1, 1, 1) + noise) / 1.1 * 255).to(torch.uint8)
    assert different_scenes(images) == [0, 1, 2, 3]
    bright = (0.5 * images.float() + 100).to(torch.uint8)  # light and contrast do not matter
    assert different_scenes(torch.cat([images, bright])) == [0, 1, 2, 3]
    grid = torch.nn.functional.adaptive_avg_pool2d(images.double(), 32)
    vectors = (grid - grid.mean((2, 3), keepdim=True)).flatten(1)
    correlation = torch.corrcoef(vectors)
    assert correlation[:4, :4].fill_diagonal_(0).max() < TWIN
    assert (correlation[4:, :4].amax(1) > TWIN).all()


# --- the job


@pytest.mark.parametrize("learn", ["all", "one-per-patient"])
def test_a_scoring_learns_the_chosen_images_and_answers_all(
    planned, place, patients, disc_model, monkeypatch, learn
):
    monkeypatch.setattr(scoring_job, "open_model", lambda *_: disc_model)
    job = scorings(planned(FOLDER | {"methods": ["tent"], "targets": ["west"], "learn": learn}))["tent"]
    opened = open_scoring(job, replace(place, data=patients))
    (target,) = opened.targets
    learned = [name for batch in target.learning() for name in batch.cases]
    answered = [name for batch in target.batches() for name in batch.cases]
    assert answered == [case for _, case in target.images]
    assert len(answered) == 10
    assert learned == (answered if learn == "all" else [c.name for _, c in _firsts(opened.orders["west"])])


def _firsts(order):
    patients = [case.patient for _, case in order]
    return [image for number, image in enumerate(order) if patients.index(patients[number]) == number]


def test_what_is_learned_changes_the_key_of_methods_with_memory_only(planned):
    rows = FOLDER | {"methods": ["source", "tent"]}
    usual, chosen = (scorings(planned(rows | {"learn": rule})) for rule in ("all", "one-per-scene"))
    assert key_of(usual["source"]) == key_of(chosen["source"])
    assert key_of(usual["tent"]) != key_of(chosen["tent"])
    assert from_dict(to_dict(chosen["tent"])) == chosen["tent"]
    assert scorings(planned(rows)) == usual


def test_only_the_folder_stream_can_learn_chosen_images(planned):
    with pytest.raises(UserError, match="add `streams: \\[folder\\]`"):
        planned(FOLDER | {"streams": ["folder", "online"], "learn": "one-per-patient"})


# --- options that were added later


def an_old_job(**fields):
    defaults = {"carried": "0.5"}
    return Scoring("t", "universe", {}, defaults, (), {}, "folder", 4, 0, **fields)


def test_an_option_at_its_earlier_implicit_value_leaves_the_key_as_it_was():
    old = an_old_job()
    assert key_of(old) == "a4ee0c572efcf59e"
    now = replace(old, defaults={**old.defaults, "carrier": "'universe'"})
    assert key_of(now) == key_of(old)
    assert key_of(replace(old, options={"carrier": "universe"})) == key_of(old)


def test_another_value_or_another_default_of_a_later_option_is_another_key():
    old = an_old_job()
    changed = replace(old, options={"carrier": "pairwise"})
    other_default = replace(old, defaults={**old.defaults, "carrier": "'pairwise'"})
    assert len({key_of(job) for job in (old, changed, other_default)}) == 3


def test_a_later_option_of_one_method_is_an_ordinary_option_of_another():
    old = replace(an_old_job(), method="tent")
    assert key_of(replace(old, defaults={"carrier": "'universe'"})) != key_of(replace(old, defaults={}))


def test_a_search_keeps_its_key_as_well():
    old = Tuning("t", "universe", {}, ({"rate": 1.0},), {"carried": "0.5"})
    now = replace(old, defaults={**old.defaults, "carrier": "'universe'"})
    assert key_of(now) == key_of(old)


def test_every_later_option_is_an_option_of_its_method():
    for method, options in job_kinds.LATER_OPTIONS.items():
        assert options.keys() <= METHODS[method].options.keys()
    for method, options in job_kinds.REMOVED_OPTIONS.items():
        assert not options.keys() & METHODS[method].options.keys()
