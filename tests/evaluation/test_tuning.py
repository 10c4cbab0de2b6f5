import math
import shutil
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from ttdg.adaptation import adapt, defaults
from ttdg.bench.jobs import Tuning
from ttdg.bench.run_file import read_run
from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.cli.tune import repetition_note
from ttdg.data import Arrays, find_sites, load_benchmark, load_sources, split
from ttdg.errors import UserError
from ttdg.evaluation import tuning
from ttdg.evaluation.scoring import measure_dice, score_streams
from ttdg.evaluation.search_space import configurations, grid_of
from ttdg.evaluation.tuned_options import indistinguishable
from ttdg.evaluation.tuning import Search, Trial, hospital_stream

SMALL = Search(hospitals=2, images=4, batch=2)
RECORDS = Path(__file__).parents[2] / "docs" / "records"


@pytest.fixture
def held_out(discs):
    return list(load_sources(find_sites(discs), load_benchmark(None, discs)).held_out.values())


def test_a_gradient_method_is_tried_at_three_rates_and_two_numbers_of_steps():
    assert grid_of("tent") == {"lr": (1e-5, 1e-4, 1e-3), "steps": (1, 3)}
    assert configurations("tent")[0] == {"lr": 1e-4, "steps": 1}, "the defaults come first"
    assert configurations("source") == [{}]


def test_a_hospital_is_the_same_every_time_and_has_one_shift(held_out, disc_model):
    benchmark, device = disc_model.card.benchmark, torch.device("cpu")
    search = Search(images=2, batch=1)

    def images(number):
        return torch.cat(
            [b.images for b in hospital_stream(number, held_out, benchmark, search, device).batches()]
        )

    assert torch.equal(images(0), images(0))
    assert not torch.equal(images(0), images(3))  # the same site under another shift


def test_hospitals_stand_evenly_from_near_to_the_farthest(held_out, disc_model, monkeypatch):
    strengths, plain = [], tuning.simulate
    monkeypatch.setattr(
        tuning,
        "simulate",
        lambda images, masks, generator, strength, **kw: (
            strengths.append(strength) or plain(images, masks, generator, strength, **kw)
        ),
    )
    search = Search(hospitals=4, images=1, batch=1, farthest=0.8)
    for number in range(4):
        list(
            hospital_stream(
                number, held_out, disc_model.card.benchmark, search, torch.device("cpu")
            ).batches()
        )
    assert strengths == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_hospitals_hold_held_out_source_images_alone(held_out, disc_model):
    known = {case for arrays in held_out for case in arrays.cases}
    batches = hospital_stream(1, held_out, disc_model.card.benchmark, SMALL, torch.device("cpu")).batches()
    assert {case for batch in batches for case in batch.cases} <= known


def stream_of(number, held_out, model, search):
    return hospital_stream(number, held_out, model.card.benchmark, search, torch.device("cpu"))


@pytest.mark.parametrize("images", [1, 2, 5, 23])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_repeated_stream_has_the_length_asked_for_and_shows_every_image_alike(
    held_out, disc_model, images, batch
):
    search = Search(hospitals=3, images=images, batch=batch, repeat=True)
    assert tuning.images_found(held_out, search) == (images,) * 3
    for number in range(3):
        stream = stream_of(number, held_out, disc_model, search)
        shown = [case for part in stream.batches() for case in part.cases]
        assert [case for _, case in stream.images] == shown
        assert len(shown) == images
        counts = Counter(shown)
        assert len(counts) == tuning.distinct_images(held_out, search)[number]
        assert max(counts.values()) - min(counts.values()) <= 1
        once = stream_of(number, held_out, disc_model, replace(search, repeat=False))
        first = [case for _, case in once.images]
        assert shown[: len(first)] == first, "the first pass is the stream without repetition"


