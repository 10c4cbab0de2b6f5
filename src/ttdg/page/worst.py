"""Pictures of the images behind a cell: each method's contour beside the truth. The streams run again."""

import hashlib
import threading
from pathlib import Path

from ttdg.bench.results import import_polars
from ttdg.errors import UserError
from ttdg.page.runs import OpenRun
from ttdg.report.figures.answers import folder_with_models, rerun_answers
from ttdg.report.figures.panels import Panel, draw_panels

SECONDS = 120.0  # that all methods may take; otherwise only the baseline and the chosen method are drawn
COUNT = 4  # images of a picture
LOCK = threading.Lock()  # one picture at a time


def drawing_plan(run: OpenRun, group: int, method: str, column: str) -> tuple[dict[str, str], float]:
    """Return the jobs by method that a picture needs, and the seconds that they took in the run."""
    pl = import_polars()
    worst = run.cell_images(group, method, column)
    if not worst:
        raise UserError("the run has no images in this cell")
    lines = run.in_column(group, column)
    own = lines.filter(pl.col("job") == worst[0]["job"]).row(0, named=True)
    same = lines.filter(
        (pl.col("sources") == own["sources"])
        & (pl.col("target") == own["target"])
        & (pl.col("seed") == own["seed"])
    )
    jobs = {
        str(name): str(job)
        for name, job in same.select("method", "job").unique(maintain_order=True).iter_rows()
    }
    chosen = {name: job for name, job in jobs.items() if name in (run.table.run.baseline, method)}
    cost = {name: float(run.table.about[job]["all_seconds"]) for name, job in jobs.items()}
    wanted = jobs if sum(cost.values()) <= SECONDS else chosen
    return wanted, sum(cost[name] for name in wanted)


def draw_worst(run: OpenRun, folder: Path, group: int, method: str, column: str, cache: Path) -> Path:
    """Draw the worst images of a cell and return the picture; it is drawn once."""
    jobs, _ = drawing_plan(run, group, method, column)
    place = folder_with_models(run.table.run, folder)
    if place is None:
        raise UserError("the run's images or models are missing; look at it on the machine that made the run")
    first = run.cell_images(group, method, column)[0]
    worst = [
        line for line in run.cell_images(group, method, column)
        if (line["sources"], line["target"]) == (first["sources"], first["target"])
    ][:COUNT]  # fmt: skip
    name = hashlib.sha256(
        "\n".join([str(folder.resolve()), column, method, *jobs.values()]).encode()
    ).hexdigest()
    path = cache / f"{name}.png"
    with LOCK:
        if not path.exists():
            names = [(str(line["target"]), str(line["site"]), str(line["case"])) for line in worst]
            answers = {
                label: rerun_answers(run.table.run.jobs[job], place, set(names))
                for label, job in jobs.items()
            }
            panels = [
                Panel("/".join(image[1:]), *answers[method][image][:2],
                      {label: (found[image][2], None) for label, found in answers.items()}, f"{image[2]}")
                for image in names
            ]  # fmt: skip
            largest = max(int(answer.max()) for panel in panels for answer, _ in panel.answers.values())
            count = 1 + max(largest, *(panel.largest_label for panel in panels))
            draw_panels(path, panels, [str(label) for label in range(count)])
    return path
