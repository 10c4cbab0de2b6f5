"""Answers drawn again where data and models are at hand: a stream runs as it ran, until the wanted images came."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable
from ttdg.bench.run_file import RunPlan
from ttdg.bench.scoring_job import open_scoring
from ttdg.data import load_arrays
from ttdg.report.figures.panels import Panel
from ttdg.report.worst_cases import Worst

Image = tuple[str, str, str]  # target, site, case
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]  # image, truth, answer


def data_and_models(run: RunPlan, folder: Path) -> RunFolder | None:
    """Where to draw from, if data and models are still there."""
    place = RunFolder(folder.resolve(), Path(run.data), Path(run.models))
    return place if run.data and place.data.is_dir() and place.models.is_dir() else None


def worst_panels(table: RunTable, cases: Sequence[Worst], place: RunFolder) -> list[Panel]:
    """Each image with its truth, the baseline's answer and the method's."""
    wanted: dict[str, set[Image]] = {}
    for case in cases:
        for key in (case.job, case.baseline_job):
            wanted.setdefault(key, set()).add((case.target, case.site, case.case))
    drawn = {key: answers_again(table.run.jobs[key], place, names) for key, names in wanted.items()}
    found = []
    for case in cases:
        name = (case.target, case.site, case.case)
        image, truth, before = drawn[case.baseline_job][name]
        after = drawn[case.job][name][2]
        shown = {table.run.baseline: (before, case.baseline / 100), case.method: (after, case.dice / 100)}
        found.append(Panel(f"{case.site}/{case.case}", image, truth, shown))
    return found


def answers_again(job: object, place: RunFolder, wanted: Collection[Image]) -> Mapping[Image, Drawn]:
    """Of each wanted image the picture, the true labels and the labels the scoring's method gave."""
    assert isinstance(job, Scoring)
    opened = open_scoring(job, place)
    places = {name: iter(cases) for name, cases in opened.orders.items()}
    found: dict[Image, Drawn] = {}
    for target, answer in opened.answers():
        for labels in answer.logits.argmax(1).cpu().numpy().astype(np.uint8):
            site, case = next(places[target])
            if (name := (target, site.name, case.name)) in wanted:
                arrays = load_arrays([case], opened.benchmark)
                assert arrays.masks is not None
                found[name] = arrays.images[0].movedim(0, -1).numpy(), arrays.masks[0].numpy(), labels
        if len(found) == len(wanted):
            break
    return found
