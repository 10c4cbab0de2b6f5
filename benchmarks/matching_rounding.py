"""Rounding by SciPy's Hungarian algorithm compared with a batched greedy form on the device.

In each round the greedy form takes all pairs that are each other's best. No data leaves the device, but every round
costs launches, the number of rounds is not known in advance, and the result is not the optimum.
"""

import torch
from torch import Tensor

from matching_timing import D, N, race, table
from ttdg.matching import assign, round_matching

ROUNDS = 24


def greedy(scores: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Greedy matching of each graph after `rounds` rounds."""
    left, U = scores.clone(), torch.zeros_like(scores)
    for _ in range(rounds):
        by_row = left == left.amax(2, keepdim=True)
        found = by_row & (left == left.amax(1, keepdim=True)) & (left > -torch.inf)
        U = U + found
        left = left.masked_fill(found.any(2, keepdim=True) | found.any(1, keepdim=True), -torch.inf)
    return U


def rounding_section(device: str, rounds: int) -> None:
    """Time of both forms, and the value of the greedy result relative to the optimum."""
    rows = []
    for m in (4, 8, 32):
        draw = torch.Generator().manual_seed(m)
        mask = torch.ones(m, N, dtype=torch.bool, device=device)
        for name, tau in (("near a matching", 0.01), ("soft", 0.2)):
            scores = assign(torch.rand(m, N, D, generator=draw).to(device), mask, tau=tau, max_sweeps=50)
            best, near = round_matching(scores, mask), greedy(scores)
            worth = float((scores * near).sum() / (scores * best).sum())
            times = race(
                {
                    "hungarian": lambda s=scores, k=mask: round_matching(s, k),
                    "greedy": lambda s=scores: greedy(s),
                },
                rounds,
                device,
            )
            rows.append(
                [str(m), name, f"{times['hungarian']:.2f}", f"{times['greedy']:.2f}", f"{100 * worth:.1f} %",
                 f"{int(best.sum() - near.sum())}"]
            )  # fmt: skip
    head = [
        "m",
        "scores",
        "SciPy, ms",
        f"greedy, {ROUNDS} rounds, ms",
        "greedy, share of the optimum",
        "left unmatched",
    ]
    table("Rounding", head, rows)
