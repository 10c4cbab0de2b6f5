"""Which statistics BatchNorm uses: a named, visible decision that holds in train and eval mode alike.

A mode is a function of the layer and its input. `use(network, mode)` gives every BatchNorm layer that mode;
`network.train()` and `network.eval()` no longer change what it does. Running buffers stay where they are:
they are the source's statistics, and the fallback where a batch has too few values to estimate its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.errors import UserError

Mode = Callable[[_BatchNorm, Tensor], Tensor]

FEWEST = 16  # values per channel below which batch statistics are noise, e.g. after global pooling


@dataclass(frozen=True)
class EvalMode:
    """The source's running statistics; nothing is written."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        mean, var = running(layer)
        return batch_norm(layer, x, mean, var)


@dataclass(frozen=True)
class BatchMode:
    """The batch's own statistics (biased variance); nothing is written."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if has_too_few_values(x):
            return EVAL(layer, x)
        return batch_norm(layer, x, None, None, training=True)


@dataclass(frozen=True)
class TrainMode:
    """The batch's own statistics, which also move the running buffers (as in source training)."""

    momentum: float = 0.1

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if has_too_few_values(x):
            return EVAL(layer, x)
        mean, var = running(layer)
        return batch_norm(layer, x, mean, var, training=True, momentum=self.momentum)


@dataclass(frozen=True)
class MixMode:
    """(1−ρ)·source + ρ·batch, for means and for variances (unbiased, as the running ones are), in one forward pass.

    The statistics are constants to the gradient, as the running buffers are. Moving a copy of the buffers with
    momentum ρ is that mixture, and one kernel: 1.25 × the time of EVAL on an H200 where reducing and mixing
    in four kernels took 1.63 ×.
    """

    rho: float

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if has_too_few_values(x):
            return EVAL(layer, x)
        mean, var = (buffer.clone() for buffer in running(layer))
        torch.batch_norm_update_stats(x.detach(), mean, var, self.rho)
        return batch_norm(layer, x, mean, var)


EVAL, BATCH, TRAIN = EvalMode(), BatchMode(), TrainMode()


def running(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    """The source's mean and variance. Read from the dict: on a GPU a small batch waits for Python, and a module's
    attribute look-up, 60 layers × 5 times, is a tenth of the forward pass."""
    mean, var = layer._buffers["running_mean"], layer._buffers["running_var"]
    if mean is None or var is None:
        raise UserError(
            "this network's BatchNorm keeps no running statistics, so it has no source statistics to use, which a "
            f"batch's own replace only where a map has at least {FEWEST} values a channel; give it larger images"
        )
    return mean, var


def batch_norm(
    layer: _BatchNorm,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool = False,
    momentum: float = 0.0,
) -> Tensor:
    """γ(x−μ)/√(v+ε)+β with the given statistics, or with the batch's own while these are moved."""
    affine = layer._parameters
    return torch.batch_norm(
        x,
        affine["weight"],
        affine["bias"],
        mean,
        var,
        training,
        momentum,
        layer.eps,
        torch.backends.cudnn.enabled,
    )


def has_too_few_values(x: Tensor) -> bool:
    return x.numel() // x.shape[1] < FEWEST


def present(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def layers(network: nn.Module) -> Iterator[_BatchNorm]:
    """Every BatchNorm layer; a network without any is an error, said in a sentence."""
    if not present(network):
        raise UserError(
            f"{type(network).__name__} has no BatchNorm layer, so there is nothing for this method to adapt; "
            "use method 'source' or one that adapts other parts"
        )
    yield from (module for module in network.modules() if isinstance(module, _BatchNorm))


def use(network: nn.Module, mode: Mode) -> None:
    """Give every BatchNorm layer `mode`, in place, whatever `network.training` is now or later."""
    for layer in layers(network):
        if layer.running_mean is None and mode != BATCH:
            raise UserError(
                "this network's BatchNorm keeps no running statistics, so it has no source statistics to use"
            )
        if not isinstance(layer, _Moded):
            layer.__class__ = _moded(type(layer))
        layer.mode = mode  # type: ignore[assignment]


def affine(network: nn.Module) -> list[nn.Parameter]:
    """γ and β of every BatchNorm layer."""
    return [p for layer in layers(network) for p in (layer.weight, layer.bias) if p is not None]


class _Moded:
    """Mixed into a layer's class: same weights and buffers, same names, but `forward` asks `mode`."""

    mode: Mode

    def forward(self, x: Tensor) -> Tensor:
        return self.mode(self, x)  # type: ignore[call-arg,arg-type]


_classes: dict[type, type] = {}


def _moded(base: type) -> type:
    """The moded class of a BatchNorm class, made once so that copies share it."""
    if base not in _classes:
        _classes[base] = type(f"Moded{base.__name__}", (_Moded, base), {})
    return _classes[base]