def test_an_image_shown_again_has_the_same_shift_and_another_place(held_out, disc_model):
    size = len(held_out[0].cases)
    search = Search(hospitals=1, images=8 * size, batch=1, repeat=True)
    seen, orders = {}, set()
    batches = list(stream_of(0, held_out, disc_model, search).batches())
    for start in range(0, len(batches), size):
        orders.add(tuple(batch.cases for batch in batches[start : start + size]))
    for batch in batches:
        before = seen.setdefault(batch.cases, batch)
        assert torch.equal(before.images, batch.images)
        assert torch.equal(before.masks, batch.masks)
    assert len(orders) > 1


def test_a_stream_is_as_long_as_the_test_s_and_the_cost_stays_bounded():
    assert tuning.stream_length(96, [10, 20]) == 96, "the experiment's limit"
    assert tuning.stream_length(None, [10, 20]) == 20, "the largest source site"
    assert tuning.stream_length(None, [1000]) == tuning.LONGEST
    for images in range(1, 600):
        count = tuning.hospital_count(images)
        assert 3 <= count <= 8
        assert count == 3 or count * images <= tuning.MOST_IMAGES
        assert tuning.hospital_count(images + 1) <= count


@pytest.mark.parametrize("name", ["fundus-methods", "polyp-methods"])
def test_a_recorded_search_is_read_and_stated_as_it_was(name):
    jobs = [job for job in read_run(RECORDS / name).jobs.values() if isinstance(job, Tuning)]
    assert jobs
    for job in jobs:
        search = Search(**job.search)
        assert (search.stream, search.repeat, search.extensions) == ("online", False, 0)
        assert search.to_dict() == job.search
        later = replace(search, stream="folder", repeat=True, extensions=1)
        assert later.to_dict() == {**job.search, "stream": "folder", "repeat": True, "extensions": 1}


def peaked(at, seen=None):
    """`run_trial` with scores that fall with the distance of the rate from `at`, in decades."""

    def attempt(model, method, options, *_):
        if seen is not None:
            seen.append(dict(options))
        return Trial(
            dict(options), 1 - 0.05 * abs(math.log10(options["lr"] / at)) - 1e-3 * options["steps"], 0.0
        )

    return attempt


@pytest.mark.parametrize(
    ("at", "added", "chosen"),
    [
        (1e-4, [], 1e-4),
        (1e-2, [1e-2, 1e-1], 1e-2),
        (1e-1, [1e-2, 1e-1, 1.0], 1e-1),
        (1e-6, [1e-6, 1e-7], 1e-6),
    ],
)
def test_a_search_goes_on_until_the_best_is_inside(held_out, disc_model, monkeypatch, at, added, chosen):
    monkeypatch.setattr(tuning, "run_trial", peaked(at))
    found = tuning.tune(disc_model, "tent", held_out, replace(SMALL, extensions=3))
    assert [trial.options["lr"] for trial in found.trials if trial.added] == pytest.approx(added)
    assert found.chosen["lr"] == pytest.approx(chosen)
    assert found.edge is None
    record = tuning.search_record(found)
    assert [bool(trial.get("added")) for trial in record["trials"]] == [trial.added for trial in found.trials]
    assert "edge" not in record


def test_extensions_end_at_their_number_and_the_edge_is_recorded(held_out, disc_model, monkeypatch):
    for allowed in (0, 1, 3):
        seen = []
        monkeypatch.setattr(tuning, "run_trial", peaked(1e5, seen))
        found = tuning.tune(disc_model, "tent", held_out, replace(SMALL, extensions=allowed))
        assert len(seen) == len(found.trials) == 6 + allowed
        assert seen[:6] == configurations("tent")
        assert found.chosen["lr"] == pytest.approx(1e-3 * 10**allowed)
        assert found.edge == ("lr" if allowed else None)
        assert tuning.search_record(found).get("edge") == found.edge


def test_a_search_in_which_every_trial_failed_is_not_extended(held_out, disc_model, monkeypatch):
    monkeypatch.setattr(tuning, "run_trial", lambda model, method, options, *_: Trial(options, math.nan, 0.0))
    found = tuning.tune(disc_model, "tent", held_out, replace(SMALL, extensions=3))
    assert len(found.trials) == 6


