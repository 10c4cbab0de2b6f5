"""A prior fitted to a trained network: results repeat, the loss falls, and the network does not change."""

import copy

import pytest
import torch

import ttdg
from ttdg.checkpoints import Model
from ttdg.data import check_provenance, find_sites, load_benchmark, load_sources, normalise
from ttdg.errors import UserError
from ttdg.networks import feature_maps
from ttdg.prior import MorphologyPrior, prior_loss
from ttdg.training import Recipe, prior_fit
from ttdg.training.batches import Pool
from ttdg.training.parts import PartFit

SMALL = {"node_dim": 16, "points": 10, "per_tissue": 8}


@pytest.fixture(scope="module")
def sources(discs):
    return load_sources(find_sites(discs, ["east", "south"]), load_benchmark(None, discs))


def fit(model: Model, sources, steps: int = 2, seed: int = 0) -> MorphologyPrior:
    return prior_fit.fit_prior(
        model.network, sources.train, model.card.benchmark, steps=steps, seed=seed, **SMALL
    )


@torch.no_grad()
def loss_on_held_out(prior: MorphologyPrior, model: Model, sources) -> float:
    images = torch.cat([site.images for site in sources.held_out.values()])
    labels = torch.cat([site.masks for site in sources.held_out.values()]).long()
    maps = feature_maps(model.network, normalise(images.float() / 255, "minmax"))[1]
    return float(prior_loss(prior, maps, labels))


def test_a_fit_repeats_and_leaves_the_network_as_it_is(disc_model, sources):
    before, state = copy.deepcopy(disc_model.network.state_dict()), torch.get_rng_state()
    a, b, c = (fit(disc_model, sources, seed=seed) for seed in (0, 0, 1))
    assert a.to_part().digest == b.to_part().digest != c.to_part().digest
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in disc_model.network.state_dict().items())
    assert all(parameter.requires_grad for parameter in disc_model.network.parameters())
    assert not any(parameter.requires_grad for parameter in a.parameters())


def test_priors_and_parts_see_standard_augmentation_whatever_the_default_recipe_is(
    disc_model, sources, monkeypatch
):
    expected = Pool(list(sources.train.values()), torch.device("cpu")).batch(
        Recipe(batch=8, augmentation="standard"), "minmax", 1, slice(0, 8)
    )
    drawn = []

    def remember(pool, *arguments):
        drawn.append(batch(pool, *arguments))
        return drawn[-1]

    batch = Pool.batch
    monkeypatch.setattr(Pool, "batch", remember)
    fit(disc_model, sources, steps=1)
    next(
        PartFit(
            disc_model.network, sources.train, disc_model.card.benchmark, torch.device("cpu"), 0, 1, print
        ).batches()
    )
    whole = [each for each in drawn if len(each[0]) == 8]
    assert len(whole) == 2
    for images, labels in whole:
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])


def test_a_longer_fit_has_a_lower_loss_on_held_out_images(disc_model, sources):
    short, long = (fit(disc_model, sources, steps) for steps in (1, 25))
    assert loss_on_held_out(long, disc_model, sources) < loss_on_held_out(short, disc_model, sources) - 0.2


def test_methods_run_with_it(disc_model, sources):
    model = Model(disc_model.network, disc_model.card, {"prior": fit(disc_model, sources).to_part()})
    assert ttdg.adapt(model, "universe-gradient")(torch.rand(2, 3, 40, 40)).isfinite().all()


def test_progress_is_reported_after_every_step(disc_model, sources):
    steps: list[int] = []
    prior_fit.fit_prior(
        disc_model.network, sources.train, disc_model.card.benchmark, steps=3, progress=steps.append, **SMALL
    )
    assert steps == [1, 2, 3]


def test_images_other_than_those_of_training_raise(sources):
    check_provenance(sources.provenance, sources.provenance)
    check_provenance(sources.provenance, {"east": {"cases": 10}})  # an old card: nothing to compare
    other = {"east": {**sources.provenance["east"], "fingerprint": "0"}}
    with pytest.raises(UserError, match="site 'east' holds 10 cases that are not those"):
        check_provenance(sources.provenance, other)


def test_another_number_of_held_out_cases_than_in_training_raises(sources):
    whole = {"east": {**sources.provenance["east"], "held_out": 0}}
    with pytest.raises(UserError, match=r"but 0 when the model was trained.*train the model again"):
        check_provenance(sources.provenance, whole)
