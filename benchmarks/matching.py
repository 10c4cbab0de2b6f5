"""Speed of the matching package and of its peers, in one run: `python benchmarks/matching.py [--device cuda]`.

Every table times its rows alternately over several rounds and reports medians, so that other load on the machine
affects all rows alike. On a CPU one thread is used by default. On CUDA the fused kernel is first checked against the
float64 reference in a separate process, and is disabled if it fails. Peers that are not installed are skipped. A
section that fails prints its traceback, and the next one runs.
"""

import argparse
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from matching_fused import fused_section
from matching_peers import (
    gamgm_iterations,
    gamgm_schedules,
    naive_iterations,
    pot_log,
    pot_scaling,
    pygm_sinkhorn,
)
from matching_planted import plant, recall
from matching_rounding import rounding_section
from matching_step import step_section
from matching_timing import D, N, Runs, race, random_problem, repeat, table
from ttdg.matching import match, qap_direction, solve
from ttdg.matching.sinkhorn import sinkhorn, sinkhorn_log


def sinkhorn_section(device: str, rounds: int) -> None:
    """Ten sweeps of Sinkhorn."""
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
    """One iteration of the solver, as the difference between seven and two iterations."""
    rows = []
    for m in (2, 4, 8, 16, 32):
        edges, affinity, U, mask = random_problem(m, device)
        direction = lambda U, e=edges, a=affinity, m=m: qap_direction(e, a, U) / m  # noqa: E731
        ours = lambda k, d=direction, U=U, mask=mask: solve(d, U, mask, tolerance=0.0, max_iterations=k)  # noqa: E731
        loops: dict[str, Callable[[int], object]] = {"ours": ours}
        if find_spec("pygmtools"):
            loops["pygmtools gamgm"] = partial(gamgm_iterations, edges, affinity, U)
            if device == "cpu" or m <= 8:
                loops["loop over pairs, pygmtools sinkhorn"] = partial(naive_iterations, edges, affinity, U)
        few, many = 2, 7
        runs = {f"{name}|{k}": partial(loop, k) for name, loop in loops.items() for k in (few, many)}
        times = race(runs, max(3, rounds // 3), device)
        each = {name: (times[f"{name}|{many}"] - times[f"{name}|{few}"]) / (many - few) for name in loops}
        rows += [[str(m), name, f"{ms:.2f}", f"{ms / each['ours']:.1f}×"] for name, ms in each.items()]
    table("One solver iteration (V, 10-sweep Sinkhorn, convergence test)", ["m", "", "ms", "of ours"], rows)


def direction_section(device: str, rounds: int) -> None:
    """Arithmetic rate of the direction V, relative to a large matrix product."""
    rows = []
    side = 1500 if device == "cpu" else 8192
    A = torch.rand(side, side, device=device)
    for m in (4, 8, 16, 32):
        edges, affinity, U, _ = random_problem(m, device)
        V = partial(qap_direction, edges, affinity, U)
        # Ten in a row: in the solver the operands of V are in the caches; after a large product they are not.
        times = race({"V": partial(repeat, V, 10), "matmul": partial(torch.mm, A, A)}, rounds, device)
        times["V"] /= 10
        rate = (2 * m * m * N * N * D + 2 * m * N * N * D + 4 * m * N * D * D) / times["V"] / 1e6
        peak = 2 * side**3 / times["matmul"] / 1e6
        rows.append([str(m), f"{times['V']:.2f}", f"{rate:.0f}", f"{peak:.0f}", f"{100 * rate / peak:.0f} %"])
    table(
        "The direction V against this machine's matrix product",
        ["m", "ms", "GFLOP/s", "matmul", "share"],
        rows,
    )


def growth_section(device: str, rounds: int) -> None:
    """Growth of the solver's time with the number of graphs, without pairwise affinities."""
    sizes = (4, 8, 16, 32, 64)
    runs: Runs = {}
    for m in sizes:
        edges, _, U, mask = random_problem(m, device, with_affinity=False)
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
        "Growth with the number of graphs, with a universe term instead of the pairwise term, 5 iterations",
        ["m", "ms", "ms per graph", "of m = 4"],
        rows,
    )


def end_to_end_section(device: str, rounds: int) -> None:
    """Recall and time of whole solvers; pygmtools is shown at the best of twelve schedules. Takes minutes."""
    rows = []
    problems = [
        (8, 20, 20, 1.0),
        (8, 16, 20, 1.0),
        (4, 100, 120, 0.5),
        (8, 100, 120, 0.5),
    ]
    for m, n, d, noise in problems:
        instances = [
            plant(seed, m=m, n=n, d=d, edge_noise=0.1, node_noise=noise)
            for seed in range(3 if n <= 20 else 1)
        ]
        name = f"m={m}, n={n}, d={d}, node noise {noise}"
        match(instances[0].graphs, universe_size=d)  # warm-up: the first call imports SciPy
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
            print(*rows[-1], flush=True)  # a row takes minutes
    table(
        "End to end, planted problems, edge noise 0.1; mean of 3, for n = 100 one",
        ["problem", "", "recall", "ms", "of ours"],
        rows,
    )


def _eager(S: Tensor, a: Tensor, b: Tensor, tau: float) -> Tensor:
    from ttdg.matching.sinkhorn.balance import balance
    from ttdg.matching.sinkhorn.scaling import scale

    return scale(*balance(S, a, b), tau, 0.0, 10).plan(*S.shape[1:])


def _timed(run: Callable[[], object], planted: object) -> tuple[float, float]:
    start = time.perf_counter()
    found = run()
    ms = 1e3 * (time.perf_counter() - start)
    return recall(getattr(found, "pairs", found), planted), ms  # type: ignore[arg-type]


SECTIONS: dict[str, Callable[[str, int], None]] = {
    "sinkhorn": sinkhorn_section,
    "step": step_section,
    "solver": solver_section,
    "direction": direction_section,
    "growth": growth_section,
    "rounding": rounding_section,
    "end_to_end": end_to_end_section,
    "fused": fused_section,
}
ON_CPU = tuple(name for name in SECTIONS if name != "fused")
ON_CUDA = tuple(name for name in ON_CPU if name != "end_to_end")  # the peers' schedules take minutes


def main() -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no section after this time"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {options.device}, {options.threads} CPU thread(s), medians of {options.rounds}",
        flush=True,
    )
    begin = time.perf_counter()
    if options.device == "cuda" and options.sections != ["fused"]:
        _trust_fused_kernel()
    failed = False
    for name in options.sections or (ON_CUDA if options.device == "cuda" else ON_CPU):
        if time.perf_counter() - begin > options.seconds:
            print(f"\n{name}: no time left")
            continue
        try:
            SECTIONS[name](options.device, options.rounds)
        except Exception:  # noqa: BLE001 the other sections still run
            failed = True
            traceback.print_exc(file=sys.stdout)
        print(f"\n({name} done after {time.perf_counter() - begin:.0f} s)", flush=True)
    sys.exit(failed)


def _trust_fused_kernel() -> None:
    """Disable the fused kernel unless it passes its check in a separate process.

    An illegal memory access would end the process that runs the check.
    """
    if subprocess.run([sys.executable, __file__, "fused", "--device", "cuda"], check=False).returncode:
        print("\nthe fused kernel failed its check and is disabled", flush=True)
        sys.modules["ttdg.matching.sinkhorn.api"]._fused_kernel = lambda: None  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
