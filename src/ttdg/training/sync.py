"""BatchNorm statistics over all processes: training does not depend on how many processes share a batch."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def synchronise(network: nn.Module, cuda: bool) -> nn.Module:
    """Replace BatchNorm layers by synchronised ones; state-dict names do not change.

    GPUs use torch's SyncBatchNorm, which does not run on a CPU; CPUs use `SyncedBatchNorm`.
    """
    if cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for layer in network.modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = SyncedBatchNorm
    return network


class SyncedBatchNorm(nn.BatchNorm2d):
    """BatchNorm that sums Σx and Σx² over processes, differentiably, before it takes mean and variance."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the statistics of the global batch."""
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
        sums = torch.cat([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), count])
        sums = all_reduce(sums)  # type: ignore[no-untyped-call]
        n = sums[-1]
        mean, square = (sums[:-1] / n).chunk(2)
        var = square - mean * mean
        self._update_running(mean, var * n / (n - 1))
        shape = (1, -1, 1, 1)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (x - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        momentum = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)
        self.num_batches_tracked += 1
