"""Calls of the peer libraries, as their documentation shows them, on the inputs of our benchmarks."""

from collections.abc import Callable

import torch
from torch import Tensor

from matching_planted import Planted
from ttdg.matching import soft_affinity


def pygm_sinkhorn(S: Tensor, tau: float, *, batched: bool) -> Tensor:
    """pygmtools' Sinkhorn: 20 half steps, with dummy rows."""
    import pygmtools

    m, n, d = S.shape
    sizes = torch.full((m,), n, device=S.device), torch.full((m,), d, device=S.device)
    return pygmtools.sinkhorn(
        S, *sizes, dummy_row=True, max_iter=20, tau=tau, batched_operation=batched, backend="pytorch"
    )


def pot_log(S: Tensor, tau: float) -> object:
    """POT's batched Sinkhorn in the log domain: 10 sweeps, with a slack row."""
    from ot.batch import bregman_log_projection_batch

    K, a, b = _with_slack_row(S)
    return bregman_log_projection_batch(K / tau, a, b, max_iter=10, tol=0.0)


def pot_scaling(S: Tensor, tau: float) -> object:
    """POT's batched Sinkhorn in scaling form, which can overflow."""
    from ot.batch import bregman_projection_batch

    K, a, b = _with_slack_row(S)
    return bregman_projection_batch((K / tau).exp(), a, b, max_iter=10, tol=0.0)


def _with_slack_row(S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, n, d = S.shape
    a = torch.ones(m, n + 1, device=S.device)
    a[:, n] = d - n
    return torch.nn.functional.pad(S, (0, 0, 0, 1)), a, torch.ones(m, d, device=S.device)


def gamgm_iterations(edges: Tensor, affinity: Tensor, U: Tensor, iterations: int) -> None:
    """Exactly `iterations` Sinkhorn iterations of pygmtools' solver, then its final Hungarian step."""
    from pygmtools import pytorch_backend

    m, n, d = U.shape
    sizes = torch.full((m,), n, device=U.device)
    pytorch_backend.gamgm_real(
        torch.block_diag(*edges), affinity.transpose(1, 2).reshape(m * n, m * n), sizes, sizes.cumsum(0), d, m,
        U.flatten(0, 1), 0.05, 0.05, 0.5, 20, iterations, 0.5, 0.0, -1.0, False,
        torch.ones(m, m, device=U.device), "sinkhorn", False,
    )  # fmt: skip


def naive_iterations(edges: Tensor, affinity: Tensor, U: Tensor, iterations: int) -> None:
    """Eq. 11 as a loop over pairs, with pygmtools' Sinkhorn."""
    m = len(U)
    for _ in range(iterations):
        V = torch.stack([
            sum(edges[i] @ (U[i] @ (U[j].T @ (edges[j] @ U[j]))) + affinity[i, j] @ U[j] for j in range(m)) / m
            for i in range(m)
        ])  # fmt: skip
        U = pygm_sinkhorn(V, 0.05, batched=True)


def gamgm_schedules(d: int) -> dict[str, Callable[[Planted], Tensor]]:
    """pygmtools' multi-graph solver under the twelve schedules and inputs of which the best is reported."""
    return {
        f"τ {start}→{stop}, λ={weight}, {kind}": _gamgm(d, start, stop, rate, weight, kind)
        for start, stop, rate in ((0.5, 0.1, 0.8), (0.1, 0.006, 0.5), (0.2, 0.02, 0.8))
        for weight in (0.1, 1.0)
        for kind in ("cosines", "M̂")
    }


def _gamgm(
    d: int, start: float, stop: float, rate: float, weight: float, kind: str
) -> Callable[[Planted], Tensor]:
    def run(planted: Planted) -> Tensor:
        import pygmtools

        graphs, affinity = planted.graphs, planted.affinity
        affinity = affinity if kind == "cosines" else soft_affinity(affinity, graphs.mask)
        torch.manual_seed(0)
        found = pygmtools.gamgm(
            graphs.edges, affinity.contiguous(), graphs.mask.sum(1), d, param_lambda=weight, max_iter=100,
            sk_init_tau=start, sk_min_tau=stop, sk_gamma=rate, backend="pytorch",
        )  # fmt: skip
        m = len(graphs.mask)
        return torch.stack([torch.stack([found[i, j] for j in range(m)]) for i in range(m)])

    return run
