"""Speed of the matching core beside its peers, in one run: `python benchmarks/matching.py [--device cuda]`.

Every table times its rows in turn, round after round, and gives medians, so that whatever else the machine
does falls on all of them alike. On CPU one thread unless told otherwise. On CUDA the plans are first checked
against the float64 reference. Peers that are not installed are left out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from matching_peers import (
    gamgm_iterations,
    gamgm_schedules,
    naive_iterations,
    pot_log,
    pot_scaling,
    pygm_sinkhorn,
)
from matching_planted import plant, recall
from ttdg.graphs import Affinity, MLPAffinity
from ttdg.matching import (
    assign,
    match,
    matching_loss,
    qap_direction,
    sinkhorn,
    sinkhorn_log,
    soft_affinity,
    solve,
    stacked,
)

N, D, H = 100, 120, 256
Runs = dict[str, Callable[[], object]]


def race(runs: Runs, rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds of each, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def sinkhorn_section(device: str, rounds: int) -> None:
    rows = []
    for m, tau in ((8, 0.05), (8, 0.005), (32, 0.05), (32, 0.005)):
        S = torch.rand(m, N, D, generator=torch.Generator().manual_seed(m)).to(device)
        a, b = torch.ones(m, N, device=device), torch.ones(m, D, device=device)
        runs: Runs = {"ours": partial(sinkhorn, S, a, b, tau, tolerance=0.0, max_sweeps=10)}
        if device == "cuda":
            runs["ours, eager"] = lambda S=S, a=a, b=b, tau=tau: _eager(S, a, b, tau)
        runs["log reference"] = partial(sinkhorn_log, S, a, b, tau, sweeps=10)
        if find_spec("pygmtools"):
            runs["pygmtools, batched"] = partial(pygm_sinkhorn, S, tau, batched=True)
            runs["pygmtools, default"] = partial(pygm_sinkhorn, S, tau, batched=False)
        if find_spec("ot"):
            runs["POT, log"] = partial(pot_log, S, tau)
            runs["POT, scaling (unsafe)"] = partial(pot_scaling, S, tau)
        exact = sinkhorn_log(S.double(), a.double(), b.double(), tau, sweeps=10)
        error = float((runs["ours"]() - exact).abs().max())  # type: ignore[operator]
        assert error < 5e-6, f"the plan is off by {error:.1e} from the float64 reference"
        times = race(runs, rounds, device)
        for name, ms in times.items():
            note = f"{error:.1e}" if name == "ours" else ""
            rows.append([str(m), str(tau), name, f"{ms:.2f}", f"{ms / times['ours']:.1f}×", note])
    head = ["m", "τ", "10 sweeps, 100×120", "ms", "of ours", "error of the plan to float64"]
    table("Sinkhorn", head, rows)


def solver_section(device: str, rounds: int) -> None:
    rows = []
    for m in (2, 4, 8, 16, 32):
        edges, affinity, U, mask = _random_problem(m, device)
        direction = lambda U, e=edges, a=affinity, m=m: qap_direction(e, a, U) / m  # noqa: E731
        ours = lambda k, d=direction, U=U, mask=mask: solve(d, U, mask, tolerance=0.0, max_iterations=k)  # noqa: E731
        loops: dict[str, Callable[[int], object]] = {"ours": ours}
        if find_spec("pygmtools"):
            loops["pygmtools gamgm"] = partial(gamgm_iterations, edges, affinity, U)
            loops["loop over pairs, pygmtools sinkhorn"] = partial(naive_iterations, edges, affinity, U)
        few, many = 2, 7
        runs = {f"{name}|{k}": partial(loop, k) for name, loop in loops.items() for k in (few, many)}
        times = race(runs, max(3, rounds // 3), device)
        each = {name: (times[f"{name}|{many}"] - times[f"{name}|{few}"]) / (many - few) for name in loops}
        rows += [[str(m), name, f"{ms:.2f}", f"{ms / each['ours']:.1f}×"] for name, ms in each.items()]
    table("One solver iteration (V, 10-sweep Sinkhorn, convergence test)", ["m", "", "ms", "of ours"], rows)


def direction_section(device: str, rounds: int) -> None:
    rows = []
    A = torch.rand(1500, 1500, device=device)
    for m in (4, 8, 16, 32):
        edges, affinity, U, _ = _random_problem(m, device)
        V = partial(qap_direction, edges, affinity, U)
        # Several in a row: in the solver V finds its operands in the caches, after a large product it does not.
        times = race({"V": partial(_repeat, V, 10), "matmul": partial(torch.mm, A, A)}, rounds, device)
        times["V"] /= 10
        rate = (2 * m * m * N * N * D + 2 * m * N * N * D + 4 * m * N * D * D) / times["V"] / 1e6
        peak = 2 * 1500**3 / times["matmul"] / 1e6
        rows.append([str(m), f"{times['V']:.2f}", f"{rate:.0f}", f"{peak:.0f}", f"{100 * rate / peak:.0f} %"])
    table(
        "The direction V against this machine's matrix product",
        ["m", "ms", "GFLOP/s", "matmul", "share"],
        rows,
    )


def growth_section(device: str, rounds: int) -> None:
    sizes = (4, 8, 16, 32, 64)
    runs: Runs = {}
    for m in sizes:
        edges, _, U, mask = _random_problem(m, device, with_affinity=False)
        unary = torch.rand_like(U)
        direction = lambda U, e=edges, u=unary: qap_direction(e, None, U, unary=u)  # noqa: E731
        runs[str(m)] = partial(solve, direction, U, mask, tolerance=0.0, max_iterations=5)
    times = race(runs, max(3, rounds // 2), device)
    base = times["4"] / 4
    rows = [
        [str(m), f"{times[str(m)]:.1f}", f"{times[str(m)] / m:.2f}", f"{times[str(m)] / m / base:.2f}×"]
        for m in sizes
    ]
    table(
        "Growth with the number of graphs, universe term for pairwise one, 5 iterations",
        ["m", "ms", "ms a graph", "of m = 4"],
        rows,
    )


def end_to_end_section(device: str, rounds: int) -> None:
    """Recall and time of whole solvers. pygmtools runs under twelve schedules and is judged by its best; minutes."""
    rows = []
    problems = [
        (8, 20, 20, 1.0),
        (8, 16, 20, 1.0),
        (4, 100, 120, 0.5),
        (8, 100, 120, 0.5),
        (8, 100, 120, 1.0),
    ]
    for m, n, d, noise in problems:
        instances = [plant(seed, m=m, n=n, d=d, edge_noise=0.1, node_noise=noise) for seed in range(3)]
        name = f"m={m}, n={n}, d={d}, node noise {noise}"
        found = {"ours": [_timed(partial(match, p.graphs, universe_size=d), p) for p in instances]}
        if find_spec("pygmtools"):
            for schedule, run in gamgm_schedules(d).items():
                found[f"pygmtools {schedule}"] = [_timed(partial(run, p), p) for p in instances]
        summary = {
            key: [statistics.mean(v) for v in zip(*values, strict=True)] for key, values in found.items()
        }
        peers = [key for key in summary if key != "ours"]
        best = max(peers, key=lambda key: summary[key][0], default=None)
        for key in ("ours", best) if best else ("ours",):
            score, ms = summary[key]
            rows.append([name, key, f"{score:.3f}", f"{ms:.0f}", f"{ms / summary['ours'][1]:.1f}×"])
    table(
        "End to end, planted problems, edge noise 0.1; n ≤ 20: mean of 3",
        ["problem", "", "recall", "ms", "of ours"],
        rows,
    )


def step_section(device: str, rounds: int) -> None:
    """One adaptation-side step at m = 4: affinity, M̂, solve, matching loss, backward."""
    rows = []
    nodes = torch.nn.functional.normalize(
        torch.randn(4, N, H, generator=torch.Generator().manual_seed(0)), dim=2
    )
    nodes = nodes.to(device).requires_grad_()
    edges, _, _, mask = _random_problem(4, device, with_affinity=False)
    universe = torch.nn.functional.normalize(
        torch.randn(D, H, generator=torch.Generator().manual_seed(1)), dim=1
    )
    for affinity in (Affinity(H).to(device), MLPAffinity(H).to(device)):
        step = partial(_step, affinity, nodes, edges, mask, universe.to(device))
        step()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            memory = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.0f}"
        else:
            memory = ""
        ms = race({"step": step}, rounds, device)["step"]
        rows.append([type(affinity).__name__, f"{ms:.1f}", memory])
    table(
        "One adaptation-side step, m = 4, forward and backward, 10 iterations",
        ["affinity", "ms", "peak MiB"],
        rows,
    )


def _step(affinity: torch.nn.Module, nodes: Tensor, edges: Tensor, mask: Tensor, universe: Tensor) -> None:
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


def _random_problem(
    m: int, device: str, with_affinity: bool = True
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(m)
    edges = torch.rand(m, N, N, generator=draw) / N
    affinity = stacked(torch.rand(m, m, N, N, generator=draw)).to(device) if with_affinity else None
    mask = torch.ones(m, N, dtype=torch.bool, device=device)
    U = assign(torch.rand(m, N, D, generator=draw).to(device), mask)
    return (edges + edges.mT).to(device), affinity, U, mask


def _eager(S: Tensor, a: Tensor, b: Tensor, tau: float) -> Tensor:
    from ttdg.matching.balance import balance
    from ttdg.matching.scaling import scale

    return scale(*balance(S, a, b), tau, 0.0, 10).plan(*S.shape[1:])


def _repeat(run: Callable[[], object], times: int) -> None:
    for _ in range(times):
        run()


def _timed(run: Callable[[], object], planted: object) -> tuple[float, float]:
    start = time.perf_counter()
    found = run()
    ms = 1e3 * (time.perf_counter() - start)
    return recall(getattr(found, "pairs", found), planted), ms  # type: ignore[arg-type]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


SECTIONS: dict[str, Callable[[str, int], None]] = {
    "sinkhorn": sinkhorn_section,
    "solver": solver_section,
    "direction": direction_section,
    "growth": growth_section,
    "end_to_end": end_to_end_section,
    "step": step_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {options.device}, {options.threads} CPU thread(s), medians of {options.rounds}"
    )
    for name in options.sections or SECTIONS:
        if options.device == "cuda" and name == "end_to_end":
            continue  # the peers' schedules take minutes and gain nothing there
        SECTIONS[name](options.device, options.rounds)


if __name__ == "__main__":
    main()
