"""Modes select the statistics of BatchNorm layers explicitly, independently of `network.training`.

A mode is a function of a layer and its input. `use(network, mode)` sets the mode of every BatchNorm layer; afterwards
`network.train()` and `network.eval()` do not change its behaviour. The running buffers hold the source statistics. They
are also the fallback if a batch has too few values to estimate statistics.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.errors import UserError
from ttdg.pickling import LEAST, remade

Mode = Callable[[_BatchNorm, Tensor], Tensor]

MIN_VALUES = 16  # with fewer values per channel, e.g. after global pooling, batch statistics are too noisy


@dataclass(frozen=True)
class EvalMode:
    """Normalises with the running (source) statistics; writes no buffer."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x`."""
        mean, var = running_statistics(layer)
        return batch_norm(layer, x, mean, var)


@dataclass(frozen=True)
class BatchMode:
    """Normalises with the batch statistics (biased variance); writes no buffer."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x`."""
        if has_too_few_values(x):
            return EVAL(layer, x)
        return batch_norm(layer, x, None, None, training=True)


@dataclass(frozen=True)
class TrainMode:
    """Normalises with the batch statistics and updates the running buffers, as in source training."""

    momentum: float = 0.1

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x`."""
        if has_too_few_values(x):
            return EVAL(layer, x)
        mean, var = running_statistics(layer)
        return batch_norm(layer, x, mean, var, training=True, momentum=self.momentum)


@dataclass(frozen=True)
class MixMode:
    """Normalises with (1−ρ)·source + ρ·batch means and variances (unbiased, as running variances are).

    The statistics are constants for the gradient, as running buffers are. The mixture is computed by updating a copy
    of the running buffers with momentum ρ, which is one kernel. On an H200 this takes 1.25 times as long as EVAL;
    computing and mixing the statistics in four kernels took 1.63 times as long.
    """

    rho: float

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x`."""
        if has_too_few_values(x):
            return EVAL(layer, x)
        mean, var = (buffer.clone() for buffer in running_statistics(layer))
        torch.batch_norm_update_stats(x.detach(), mean, var, self.rho)
        return batch_norm(layer, x, mean, var)


EVAL, BATCH, TRAIN = EvalMode(), BatchMode(), TrainMode()


def running_statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean and variance of a layer, which are the source statistics.

    They are read from the module's dictionary, because attribute access (5 times in each of 60 layers) takes a tenth of
    the time of a forward pass with a small batch on a GPU.
    """
    mean, var = layer._buffers["running_mean"], layer._buffers["running_var"]
    if mean is None or var is None:
        raise UserError(
            "this network's BatchNorm layers keep no running statistics, and batch statistics need at least "
            f"{MIN_VALUES} values per channel; use larger images or larger batches"
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
    """γ(x−μ)/√(v+ε)+β with the given mean and variance.

    With `training` the batch statistics are used instead, and the given ones are updated with `momentum`.
    """
    affine = layer._parameters
    if len(affine) < 2:  # parametrised ones are computed
        affine = {"weight": layer.weight, "bias": layer.bias}
    return torch.batch_norm(
        x, affine["weight"], affine["bias"], mean, var, training, momentum, layer.eps, torch.backends.cudnn.enabled
    )  # fmt: skip


def has_too_few_values(x: Tensor) -> bool:
    """True if `x` has fewer than `MIN_VALUES` values per channel."""
    return x.numel() // x.shape[1] < MIN_VALUES


def has_layers(network: nn.Module) -> bool:
    """True if the network has a BatchNorm layer."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def layers(network: nn.Module) -> Iterator[_BatchNorm]:
    """All BatchNorm layers of a network; raises `UserError` if there are none."""
    if not has_layers(network):
        raise UserError(
            f"{type(network).__name__} has no BatchNorm layer, which this method adapts; "
            "use the method 'source' or a method that adapts other layers"
        )
    yield from (module for module in network.modules() if isinstance(module, _BatchNorm))


def use(network: nn.Module, mode: Mode) -> None:
    """Set the mode of every BatchNorm layer in place. It applies in train and in eval mode.

    `BATCH` sets the mode given to `replace_batch` instead, if there is one.
    """
    for layer in layers(network):
        chosen = layer.__dict__.get("instead_of_batch", mode) if mode == BATCH else mode
        if layer.running_mean is None and chosen != BATCH:
            raise UserError(
                "this network's BatchNorm layers keep no running statistics, which this method uses as source "
                "statistics; use the method 'norm', or a network with track_running_stats=True"
            )
        if not isinstance(layer, _Moded):
            layer.__class__ = _moded(type(layer))
        layer.mode = chosen  # type: ignore[assignment]


def replace_batch(network: nn.Module, mode: Mode) -> None:
    """Give a network another mode wherever `use` asks for `BATCH` later. Copies of the network keep this."""
    for layer in layers(network):
        layer.instead_of_batch = mode  # type: ignore[assignment]


def use_if_any(network: nn.Module, mode: Mode) -> None:
    """Set the mode of every BatchNorm layer in place; a network without such layers stays as it is."""
    if has_layers(network):
        use(network, mode)


def affine_parameters(network: nn.Module) -> list[nn.Parameter]:
    """γ and β of every BatchNorm layer."""
    return [p for layer in layers(network) for p in (layer.weight, layer.bias) if p is not None]


class _Moded:
    """Mixin for a BatchNorm class that delegates `forward` to `mode`; parameter and buffer names are unchanged."""

    mode: Mode

    def forward(self, x: Tensor) -> Tensor:
        return self.mode(self, x)  # type: ignore[call-arg,arg-type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return remade(super().__reduce_ex__(max(LEAST, protocol)), _moded, type(self).__bases__[1])


class _ModedOwn(_Moded):
    """`_Moded` for a class with a `forward` of its own, for example with an activation inside.

    The mode takes the place of torch's `forward`, which the own one calls. An own one that does not call it normalises
    with the source statistics, as in eval mode.
    """

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        layer.__dict__["reached"], training = False, layer.training
        layer.training = False
        try:
            result: Tensor = type(self).__bases__[1].forward(self, x)  # type: ignore[attr-defined]
        finally:
            layer.training = training
        if not layer.__dict__["reached"] and not isinstance(self.mode, EvalMode):
            raise UserError(
                f"layers of the class {type(self).__bases__[1].__name__} compute their statistics themselves, so this "
                "method cannot change them; use the method 'source' or 'self-training'"
            )
        return result


class _Inside:
    """Mixin for torch's BatchNorm class, on which a class with a `forward` of its own is built."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        layer.__dict__["reached"] = True
        result: Tensor = layer.mode(layer, x)
        return result


_classes: dict[type, type] = {}


def _moded(base: type) -> type:
    """The class of a BatchNorm class with `_Moded`, created once so that copies of layers share it."""
    if base not in _classes:
        first = next(kind for kind in base.__mro__ if "forward" in vars(kind))
        kinds: tuple[type, ...] = (_Moded, base)
        if not first.__module__.startswith("torch."):
            torchs = next(kind for kind in base.__mro__ if kind.__module__.startswith("torch.nn."))
            kinds = (_ModedOwn, base, type(f"Inside{torchs.__name__}", (_Inside, torchs), {}))
        _classes[base] = type(f"Moded{base.__name__}", kinds, {})
    return _classes[base]
