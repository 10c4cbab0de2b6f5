"""Five hundred online steps through everything a stream may hold: nothing turns to NaN, and nothing grows.

Methods of many passes, or on a real U-Net, go thirty steps here and the whole way with the slow tests.
"""

import gc

import pytest
import torch

from ttdg.adaptation import METHODS, defaults

STEPS, SHORT, FULL = 500, 30, 450  # every memory is full by then
QUICK = [
    name for name, method in METHODS.items() if method.forwards + method.backwards <= 2 and not method.parts
]


def hostile(step: int) -> torch.Tensor:
    """Two small images: ordinary ones of several sites, and in between what should never have been sent."""
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(2, 3, 16, 16, generator=generator)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    disc = ((y**2 + x**2) < 0.4).float()
    kinds = (
        disc + 0.1 * noise,
        torch.zeros(2, 3, 16, 16),  # all background
        torch.full((2, 3, 16, 16), 0.5),  # constant
        noise,
        torch.full((2, 3, 16, 16), 255.0),  # saturated
        -3 * disc + 0.3 * noise + 5,  # a sudden change of site …
        0.01 * (disc + noise),  # … and another
        torch.where(noise > 0, 1.0, 0.0),
        1e4 * noise,
        disc.expand(2, 3, 16, 16),
    )
    return kinds[(step // 5) % len(kinds)] if step % 100 < 50 else kinds[step % len(kinds)]


def held() -> int:
    """Bytes in tensors that are alive."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def survive(adapter, steps: int) -> None:
    for step in range(steps):
        assert adapter(hostile(step)).isfinite().all(), f"step {step}"
        if step == FULL:
            before = held()
    assert all(value.isfinite().all() for value in adapter.network.state_dict().values())
    if steps > FULL:
        assert held() <= before


@pytest.mark.parametrize("name", METHODS)
def test_a_hostile_stream_is_survived(name, ready):
    survive(ready(name).adapt(name), STEPS if name in QUICK else SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in QUICK])
def test_a_long_hostile_stream_is_survived(name, ready):
    survive(ready(name).adapt(name), STEPS)


@pytest.mark.parametrize("name", [name for name in METHODS if "lr" in defaults(name)])
def test_a_rate_a_thousand_times_too_large_is_survived(name, ready):
    adapter = ready(name).adapt(name, lr=1000 * defaults(name)["lr"])
    for step in range(SHORT):
        assert adapter(hostile(step)).isfinite().all()
