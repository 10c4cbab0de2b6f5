import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from ttdg.checkpoints import load
from ttdg.data import find_sites, load_benchmark, load_sources, normalise, pack_site
from ttdg.errors import TtdgWarning, UserError
from ttdg.networks import level_channels
from ttdg.networks.strides import enlarged
from ttdg.prior import literal_prior_for, prior_from_part
from ttdg.training import Recipe, loop, make_fabric, train
from ttdg.training.batches import Pool
from ttdg.training.learner import Learner
from ttdg.training.resume import State

PLAIN = {"augmentation": "standard", "average": 0.0}
RECIPE = Recipe(encoder="light", steps=6, batch=4, optimiser="adamw", lr=3e-3, **PLAIN)
EXTRAS = {"fourier": 0.5, "photometric": 0.5, "mixstyle": 0.5, "average": 0.9}
LITERAL = replace(RECIPE, universe=1.0, universe_loss="literal", points=10)
ALL = replace(RECIPE, augmentation="strong", **EXTRAS)


class Killed(Exception):
    pass


def run(discs, out, recipe=RECIPE, die_at=None, **options):
    benchmark, sites = load_benchmark(None, discs), find_sites(discs, ["east", "south"])
    sources = load_sources(sites, benchmark)

    def on_progress(event):
        if event.step == die_at:
            raise Killed

    return train(
        sources.train, sources.held_out, benchmark, recipe, out,
        fabric=make_fabric(recipe, "cpu"), provenance=sources.provenance, on_progress=on_progress, **options,
    )  # fmt: skip


def weights(folder):
    return load(folder).network.state_dict()


def assert_same(a, b, tolerance=0.0):
    for name, value in weights(a).items():
        assert torch.allclose(value.double(), weights(b)[name].double(), atol=tolerance, rtol=0), name


def test_training_twice_gives_the_same_weights_and_another_seed_others(discs, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(discs, tmp_path / name, Recipe(encoder="light", steps=3, batch=4, seed=seed))
    assert_same(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("class_matrix", ["printed", "masked", "none"])
def test_the_literal_training_moves_the_universe_and_stays_finite(discs, tmp_path, class_matrix):
    run(discs, tmp_path / "m", replace(LITERAL, class_matrix=class_matrix))
    prior = prior_from_part(load(tmp_path / "m").parts["prior"])
    d = len(prior.universe)
    moved = (prior.universe - 1 / d).detach()
    assert prior.spec.class_matrix == class_matrix
    assert d == 2 * LITERAL.points
    assert moved.isfinite().all()
    assert moved.std() > 2e-3  # 1e-3 at the start
    assert all(value.isfinite().all() for value in weights(tmp_path / "m").values())


def test_the_recipes_optimiser_trains_the_literal_universe_without_decay():
    network = loop.build_network(LITERAL, 2)
    for optimiser, kind in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)):
        recipe = replace(LITERAL, optimiser=optimiser, lr=0.05)
        prior = literal_prior_for(level_channels(network), 2, **recipe.prior_settings())
        update = loop.set_up(make_fabric(recipe, "cpu"), Learner(network, prior, "ce", 1.0), recipe)
        of_network, of_prior = (each.optimizer for each in update.optimisers.optimisers)
        assert isinstance(of_prior, kind)
        assert {group["lr"] for group in of_prior.param_groups} == {0.05}
        assert [group["weight_decay"] for group in (*of_network.param_groups, *of_prior.param_groups)] == [
            1e-4,
            0.0,
        ]


@pytest.mark.parametrize("recipe", [RECIPE, ALL, LITERAL], ids=["plain", "all", "literal"])
def test_a_killed_run_resumes_to_the_same_weights(discs, tmp_path, recipe):
    run(discs, tmp_path / "whole", recipe, every=2)
    with pytest.raises(Killed):
        run(discs, tmp_path / "killed", recipe, every=2, die_at=4)
    assert not (tmp_path / "killed").exists()
    assert (tmp_path / "killed.partial" / "state.pt").exists()
    run(discs, tmp_path / "killed", recipe, every=2)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not (tmp_path / "killed.partial").exists()


