"""One adaptation step for m = 4 graphs: affinity, M̂, solver, matching loss and backward pass."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from matching_timing import D, H, N, Runs, captured, race, random_problem, table
from ttdg.matching import assign, matching_loss, qap_direction, soft_affinity, solve
from ttdg.prior import Affinity, MLPAffinity


def step(affinity: nn.Module, nodes: Tensor, edges: Tensor, mask: Tensor, universe: Tensor) -> None:
    """One forward and backward pass."""
    M = affinity(nodes, mask)
    E = nodes.detach() @ universe.T
    soft = soft_affinity(M.detach(), mask)
    U = solve(
        lambda U: qap_direction(edges, soft, U, unary=E),
        assign(E, mask),
        mask,
        tolerance=0.0,
        max_iterations=10,
    )
    loss = matching_loss(M, U.matching, mask)
    torch.autograd.grad(loss, [nodes, *affinity.parameters()], allow_unused=True)


def step_section(device: str, rounds: int) -> None:
    """Time of one step for both affinities; on CUDA also as one CUDA graph."""
    rows = []
    draw = torch.Generator().manual_seed(0)
    nodes = normalize(torch.randn(4, N, H, generator=draw), dim=2).to(device).requires_grad_()
    universe = normalize(torch.randn(D, H, generator=draw), dim=1).to(device)
    edges, _, _, mask = random_problem(4, device, with_affinity=False)
    for affinity in (Affinity(H).to(device), MLPAffinity(H).to(device)):
        one = partial(step, affinity, nodes, edges, mask, universe)
        one()
        runs: Runs = {"eager": one}
        extra = [f"{_peak(one):.0f}", str(_kernels(one))] if device == "cuda" else ["", ""]
        if device == "cuda":
            runs["one CUDA graph"] = captured(one)
        for name, ms in race(runs, rounds, device).items():
            rows.append(
                [type(affinity).__name__, name, f"{ms:.2f}", *(extra if name == "eager" else ["", ""])]
            )
    head = ["affinity", "", "ms", "peak extra MiB", "kernels"]
    table("One adaptation step, m = 4, forward and backward, 10 iterations", head, rows)


def _peak(run: partial[None]) -> float:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _kernels(run: partial[None]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in trace.events())
