"""Measures the start-up time of `ttdg --help`: median of several runs, compared with a bare Python interpreter.

python benchmarks/startup.py [--repeats 7]
"""

import argparse
import statistics
import subprocess
import sys
import time


def seconds(command: list[str], repeats: int) -> float:
    """Median wall-clock time of a command in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Time `--help` of some commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    bare = seconds([sys.executable, "-c", "pass"], repeats)
    for command in (["--help"], ["train", "--help"], ["data", "check", "--help"]):
        time_of_help = seconds([sys.executable, "-m", "ttdg", *command], repeats)
        print(f"ttdg {' '.join(command)}: {time_of_help:.2f} s (bare interpreter {bare:.2f} s)")


if __name__ == "__main__":
    main()
