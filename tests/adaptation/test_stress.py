"""Streams of hostile images: no prediction, weight or statistic becomes NaN, and memory does not grow.

Every method predicts each kind of image twice here. The slow tests take five hundred steps, which fill every memory.
"""

import gc

import pytest
import torch

from ttdg.adaptation import METHODS, defaults

LENGTHY = ("cpr", "upl-sfda")  # methods whose streams take more than five seconds
QUICK_FIRST = [pytest.param(name, marks=[pytest.mark.slow] * (name in LENGTHY)) for name in METHODS]
SHORT, LONG, FULL = 20, 500, 450  # steps; every memory is full after FULL steps


def hostile(step: int) -> torch.Tensor:
    """Two small images: ordinary images of several sites, and images that no camera should send.

    The first twenty steps contain each kind twice; later, fifty steps with slow changes alternate with fifty fast ones.
    """
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(2, 3, 16, 16, generator=generator)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    disc = ((y**2 + x**2) < 0.4).float()
    kinds = (
        disc + 0.1 * noise,
        torch.zeros(2, 3, 16, 16),  # black
        torch.full((2, 3, 16, 16), 0.5),  # constant
        noise,
        torch.full((2, 3, 16, 16), 255.0),  # saturated
        -3 * disc + 0.3 * noise + 5,  # another site
        0.01 * (disc + noise),  # a third site
        torch.where(noise > 0, 1.0, 0.0),  # binary
        1e4 * noise,
        disc.expand(2, 3, 16, 16),
    )
    return kinds[step % len(kinds)] if step < SHORT or step % 100 >= 50 else kinds[(step // 5) % len(kinds)]


def bytes_in_tensors() -> int:
    """Bytes of all tensors that are alive."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def survive(adapter, steps: int) -> None:
    for step in range(steps):
        assert adapter(hostile(step)).isfinite().all(), f"step {step}"
        if step == FULL:
            before = bytes_in_tensors()
    assert all(value.isfinite().all() for value in adapter.network.state_dict().values())
    if steps > FULL:
        assert bytes_in_tensors() <= before


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_a_hostile_stream_is_survived(name, ready):
    survive(ready(name).quick(name), SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_long_hostile_stream_is_survived(name, ready):
    survive(ready(name).adapt(name), LONG)


@pytest.mark.parametrize("name", [p for p in QUICK_FIRST if "lr" in defaults(str(p.values[0]))])
def test_a_rate_a_thousand_times_too_large_is_survived(name, ready):
    adapter = ready(name).quick(name, lr=1000 * defaults(name)["lr"])
    for step in range(SHORT):
        assert adapter(hostile(step)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"),
    [("tent", {}), ("dltta", {"capacity": 2, "neighbours": 2}), ("vptta", {"capacity": 2, "neighbours": 2})],
)
def test_memory_stops_growing_once_a_methods_store_is_full(name, options, ready):
    adapter = ready(name).adapt(name, **options)
    for step in range(6):
        adapter(hostile(step))
    before = bytes_in_tensors()
    for step in range(6, 16):
        adapter(hostile(step))
    assert bytes_in_tensors() <= before
