"""The paper as printed: finite, and quiet where the printed loss is."""

import copy

import torch
from torch import Tensor

from ttdg.matching import matching_loss
from ttdg.prior import maps_of


def some_images(b: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(b, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def nodes_of(adapter, images: Tensor):
    logits, maps = maps_of(adapter.network, images)
    return adapter.prior.nodes(adapter.prior.project(maps), logits.argmax(1))


def test_the_loss_is_the_printed_one_and_finite(ready):
    adapter = ready("universe-literal", labels=3).adapt("universe-literal")
    nodes = nodes_of(adapter, some_images())
    M = adapter.prior.affinity(nodes.features, nodes.mask)
    expected = matching_loss(M, adapter._matched(nodes, M), nodes.mask, form="paper", tau=adapter.tau)
    assert adapter.objective(nodes).isfinite()
    assert torch.equal(adapter.objective(nodes), expected)


def test_one_step_lowers_the_loss_for_the_matching_it_was_taken_on(ready):
    adapter = ready("universe-literal").adapt("universe-literal", lr=1e-3)
    with torch.no_grad():
        nodes = nodes_of(adapter, some_images())
        U = adapter._matched(nodes, adapter.prior.affinity(nodes.features, nodes.mask))

    @torch.no_grad()
    def loss() -> float:
        nodes = nodes_of(adapter, some_images())
        M = adapter.prior.affinity(nodes.features, nodes.mask)
        return float(matching_loss(M, U, nodes.mask, form="paper", tau=adapter.tau))

    before = loss()
    adapter(some_images())
    assert loss() < before


def test_one_image_alone_is_answered_by_the_source(ready):
    source = ready("universe-literal")
    adapter, images = source.adapt("universe-literal", lr=1.0), some_images(1)
    with torch.no_grad():
        plain = copy.deepcopy(source.network).eval()(images)
    assert torch.allclose(adapter(images), plain, atol=1e-5)
    assert all(
        torch.equal(v, source.network.state_dict()[k]) for k, v in adapter.network.state_dict().items()
    )


def test_weights_that_diverged_begin_anew(ready):
    source = ready("universe-literal")
    adapter, images = source.adapt("universe-literal"), some_images()
    with torch.no_grad():
        next(adapter.network.parameters()).fill_(float("inf"))
    assert adapter(images).isfinite().all()
    assert all(
        torch.equal(v, source.network.state_dict()[k]) for k, v in adapter.network.state_dict().items()
    )
