"""Count how often a walk through the package changes folder, from a profiler's trace.

The trace lists every function of `ttdg` in the order of its first call. The count is the number of neighbours in that
list which live in different top-level folders of the package. A low count means that a reader who follows one call
stays in one folder for a while.

    python benchmarks/walk.py            # the counts
    python benchmarks/walk.py --steps    # also every run of functions, folder by folder
"""

import argparse
import contextlib
import importlib
import io
import itertools
import operator
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ttdg

ROOT = Path(ttdg.__file__).parent
CONFIG = """\
name: walk
synthetic: {variant: fundus, cases: 6, size: 64}
size: 64
sites: [north, harbour]
seeds: [0]
recipe: {encoder: light, optimiser: adamw, lr: 0.003, steps: 2, batch: 2, augmentation: standard, average: 0.0}
experiments:
  - {name: walk, protocol: leave-one-out, targets: [harbour], methods: [source, norm], limit: 2}
"""


class Trace:
    """Functions of the package in the order of their first call, from every thread."""

    def __init__(self) -> None:
        self.seen: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and not code.co_name.startswith("<"):
            self.seen.setdefault(code)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def visits(self) -> list[tuple[str, str]]:
        """(folder, file:function) of every function, in order of first call."""
        found = []
        for code in self.seen:
            path = Path(code.co_filename).relative_to(ROOT)
            folder = path.parts[0] if len(path.parts) > 1 else "ttdg"
            found.append((folder, f"{path}:{code.co_qualname}"))
        return found


def import_everything() -> None:
    """Import every module, so that class bodies and imports are not part of the trace."""
    for module in pkgutil.walk_packages([str(ROOT)], "ttdg."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # triton is absent on CPU machines
                importlib.import_module(module.name)


def command(arguments: list[str]) -> None:
    from ttdg.cli import main

    sys.argv = ["ttdg", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()


def walk_predict(folder: Path) -> Callable[[], None]:
    """One image through `ttdg predict --method judge`."""
    from ttdg.data.synthetic.write import write_benchmark

    images = write_benchmark(folder / "data", "fundus", 1) / "summit" / "images"
    arguments = ["predict", "-m", "demo", "-i", str(images), "-o", str(folder / "out"), "--method", "judge"]
    return lambda: command(arguments)


def walk_bench(folder: Path) -> Callable[[], None]:
    """Three jobs of `ttdg bench` (one training, two scorings), in this process instead of in workers."""
    from ttdg.bench import run
    from ttdg.bench.prepare import prepare_run

    class Inline:
        """The executor's protocol without processes."""

        slots = 1

        def __init__(self, work: Any) -> None:
            self.work, self.ended = work, []

        def submit(self, key: str, spec: Any) -> None:
            self.ended.append(self.work.run(key, spec))

        def wait(self, seconds: float) -> list[Any]:
            ended, self.ended = self.ended, []
            return ended

        def close(self) -> None: ...

    run.prepare_in_subprocess = prepare_run
    run.make_executor = lambda name, work, options: Inline(work)
    (folder / "walk.yaml").write_text(CONFIG)
    return lambda: command(
        ["bench", str(folder / "walk.yaml"), "--out", str(folder / "run"), "--device", "cpu"]
    )


WALKS: dict[str, Callable[[Path], Callable[[], None]]] = {"predict": walk_predict, "bench": walk_bench}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=WALKS)
    parser.add_argument("--steps", action="store_true", help="print every run of functions")
    arguments = parser.parse_args()
    import_everything()
    for name in [arguments.only] if arguments.only else list(WALKS):
        with tempfile.TemporaryDirectory() as folder:
            run, trace = WALKS[name](Path(folder)), Trace()
            with trace.running():
                run()
        visits = trace.visits()
        changes = sum(a[0] != b[0] for a, b in itertools.pairwise(visits))
        files = len({where.split(":")[0] for _, where in visits})
        print(f"{name}: {len(visits)} functions in {files} files, {changes} changes of folder")
        for package, group in (
            itertools.groupby(visits, key=operator.itemgetter(0)) if arguments.steps else ()
        ):
            print(f"  {package}: {', '.join(where.split('/', 1)[-1] for _, where in group)}")


if __name__ == "__main__":
    main()
