import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation.source_free.denoised_labels import (
    Opinion,
    Prototypes,
    logits_and_cells,
    mild_views,
    opinion,
)
from ttdg.networks import NetworkSpec, Segmenter

STILL = {"statistics": "source"}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(labels=3, encoder="light")).eval()


class Dropping(Segmenter):
    """A network with a dropout layer in front of its head."""

    def __init__(self, p: float) -> None:
        super().__init__(NetworkSpec(labels=3, encoder="light"))
        self.dropout = nn.Dropout(p)

    def head(self, decoded):
        return super().head(self.dropout(decoded))


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def an_opinion(seed=0, batch=6, structures=2, channels=5):
    g = torch.Generator().manual_seed(seed)
    mean, spread = torch.rand(2, batch, structures, 32, 32, generator=g)
    return Opinion(mean, 0.1 * spread, torch.randn(batch, channels, 8, 8, generator=g))


def rows_of(seen, rows):
    return Opinion(*(part[rows] for part in seen))


def prototypes_of(*parts):
    made = Prototypes(2, parts[0].features.shape[1], torch.device("cpu"))
    for part in parts:
        made.add(part, 0.5, 0.05)
    return made


def test_prototypes_do_not_depend_on_the_order_or_the_size_of_batches():
    seen = an_opinion()
    whole = prototypes_of(seen)
    parts = prototypes_of(*(rows_of(seen, rows) for rows in ([5, 2], [0], [4, 1, 3])))
    assert torch.allclose(whole.sums, parts.sums, rtol=1e-4, atol=1e-4)
    assert torch.equal(whole.support, parts.support)


def test_prototypes_are_weighted_means_of_the_features_of_sure_cells():
    seen = an_opinion(batch=2)
    y = F.interpolate((seen.mean > 0.5).float(), size=(8, 8))
    p, u = (F.interpolate(x, size=(8, 8), mode="bilinear") for x in (seen.mean, seen.spread))
    centre, weight = torch.zeros(5), 0.0
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(8), torch.arange(8)).tolist():
        if u[b, 1, i, j] < 0.05 and y[b, 1, i, j] == 0:
            centre += (1 - p[b, 1, i, j]) * seen.features[b, :, i, j]
            weight += 1 - p[b, 1, i, j]
    found = prototypes_of(seen).sums[1, 1]
    assert torch.allclose(found[:-1] / found[-1], centre / weight, atol=1e-5)


def test_the_nearest_prototype_is_found_by_distance_and_a_constant_does_not_matter():
    seen = an_opinion()
    made = prototypes_of(seen)
    centres = made.sums[..., :-1] / made.sums[..., -1:]
    far = (seen.features[:, None, None] - centres[None, :, :, :, None, None]).square().sum(3)
    expected = F.interpolate((far[:, :, 0] < far[:, :, 1]).float(), size=(32, 32)) > 0.5
    labels = seen.mean > 0.5
    assert torch.equal(made.nearest(seen, labels), expected)
    moved = seen._replace(features=seen.features + 3)
    assert torch.equal(prototypes_of(moved).nearest(moved, labels), expected)


def test_features_that_are_the_probabilities_give_back_the_labels():
    mean = torch.full((2, 2, 32, 32), 0.1)
    mean[:, :, 8:24, 8:24] = 0.9
    small = F.interpolate(mean[:, :1], size=(16, 16))
    seen = Opinion(mean, torch.zeros_like(mean), torch.cat([small, 1 - small], 1))
    assert torch.equal(prototypes_of(seen).nearest(seen, mean > 0.5), mean > 0.5)


def test_a_structure_with_few_sure_cells_keeps_its_labels():
    seen = an_opinion()
    empty = Prototypes(2, 5, torch.device("cpu"))
    assert torch.equal(empty.nearest(seen, seen.mean > 0.5), seen.mean > 0.5)
    unsure = seen._replace(spread=torch.ones_like(seen.spread))
    made = prototypes_of(unsure)
    assert not made.known.any()
    assert torch.equal(made.nearest(seen, seen.mean > 0.5), seen.mean > 0.5)


def test_an_opinion_is_the_mean_and_the_unbiased_spread_at_temperature_two():
    made = [(3 * torch.randn(2, 2, 8, 8), torch.randn(2, 4, 4, 4)) for _ in range(5)]
    seen = opinion(iter(made))
    logits, cells = (torch.stack(part) for part in zip(*made, strict=True))
    assert torch.allclose(seen.mean, logits.sigmoid().mean(0), atol=1e-6)
    assert torch.allclose(seen.spread, (logits / 2).sigmoid().std(0), atol=1e-6)
    assert torch.allclose(seen.features, cells.mean(0), atol=1e-6)