def test_the_spread_is_best_minus_worst_with_the_error_of_paired_images():
    rng = np.random.default_rng(0)
    images = rng.uniform(0.2, 0.9, 40)  # images differ far more than configurations
    shifts = rng.normal(0.0, 0.01, (3, 40)) + np.array([[0.0], [0.02], [-0.03]])
    trials = [
        Trial({"n": n}, float(np.mean(images + each)), 0.0, tuple(images + each))
        for n, each in enumerate(shifts)
    ]
    trials.append(Trial({"n": 3}, math.nan, 0.0, (math.nan,) * 40))
    spread, error = tuning.spread_of(trials)
    difference = shifts[1] - shifts[2]
    assert spread == pytest.approx(difference.mean())
    assert error == pytest.approx(difference.std(ddof=1) / 40**0.5)
    assert error < np.std(images, ddof=1) / 40**0.5 / 10, "it is paired"
    assert tuning.spread_of(trials[:1]) == (0.0, 0.0)


def test_a_choice_among_equal_scores_is_marked_and_one_among_different_scores_is_not():
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 50))

    def record(gap):
        scores = (noise[0], noise[1] - noise[1].mean() + noise[0].mean() + gap)
        trials = tuple(Trial({}, float(each.mean()), 0.0, tuple(each)) for each in scores)
        return tuning.search_record(tuning.Tuned("tent", {}, trials[1].dice, trials, (50,), (50,)))

    error = record(0.01)["error"] / 100  # the same for every gap but zero
    assert indistinguishable(record(0.0))
    assert indistinguishable(record(0.9 * error))
    assert not indistinguishable(record(1.1 * error))
    assert not indistinguishable({"trials": record(0.0)["trials"]}), "an old record has no error"


@pytest.mark.parametrize("stream", ["online", "folder", "continual"])
def test_a_trial_runs_on_the_stream_of_the_search(held_out, disc_model, stream):
    search = Search(hospitals=2, images=5, batch=2, stream=stream, repeat=True)
    benchmark, options = disc_model.card.benchmark, {"lr": 1e-2, "steps": 1}
    trial = tuning.run_trial(disc_model, "tent", options, held_out, search)
    torch.manual_seed(search.seed)
    targets = [stream_of(number, held_out, disc_model, search) for number in range(2)]
    adapter = adapt(disc_model, "tent", **options)
    rows, _ = score_streams(adapter, targets, stream, benchmark.regions, measure=measure_dice)
    dice = {}
    for target, _, case, _, metric, value in rows:
        if metric == "dice":
            dice.setdefault((target, case), []).append(value)
    assert trial.dice == pytest.approx(
        statistics.fmean(value for values in dice.values() for value in values)
    )
    assert trial.scores == pytest.approx([statistics.fmean(values) for values in dice.values()])
    assert len(trial.scores) == sum(tuning.distinct_images(held_out, search))


def test_the_best_trial_is_chosen_and_a_tie_goes_to_the_defaults(held_out, disc_model, monkeypatch):
    scores = {0.05: 0.3, 0.1: 0.5, 0.4: 0.9}

    def attempt(model, method, options, *_):
        return tuning.Trial(options, scores.get(options["alpha"], 0.5) if method == "alpha-bn" else 0.5, 0.0)

    monkeypatch.setattr(tuning, "run_trial", attempt)
    assert tuning.tune(disc_model, "alpha-bn", held_out, SMALL).chosen == {"alpha": 0.4}
    scores.clear()
    assert tuning.tune(disc_model, "alpha-bn", held_out, SMALL).chosen == {
        "alpha": defaults("alpha-bn")["alpha"]
    }


