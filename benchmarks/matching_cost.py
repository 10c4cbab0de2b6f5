"""Parameters, FLOPs and time of matching m graphs: pair by pair, or jointly through the universe (Table 5).

    python benchmarks/matching_cost.py [--graphs 4] [--nodes 96] [--points 120]

FLOPs are those that torch counts: matrix products only, no other arithmetic of the solver. The graphs are random.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from ttdg.matching import assign, qap_direction, soft_affinity, solve
from ttdg.prior import Affinity


def pairwise(nodes: torch.Tensor, mask: torch.Tensor, affinity: Affinity) -> None:
    """Matches each of the m(m−1)/2 pairs separately."""
    for i, j in itertools.combinations(range(len(nodes)), 2):
        two = [i, j]
        M = affinity(nodes[two], mask[two])
        assign(M[0, 1][None], mask[[i]], mask[[j]])


def multigraph(
    nodes: torch.Tensor, mask: torch.Tensor, affinity: Affinity, edges: torch.Tensor, universe: torch.Tensor
) -> None:
    """Matches all graphs to one universe, which makes the pairs cycle-consistent."""
    S = nodes @ universe.T
    soft = soft_affinity(affinity(nodes, mask), mask)
    solve(
        lambda U: qap_direction(edges, soft, U, unary=S),
        assign(S, mask, tau=0.05),
        mask,
        tau=0.05,
        max_iterations=3,
    )


def measured(work: Callable[[], None], repeats: int = 15) -> tuple[float, float]:
    """GFLOP and median milliseconds of one call."""
    with FlopCounterMode(display=False) as counter:
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return counter.get_total_flops() / 1e9, 1000 * statistics.median(times)


@torch.no_grad()
def main() -> None:
    """Print the table for each number of graphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--nodes", type=int, default=96)
    parser.add_argument("--points", type=int, default=120)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    affinity = Affinity(options.width)
    universe = torch.nn.functional.normalize(torch.randn(options.points, options.width), dim=1)
    own = sum(p.numel() for p in affinity.parameters())
    print(f"parameters: pairwise {own:,}, through the universe {own + universe.numel():,}")
    print("| graphs | pairwise GFLOP | ms | universe GFLOP | ms |\n|---|---|---|---|---|")
    for m in options.graphs:
        nodes = torch.nn.functional.normalize(torch.randn(m, options.nodes, options.width), dim=2)
        mask = torch.ones(m, options.nodes, dtype=torch.bool)
        edges = (nodes @ nodes.mT).clamp(min=0) * (1 - torch.eye(options.nodes))
        separate = measured(lambda nodes=nodes, mask=mask: pairwise(nodes, mask, affinity))
        joint = measured(
            lambda nodes=nodes, mask=mask, edges=edges: multigraph(nodes, mask, affinity, edges, universe)
        )
        print(f"| {m} | {separate[0]:.3f} | {separate[1]:.1f} | {joint[0]:.3f} | {joint[1]:.1f} |")


if __name__ == "__main__":
    main()
