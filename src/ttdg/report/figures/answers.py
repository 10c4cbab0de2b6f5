"""Predictions of a scoring for chosen images, made again with the run's data and models."""

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
from ttdg.report.worst_cases import WorstCase

ImageName = tuple[str, str, str]  # target, site, case
ImageTruthAnswer = tuple[np.ndarray, np.ndarray, np.ndarray]  # image, truth, answer


def folder_with_models(run: RunPlan, folder: Path) -> RunFolder | None:
    """Return the run's folder if its data and models exist, else None."""
    run_folder = RunFolder(folder.resolve(), Path(run.data), Path(run.models))
    return run_folder if run.data and run_folder.data.is_dir() and run_folder.models.is_dir() else None


def worst_panels(table: RunTable, cases: Sequence[WorstCase], folder: RunFolder) -> list[Panel]:
    """Return each case with its true labels and the predictions of the baseline and of the method."""
    by_job: dict[str, set[ImageName]] = {}
    for case in cases:
        for key in (case.job, case.baseline_job):
            by_job.setdefault(key, set()).add((case.target, case.site, case.case))
    predictions = {key: rerun_answers(table.run.jobs[key], folder, names) for key, names in by_job.items()}
    panels = []
    for case in cases:
        name = (case.target, case.site, case.case)
        image, truth, before = predictions[case.baseline_job][name]
        after = predictions[case.job][name][2]
        shown = {table.run.baseline: (before, case.baseline / 100), case.method: (after, case.dice / 100)}
        panels.append(Panel(f"{case.site}/{case.case}", image, truth, shown))
    return panels


def rerun_answers(
    job: object, folder: RunFolder, names: Collection[ImageName]
) -> Mapping[ImageName, ImageTruthAnswer]:
    """Run a scoring until the named images are predicted; return image, true labels and predicted labels."""
    assert isinstance(job, Scoring)
    opened = open_scoring(job, folder)
    orders = {name: iter(images) for name, images in opened.orders.items()}
    result: dict[ImageName, ImageTruthAnswer] = {}
    for target, answer in opened.answers():
        for labels in answer.logits.argmax(1).cpu().numpy().astype(np.uint8):
            site, case = next(orders[target.name])
            if (name := (target.name, site.name, case.name)) in names:
                arrays = load_arrays([case], opened.benchmark)
                assert arrays.masks is not None
                result[name] = arrays.images[0].movedim(0, -1).numpy(), arrays.masks[0].numpy(), labels
        if len(result) == len(names):
            break
    return result
