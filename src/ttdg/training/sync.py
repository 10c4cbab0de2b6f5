"""BatchNorm over all processes, so that two processes train the model one would at the same global batch."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def synchronise(network: nn.Module, cuda: bool) -> nn.Module:
    """Torch's SyncBatchNorm on GPUs; on CPUs, where it does not run, ours: same names, same numbers."""
    if cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for layer in network.modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = SyncedBatchNorm
    return network


class SyncedBatchNorm(nn.BatchNorm2d):
    """Σx and Σx² are summed over processes (differentiably) before the mean and variance are taken."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
        sums = torch.cat([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), count])
        sums = all_reduce(sums)  # type: ignore[no-untyped-call]
        n = sums[-1]
        mean, square = (sums[:-1] / n).chunk(2)
        var = square - mean * mean
        self._remember(mean, var * n / (n - 1))
        shape = (1, -1, 1, 1)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (x - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        momentum = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)
        self.num_batches_tracked += 1