def test_a_slow_run_is_also_saved_by_time_and_resumes_to_the_same_weights(discs, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "REPORT_EVERY", 1)  # an event, and so a point of interruption, at every step
    run(discs, tmp_path / "whole")
    with pytest.raises(Killed):
        run(discs, tmp_path / "quick", die_at=3)
    assert not (tmp_path / "quick.partial").exists()  # 500 steps or a minute have not passed
    with pytest.raises(Killed):
        run(discs, tmp_path / "killed", die_at=3, seconds=0.0)
    assert torch.load(tmp_path / "killed.partial" / "state.pt", weights_only=True)["step"] == 3
    run(discs, tmp_path / "killed", seconds=0.0)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_save_is_due_after_the_given_seconds(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    state, network = State(tmp_path / "m", {}, 60.0), torch.nn.Linear(1, 1)
    clock[0] += 59
    assert not state.due()
    clock[0] += 1
    assert state.due()
    state.save(network, torch.optim.SGD(network.parameters()), 1)
    assert not state.due()


def test_a_half_finished_run_of_another_recipe_is_not_continued(discs, tmp_path):
    with pytest.raises(Killed):
        run(discs, tmp_path / "m", every=2, die_at=4)
    with pytest.raises(UserError, match="half-finished training with another recipe"):
        run(discs, tmp_path / "m", Recipe(encoder="light", steps=7, batch=4))


def test_deterministic_training_uses_no_nondeterministic_operation(discs, tmp_path):
    try:
        run(discs, tmp_path / "m", Recipe(encoder="light", steps=1, batch=2, deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_weights_that_fit_the_other_strides_better_are_named_before_training(discs):
    benchmark, sites = load_benchmark(None, discs), find_sites(discs, ["east", "south"])
    sources = load_sources(sites, benchmark).train.values()
    images = torch.cat([site.images for site in sources]).float() / 255
    torch.manual_seed(0)
    network = loop.build_network(Recipe(strides="v1"), 2)
    for layer in network.image_encoder.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        network.image_encoder(enlarged(normalise(images, benchmark.normalisation)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.warn_of_strides(network, sources, benchmark)
    wrong = loop.build_network(Recipe(strides="v1.5"), 2)
    wrong.image_encoder.load_state_dict(network.image_encoder.state_dict())
    with pytest.warns(TtdgWarning, match=r"fit strides v1 better than v1\.5.*train with --strides v1 "):
        loop.warn_of_strides(wrong, sources, benchmark)


def test_training_learns(discs, tmp_path):
    card = run(discs, tmp_path / "m", Recipe(encoder="light", steps=60, batch=8, optimiser="adamw", lr=5e-3))
    assert card.validation["disc"] > 0.7
    assert card.sources["east"]["trained"] + card.sources["east"]["held_out"] == 10
    assert load(tmp_path / "m").card.validation == card.validation


@pytest.fixture
def pool(discs):
    sites = load_sources(find_sites(discs), load_benchmark(None, discs)).train.values()
    return Pool(list(sites), torch.device("cpu"))


@pytest.mark.parametrize("recipe", [RECIPE, ALL], ids=["plain", "all"])
def test_batches_depend_on_seed_and_step_alone_and_split_over_processes(pool, recipe):
    whole = pool.batch(recipe, "minmax", 3, slice(0, 4))
    halves = [pool.batch(recipe, "minmax", 3, part) for part in (slice(0, 2), slice(2, 4))]
    assert len(whole) == (4 if recipe.mixstyle else 2)
    for index, value in enumerate(whole):
        torch.testing.assert_close(value, torch.cat([half[index] for half in halves]), atol=1e-5, rtol=0)
    assert not torch.equal(whole[0], pool.batch(recipe, "minmax", 4, slice(0, 4))[0])


@pytest.mark.parametrize("name", ["fourier", "photometric"])
def test_an_augmentation_changes_the_images_but_not_the_labels(pool, name):
    plain = pool.batch(RECIPE, "imagenet", 3, slice(0, 4))
    changed = pool.batch(replace(RECIPE, **{name: 1.0}), "imagenet", 3, slice(0, 4))
    assert torch.equal(plain[1], changed[1])
    assert all((a - b).abs().max() > 0.01 for a, b in zip(plain[0], changed[0], strict=True))


@pytest.mark.parametrize("name", EXTRAS)
def test_each_optional_setting_alone_changes_the_weights(discs, tmp_path, name):
    recipe = Recipe(encoder="light", steps=2, batch=4, universe=0.0, average=0.0)
    run(discs, tmp_path / "a", recipe)
    run(discs, tmp_path / "b", replace(recipe, **{name: 0.9}))
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "a", tmp_path / "b", tolerance=1e-6)
    assert load(tmp_path / "b").card.recipe[name] == 0.9


def test_the_averaged_weights_are_validated_and_saved(discs, tmp_path, monkeypatch):
    validated = []
    monkeypatch.setattr(loop, "validate", lambda network, *rest: validated.append(network) or {})
    run(discs, tmp_path / "last", RECIPE)
    run(discs, tmp_path / "mean", replace(RECIPE, average=0.9))
    last, mean = validated
    saved = weights(tmp_path / "mean")
    assert all(torch.equal(value, saved[name]) for name, value in mean.state_dict().items())
    assert not torch.equal(*(n.unet.segmentation_head[0].weight for n in (last, mean)))
    assert saved.keys() == weights(tmp_path / "last").keys()
    assert "prior" in load(tmp_path / "mean").parts


def test_a_packed_site_gives_the_same_arrays(discs, tmp_path):
    shutil.copytree(discs, tmp_path / "discs")
    benchmark, sites = load_benchmark(None, discs), find_sites(tmp_path / "discs")
    files = load_sources(sites, benchmark)
    pack_site(sites["east"], benchmark)
    packed = load_sources(sites, benchmark)
    for part in ("train", "held_out"):
        for site in sites:
            a, b = getattr(files, part)[site], getattr(packed, part)[site]
            assert a.cases == b.cases
            assert torch.equal(a.images, b.images)
            assert torch.equal(a.masks, b.masks)
    assert files.provenance == packed.provenance


def command(discs, out, *more):
    return [
        "-m", "ttdg", "train", "-d", str(discs), "--leave-out", "west", "-o", str(out), "--accelerator", "cpu",
        "--encoder", "light", "--steps", "3", "--batch", "4", "--precision", "32", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("extras", [pytest.param(PLAIN, id="plain"), pytest.param(EXTRAS, id="all")])
@pytest.mark.slow
def test_two_processes_train_the_model_one_process_does(discs, tmp_path, extras):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    more = [f"--{name}={value}" for name, value in extras.items()]
    subprocess.run(
        [sys.executable, *command(discs, tmp_path / "one", *more)], check=True, env=env, timeout=300
    )
    two = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *command(discs, tmp_path / "two", *more),
    ]
    subprocess.run([sys.executable, *two], check=True, env=env, timeout=300)
    assert_same(tmp_path / "one", tmp_path / "two", tolerance=2e-4)