def test_equal_predictions_have_no_spread_at_all():
    one = torch.randn(2, 2, 8, 8), torch.randn(2, 4, 4, 4)
    assert (opinion(iter([one] * 7)).spread == 0).all()


def test_views_are_mild_and_start_with_the_image_itself():
    views = mild_views(10)
    assert len(views) == len(set(views)) == 10
    assert views[0][0] == type(views[0][0])()
    assert views[0][1] == 1
    assert all(abs(math.log(gamma)) <= 0.2 + 1e-6 for _, gamma in views)


@pytest.mark.parametrize("size", [(32, 32), (40, 70)])
def test_logits_and_cells_come_from_one_pass_and_fit_the_image(network, size):
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        logits, cells = logits_and_cells(network, images, 4)
        assert torch.allclose(logits, network(images), atol=1e-5)
    assert cells.shape[2:] == tuple(math.ceil(side / 4) for side in size)


def test_dropout_spreads_the_predictions_and_draws_from_the_adapters_own_numbers():
    torch.manual_seed(0)
    network = Dropping(0.5).eval()
    one, two = (adapt(network, "dpl", samples=4, **STILL) for _ in range(2))
    first = one._opinion(some_images())
    torch.manual_seed(5)
    second = two._opinion(some_images())
    assert first.spread.max() > 0
    assert torch.equal(first.spread, second.spread)
    assert not any(module.training for module in one.source.modules())


def test_dropout_of_probability_zero_is_no_dropout():
    network = Dropping(0.0).eval()
    assert adapt(network, "dpl", **STILL)._dropouts == []


def test_without_a_rate_the_answer_is_the_sources(network):
    adapter = adapt(network, "dpl", lr=0.0, **STILL)
    adapter.learn([some_images(6)])
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))


def test_a_threshold_of_zero_on_the_spread_keeps_nothing_and_changes_nothing(network):
    adapter = adapt(network, "dpl", uncertainty=0.0, **STILL)
    adapter.learn([some_images(6)])
    assert not adapter.memory.columns["keep"][:6].any()
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))


def test_without_limits_every_pixel_is_kept(network):
    adapter = adapt(network, "dpl", uncertainty=math.inf, epochs=1, **STILL)
    adapter.prototypes.nearest = lambda seen, labels: labels
    adapter.learn([some_images(6)])
    assert adapter.memory.columns["keep"][:6].all()


def test_kept_pixels_are_stable_and_agree_with_their_prototype(network):
    adapter = adapt(network, "dpl", epochs=1, threshold=0.3, **STILL)
    adapter.learn([some_images(6, size=64)])
    for rows in adapter._chunks():
        seen = adapter._opinion(adapter._stored(rows))
        labels = seen.mean > 0.3
        keep = (seen.spread < 0.05) & (labels == adapter.prototypes.nearest(seen, labels))
        assert torch.equal(adapter.memory.note("keep", rows), keep)
        assert torch.equal(adapter.memory.note("labels", rows), labels)


def test_labels_of_a_folder_do_not_depend_on_the_order_of_its_images(network):
    images = some_images(10, size=64)
    kept = []
    for order in (torch.arange(10), torch.arange(9, -1, -1)):
        adapter = adapt(network, "dpl", epochs=1, threshold=0.3, **STILL)
        adapter.learn([images[order]])
        kept.append(adapter.memory.columns["keep"][:10][order.argsort()])
    assert (kept[0] == kept[1]).float().mean() > 0.999  # but for rounding in the prototypes


def test_labels_are_the_sources_even_after_the_network_has_learned(network):
    adapter = adapt(network, "dpl", **STILL)
    before = adapter._opinion(some_images())
    adapter.learn([some_images(8, seed=1)])
    after = adapter._opinion(some_images())
    assert torch.equal(before.mean, after.mean)


def test_the_step_equals_a_plain_implementation(network):
    adapter = adapt(network, "dpl", lr=1e-3, **STILL)
    plain = copy.deepcopy(network)
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-3, betas=(0.9, 0.99))
    g = torch.Generator().manual_seed(0)
    labels, keep = torch.randint(2, (2, 4, 2, 32, 32), generator=g).float()
    loss = adapter._step(some_images(), labels, keep)
    p = plain(some_images()).softmax(1)
    p = torch.stack([p[:, 1] + p[:, 2], p[:, 2]], 1)
    expected = (keep * F.binary_cross_entropy(p, labels, reduction="none")).sum() / keep.sum()
    expected.backward()
    optimiser.step()
    assert torch.allclose(loss, expected.detach(), rtol=1e-4)
    moves, errors = (
        torch.cat([(a - b).flatten() for a, b in zip(plain.parameters(), o.parameters(), strict=True)])
        for o in (network, adapter.network)
    )
    assert errors.norm() < 0.02 * moves.norm()
