"""Taps: the outputs of named modules of any network, read by forward hooks."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError

DECODER_STRIDE = (
    4  # of the map behind the deepest one that `choose_taps` takes; the node grid has this stride
)


def tapped(
    network: nn.Module, images: Float[Tensor, "b c h w"], taps: Iterable[str]
) -> tuple[Float[Tensor, "b l h w"], dict[str, Tensor]]:
    """Logits, and the maps that the named modules return; of a module that runs more than once, the last map."""
    modules, found = dict(network.named_modules()), dict[str, object]()
    handles = []
    try:
        for name in taps:
            if not name or name not in modules:
                raise UserError(
                    f"{type(network).__name__} has no module {name!r}, whose output is a tap; name modules of this "
                    "network as `network.named_modules()` does, and fit the parts to it"
                )
            handles.append(modules[name].register_forward_hook(_keep(found, name)))
        logits = network(images)
    finally:
        for handle in handles:
            handle.remove()
    return logits, {name: _map(name, found.get(name), len(images)) for name in taps}


def _keep(found: dict[str, object], name: str):  # type: ignore[no-untyped-def]
    def hook(module: nn.Module, inputs: object, output: object) -> None:
        found[name] = output

    return hook


def _map(name: str, output: object, images: int) -> Tensor:
    """The output of a module, if it is a feature map."""
    if isinstance(output, Tensor) and output.ndim == 4 and len(output) == images:
        return output
    kind = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    what = "did not run" if output is None else f"returns {kind}"
    raise UserError(
        f"module {name!r} {what}, but a tap is a map (images, channels, height, width); choose a convolution or a block"
    )


@torch.no_grad()
def choose_taps(network: nn.Module, images: Float[Tensor, "b c h w"]) -> tuple[str, ...]:
    """Choose up to three maps: two deep ones, and one of the decoder with a stride of about 4.

    The deep ones are the last outputs before the network begins to enlarge its maps, at its two smallest sizes. The
    third is the last map behind them whose stride is nearest to `DECODER_STRIDE`. Logits are none of them, also before
    the network enlarges them: the last maps that have no more channels than its output.
    """
    calls: list[tuple[str, int, int]] = []  # name, height and channels, in the order in which modules finish

    def record(name: str):  # type: ignore[no-untyped-def]
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and len(output) == len(images):
                calls.append((name, output.shape[2], output.shape[1]))

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in network.named_modules() if name]
    try:
        logits = network(images)
    finally:
        for handle in handles:
            handle.remove()
    calls = [call for call in calls if call[1] > 1]
    if calls and calls[-1][1] == logits.shape[2]:
        calls.pop()  # the module that returns the logits
    while len(calls) > 1 and calls[-1][2] <= logits.shape[1]:
        calls.pop()
    if not calls:
        raise UserError(
            f"{type(network).__name__} has no module that returns a map (images, channels, height, width); "
            "name the modules to read as taps"
        )
    sizes = sorted({size for _, size, _ in calls})
    deepest = max(i for i, (_, size, _) in enumerate(calls) if size == sizes[0])
    deep = [
        max((i for i, c in enumerate(calls[: deepest + 1]) if c[1] == size), default=-1) for size in sizes[:2]
    ]
    chosen = sorted({i for i in deep if i >= 0})
    if behind := range(deepest + 1, len(calls)):
        wanted = images.shape[2] / DECODER_STRIDE
        chosen.append(min(behind, key=lambda i: (abs(calls[i][1] - wanted), -i)))
    return tuple(dict.fromkeys(calls[i][0] for i in chosen))