def test_a_trial_is_reset_at_the_start_of_each_hospital(held_out, disc_model):
    together = tuning.run_trial(disc_model, "tent", {"lr": 1e-2}, held_out, SMALL)
    benchmark, dice = disc_model.card.benchmark, []
    for number in range(2):
        target = hospital_stream(number, held_out, benchmark, SMALL, torch.device("cpu"))
        adapter = adapt(disc_model, "tent", lr=1e-2)  # a fresh adapter for each hospital
        rows, _ = score_streams(adapter, [target], "online", benchmark.regions, measure=measure_dice)
        dice += [value for *_, metric, value in rows if metric == "dice"]
    assert together.dice == pytest.approx(sum(dice) / len(dice))


def run(*arguments):
    return CliRunner().invoke(
        app, ["tune", *(str(a) for a in arguments)], env={"COLUMNS": "200", "TERM": "dumb"}
    )


def test_choices_and_trials_are_written_as_yaml_and_a_stopped_search_goes_on(
    tmp_path, discs, disc_model, monkeypatch
):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--hospitals", 2, "--images", 2,
              "--batch", 2, "--device", "cpu")  # fmt: skip
    result = run(*common, "--method", "norm", "--method", "sar")
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert written["sources"] == ["east"]
    assert set(written["methods"]) == {"norm", "sar"}
    sar = written["methods"]["sar"]
    assert 7 <= len(sar["trials"]) <= 10, "six points of the grid, the published one, and up to three more"
    assert sar["dice"] == max(trial["dice"] for trial in sar["trials"])
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it was tuned already"))
    assert run(*common, "--method", "norm").exit_code == 0
    assert yaml.safe_load((tmp_path / "t.yaml").read_text()) == written


def test_options_are_not_tuned_on_images_that_the_model_may_have_seen(tmp_path, discs, disc_model):
    card = replace(disc_model.card, sources={"east": {"cases": 10, "fingerprint": "that of other files"}})
    save(tmp_path / "model", disc_model.network, card)
    with pytest.raises(UserError, match="not those the model was trained on"):
        raise run(
            "-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--method", "norm"
        ).exception
    assert not (tmp_path / "t.yaml").exists()


def test_another_search_in_the_file_is_not_written_over(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--images", 2, "--device", "cpu",
              "--method", "norm")  # fmt: skip
    assert run(*common, "--hospitals", 2).exit_code == 0
    before = (tmp_path / "t.yaml").read_text()
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it must be refused before the search"))
    with pytest.raises(UserError, match=r"holds another search \(hospitals 2\); choose another file"):
        raise run(*common, "--hospitals", 3).exception
    assert (tmp_path / "t.yaml").read_text() == before
    for text in ("notes to keep", "[1]", "a: {method: tent}", "a: [", ""):
        (tmp_path / "t.yaml").write_text(text)
        with pytest.raises(UserError, match="holds no search"):
            raise run(*common, "--hospitals", 2).exception
        assert (tmp_path / "t.yaml").read_text() == text


def test_the_images_each_hospital_really_had_are_counted(held_out, disc_model):
    sizes = [len(arrays.cases) for arrays in held_out]
    for images in (1, *sizes, 99):
        search = Search(hospitals=4, images=images, batch=2)
        streams = (
            hospital_stream(n, held_out, disc_model.card.benchmark, search, torch.device("cpu"))
            for n in range(4)
        )
        counts = tuple(sum(len(batch.cases) for batch in stream.batches()) for stream in streams)
        assert tuning.images_found(held_out, search) == counts
    assert max(counts) < 99


def test_images_shown_again_are_counted_and_said_once(tmp_path, discs, disc_model):
    card = replace(disc_model.card, sources={"east": {"cases": 10}, "south": {"cases": 10}})
    save(tmp_path / "model", disc_model.network, card)
    east, south = (len(split(find_sites(discs)[name].cases)[1]) for name in ("east", "south"))
    common = ("-m", tmp_path / "model", "-d", discs, "--device", "cpu", "--method", "norm,source", "--method", "norm",
              "--site", "east", "--site", "south", "--site", "east", "--batch", 1)  # fmt: skip
    result = run(*common, "-o", tmp_path / "t.yaml", "--hospitals", 3, "--images", 9)
    assert result.exit_code == 0, result.exception
    assert result.stderr.count("\n") == 1
    assert f"different images: {east} of east, {south} of south, {east} of east" in result.stderr
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert (written["images"], written["sources"]) == (9, ["east", "south"])
    for each in written["methods"].values():
        assert (each["found"], each["distinct"]) == ({1: 9, 2: 9, 3: 9}, {1: east, 2: south, 3: east})
    enough = run(*common, "-o", tmp_path / "u.yaml", "--hospitals", 3, "--images", min(east, south))
    assert enough.stderr == ""


