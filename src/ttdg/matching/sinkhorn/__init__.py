"""Entropic assignment with masses: the paper's Sinkhorn(X, τ), also for n_i ≠ d.

`sinkhorn` returns the plan, by the fastest implementation for the device. `sinkhorn_log` runs the same iterates in the
log domain and is the slow reference. The other modules: `balance` (slack and absent rows), `scaling` (CPU and eager
CUDA), `triton` (fused CUDA kernel), `implicit` (gradient of the fixed point).
"""

from ttdg.matching.sinkhorn.api import sinkhorn, sinkhorn_log

__all__ = ["sinkhorn", "sinkhorn_log"]
