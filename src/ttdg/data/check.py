"""Checking a benchmark folder: every file is decoded, and all problems are reported."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Int

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import case_image, case_mask, class_index, labels_of
from ttdg.data.sites import Case, scan_site, site_folders, split
from ttdg.data.threads import ordered_map
from ttdg.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R")


@dataclass(frozen=True)
class SiteCheck:
    """Counts and problems of one site."""

    name: str
    cases: int
    patients: int
    train: int  # cases in the default split
    held_out: int
    sizes: Mapping[tuple[int, int], int]  # (height, width) → number of images
    labels: Mapping[str, float]  # label → share of all pixels, or class → share of all images
    problems: tuple[str, ...]
    images: Mapping[str, Path]  # hash of the pixels → file; without constant images


@dataclass(frozen=True)
class CheckReport:
    """The checks of all sites of a benchmark."""

    benchmark: str
    sites: tuple[SiteCheck, ...]

    @property
    def ok(self) -> bool:
        """True if no site has a problem."""
        return not any(site.problems for site in self.sites)

    @property
    def cases(self) -> int:
        """Number of cases of all sites."""
        return sum(site.cases for site in self.sites)


def check_benchmark(root: Path, benchmark: Benchmark, workers: int | None = None) -> CheckReport:
    """Decode every file of the benchmark; a problem does not stop the check. An image in two sites is a problem."""
    sites, known = list[SiteCheck](), dict[str, Path]()  # hash of the pixels → file of an earlier site
    for folder in site_folders(root).values():
        site = _check_site(folder, benchmark, workers)
        shared = [
            f"{path} shows the same image as {known[digest]}; remove one, as no site may hold images of another"
            for digest, path in site.images.items()
            if digest in known
        ]
        known = {**site.images, **known}
        sites.append(replace(site, problems=(*site.problems, *dict.fromkeys(shared))))
    return CheckReport(benchmark.name, tuple(sites))


def check_table(report: CheckReport) -> "Table":
    """Return a table for the terminal; sites and labels with usual names fit into 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    title = f"{escape(report.benchmark)}: {report.cases:,} cases"
    table = Table(title=title, box=SIMPLE_HEAD, leading=1, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("site", "cases", "width × height", "labels", "problems"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("site", "labels"))
    for site in report.sites:
        counts = [
            f"{count:,} {what}"
            for count, what in (
                (site.cases, "cases"), (site.patients, "patients"), (site.train, "train"), (site.held_out, "held out"),
            )
        ]  # fmt: skip
        by_count = sorted(site.sizes.items(), key=lambda item: -item[1])
        sizes = [f"{width} × {height}: {count:,}" for (height, width), count in by_count]
        labels = [f"{label} {share:.1%}" for label, share in site.labels.items()]
        lines = (counts, _first(sizes, 3), labels, [f"{len(site.problems) or 'none'}"])
        table.add_row(escape(site.name), *(escape("\n".join(cell)) for cell in lines))
    return table


def first_problems(report: CheckReport, limit: int = 10) -> list[str]:
    """Return the first `limit` problems of each site, and how many more there are."""
    return [line for site in report.sites for line in _first(site.problems, limit)]


def _first(lines: Sequence[str], limit: int) -> list[str]:
    rest = len(lines) - limit
    return [*lines[:limit], *([f"… and {rest:,} more"] if rest > 0 else [])]


def _check_site(folder: Path, benchmark: Benchmark, workers: int | None) -> SiteCheck:
    site, name_problems = scan_site(folder)
    problems = [str(problem) for problem in name_problems]
    if benchmark.task == "segmentation" and not (folder / "masks").is_dir():
        problems.append(f"{folder / 'masks'} is missing; put a mask for each image there")
    sizes: Counter[tuple[int, int]] = Counter()
    images = dict[str, Path]()
    pixels = np.zeros(len(benchmark.labels), np.int64)
    for case, future in ordered_map(lambda case: _check_case(case, benchmark), site.cases, workers):
        check = future.result()
        if check.digest:
            images[check.digest] = case.image
        problems += check.problems
        if check.size is not None:
            sizes[check.size] += 1
        pixels += check.pixels
    if benchmark.task == "segmentation" and pixels.any():
        problems += [
            f"no mask of {site.name} shows {label}; compare the grey values of its masks with those of the benchmark"
            for label, count in zip(benchmark.labels, pixels.tolist(), strict=True)
            if not count
        ]
    train, held_out = split(site.cases)
    return SiteCheck(
        name=site.name,
        cases=len(site.cases),
        patients=len({case.patient for case in site.cases}),
        train=len(train),
        held_out=len(held_out),
        sizes=dict(sizes),
        labels=dict(zip(benchmark.labels, (pixels / max(pixels.sum(), 1)).tolist(), strict=True)),
        problems=tuple(dict.fromkeys(problems)),  # all slices of a volume may have the same one
        images=images,
    )


@dataclass(frozen=True)
class _CaseCheck:
    """Counts and problems of one case."""

    size: tuple[int, int] | None  # (height, width) of the image
    pixels: Int[np.ndarray, "labels"]  # number of pixels of each label; a class counts as one
    problems: tuple[str, ...]
    digest: str  # of the pixels; empty for a constant image and for one that cannot be read


def _check_case(case: Case, benchmark: Benchmark) -> _CaseCheck:
    """Read the image and the mask or class independently, so that both problems are reported."""
    problems: list[str] = []

    def attempt(function: Callable[..., R], *arguments: object) -> R | None:
        try:
            return function(*arguments)
        except UserError as error:
            problems.append(str(error))
            return None

    image, mask = attempt(case_image, case, benchmark.normalisation), attempt(case_mask, case)
    if benchmark.task == "classification":
        index = attempt(class_index, case, benchmark)
        labels = None if index is None else np.array([index])
    else:
        labels = None if image is None or mask is None else attempt(labels_of, mask, image, case, benchmark)
    values = np.zeros(0, np.uint8) if labels is None else labels.ravel()
    pixels = np.bincount(values, minlength=len(benchmark.labels))
    digest = "" if image is None or np.ptp(image) == 0 else hashlib.sha256(image.tobytes()).hexdigest()
    return _CaseCheck(None if image is None else image.shape[:2], pixels, tuple(problems), digest)