def test_the_command_tunes_on_streams_as_long_as_the_largest_source_site(tmp_path, discs, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "--device", "cpu", "--method", "norm")
    result = run(*common, "-o", tmp_path / "t.yaml", "--stream", "folder", "--batch", 5)
    assert result.exit_code == 0, result.exception
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert (written["images"], written["hospitals"]) == (10, 8)
    assert (written["stream"], written["batch"], written["extensions"]) == ("folder", 5, 3)
    with pytest.raises(UserError, match="--stream is online"):
        raise run(*common, "-o", tmp_path / "u.yaml", "--stream", "offlin").exception


def test_enough_different_images_need_no_note():
    search, sites = Search(hospitals=2, images=12, batch=4, repeat=True), ["east", "south"]
    assert "4 of east, 12 of south" in repetition_note((4, 12), sites, search)
    assert repetition_note((12, 12), sites, search) is None


def test_a_search_written_before_images_were_counted_goes_on(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--hospitals", 1, "--images", 1,
              "--device", "cpu", "--method", "norm")  # fmt: skip
    assert run(*common).exit_code == 0
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    del written["methods"]["norm"]["found"]
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(written))
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it was tuned already"))
    assert run(*common).exit_code == 0


def test_a_missing_part_is_said_before_any_search(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it must be refused before the search"))
    with pytest.raises(UserError, match="'deynet' needs the part 'deynet'"):
        raise run("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--device", "cpu",
                  "--method", "norm", "--method", "deynet").exception  # fmt: skip


def nothing_of(arrays):
    return Arrays(arrays.images[[]], arrays.masks[[]], ())


def test_a_site_that_holds_out_nothing_is_no_hospital(held_out, disc_model):
    one, *rest = held_out
    some = tuning.tune(disc_model, "alpha-bn", [nothing_of(one), *rest], SMALL)
    assert [t.dice for t in some.trials] == [
        t.dice for t in tuning.tune(disc_model, "alpha-bn", rest, SMALL).trials
    ]
    with pytest.raises(UserError, match="no source site has held-out images"):
        tuning.tune(disc_model, "alpha-bn", [nothing_of(one)], SMALL)


def test_the_command_leaves_sites_out_that_hold_out_nothing_and_says_so(tmp_path, discs, disc_model):
    shutil.copytree(discs, tmp_path / "data")
    for part in ("images", "masks"):
        for case in find_sites(discs)["south"].cases[1:]:  # one patient cannot be split
            (tmp_path / "data" / "south" / part / f"{case.name}.png").unlink()
    card = replace(disc_model.card, sources={"east": {"cases": 10}, "south": {"cases": 10}})
    save(tmp_path / "model", disc_model.network, card)
    common = ("-m", tmp_path / "model", "-d", tmp_path / "data", "-o", tmp_path / "t.yaml", "--hospitals", 2,
              "--images", 2, "--device", "cpu", "--method", "norm")  # fmt: skip
    with pytest.raises(UserError, match="no source site has held-out images"):
        raise run(*common, "--site", "south").exception
    result = run(*common)
    assert result.exit_code == 0, result.exception
    assert "without south: no held-out images" in result.output
    assert yaml.safe_load((tmp_path / "t.yaml").read_text())["sources"] == ["east"]


def test_a_target_is_never_tuned_on(tmp_path, discs, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    result = run(
        "-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--site", "west", "--device", "cpu"
    )
    assert isinstance(result.exception, UserError)
    assert "no source of this model" in str(result.exception)
