"""Correctness and speed of the fused GPU Sinkhorn; run before other sections use it."""

from functools import partial

import torch

from matching_timing import captured, race, table
from ttdg.matching.sinkhorn import sinkhorn_log

SHAPES = ((1, 1), (20, 30), (30, 30), (40, 30), (100, 120), (127, 127), (100, 200), (200, 100))


def fused_section(device: str, rounds: int) -> None:
    """Compare the fused plan with the reference and time the kernel; a wrong plan raises."""
    from ttdg.matching.sinkhorn import triton

    worst: dict[str, float] = {}
    for n, d in SHAPES:
        S = torch.rand(4, n, d, generator=torch.Generator().manual_seed(n + d)).to(device)
        a, b = torch.ones(4, n, device=device), torch.ones(4, d, device=device)
        a[1, n // 2 :] = 0
        for tau in (1.0, 0.05, 0.005):
            P, _ = triton.fused_sinkhorn(S, a, b, tau, 0.0, 10)
            exact = sinkhorn_log(S.double(), a.double(), b.double(), tau, sweeps=10)
            worst[f"{n}×{d}, τ = {tau}"] = float((P - exact).abs().max())
    rows = [[name, f"{error:.1e}"] for name, error in worst.items()]
    table("The fused plan against the float64 reference, 10 sweeps", ["problem", "error"], rows)
    assert max(worst.values()) < 5e-6, "the fused plan is wrong"

    rows = []
    for m in (4, 8, 32, 128):
        S = torch.rand(m, 100, 120, generator=torch.Generator().manual_seed(m)).to(device)
        a, b = torch.ones(m, 100, device=device), torch.ones(m, 120, device=device)
        runs = {
            str(warps): captured(partial(triton.fused_sinkhorn, S, a, b, 0.05, 0.0, 10, warps=warps))
            for warps in (8, 16, 32)
        }
        times = race(runs, rounds, device)
        rows.append([str(m), *(f"{1e3 * ms:.0f}" for ms in times.values())])
    table("The fused kernel alone, 10 sweeps, 100×120, µs by warps", ["m", "8", "16", "32"], rows)
