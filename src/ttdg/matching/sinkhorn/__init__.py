"""Entropic assignment between two masses: Sinkhorn(X, τ) of the paper, also for n_i ≠ d."""

from ttdg.matching.sinkhorn.api import sinkhorn, sinkhorn_log

__all__ = ["sinkhorn", "sinkhorn_log"]
