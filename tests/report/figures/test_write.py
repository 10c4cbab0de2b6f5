import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.checkpoints import load
from ttdg.errors import UserError
from ttdg.evaluation.records import write_rows
from ttdg.networks import level_channels
from ttdg.prior import prior_for
from ttdg.report.aggregate import image_dice
from ttdg.report.figures import answers
from ttdg.report.figures.curves import find_curves
from ttdg.report.figures.explanations import draw_pairs, grad_cam, last_stage, matched_pairs
from ttdg.report.figures.write import segmentation_panels, write_curves, write_model_figures

COSTS = {
    "images": 1, "batches": 1, "forwards": 1, "backwards": 0, "adapting_seconds": 1.0, "peak_bytes": 1,
}  # fmt: skip


@pytest.fixture
def gridded(started, place):
    """A grid over α and one over the batch; Dice is 50 + 10·α + batch, 2·batch milliseconds per image."""
    grid = {"name": "α", "protocol": "leave-one-out", "methods": ["source", {"method": "alpha-bn",
            "grid": {"alpha": [0.5, 0.25, 1.0]}}]}  # fmt: skip
    sizes = {"name": "size", "protocol": "leave-one-out", "methods": ["norm"], "batches": [2, 8, 4]}
    run = started(grid, sizes, seeds=[0, 1])
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            dice = 0.5 + 0.1 * job.options.get("alpha", 0) + 0.01 * job.batch + 0.02 * job.seed
            target = job.targets[0].name
            about = {**COSTS, "key": key, "adapting_seconds": 0.002 * job.batch, "dice": {target: dice}}
            write_rows(place.record(key), about, [(target, target, "a", "disc", "dice", dice)])
    return place.run


def test_a_curve_is_what_differs_in_one_number_alone(gridded):
    found = {(axis.experiment, axis.setting): axis.points for axis in find_curves(read_table(gridded))}
    assert set(found) == {("α", "alpha"), ("size", "batch")}
    assert [point.value for point in found["α", "alpha"]] == [0.25, 0.5, 1.0]
    assert [point.dice for point in found["size", "batch"]] == pytest.approx([53, 55, 59])
    assert [point.milliseconds for point in found["size", "batch"]] == pytest.approx([4, 8, 16])


def test_two_rows_that_merely_differ_in_an_option_are_no_curve(started, place):
    rows = ["alpha-bn", {"method": "alpha-bn", "name": "other", "options": {"alpha": 0.25}}]
    run = started({"name": "rows", "protocol": "leave-one-out", "methods": rows})
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            about = {**COSTS, "key": key, "dice": {job.targets[0].name: 0.5}}
            write_rows(place.record(key), about, [("a", "a", "a", "disc", "dice", 0.5)])
    assert not find_curves(read_table(place.run))


def test_curves_are_drawn(gridded, tmp_path):
    paths = write_curves(read_table(gridded), tmp_path)
    assert sorted(path.name for path in paths) == [
        "size-norm-online-batch.png",
        "α-alpha-bn-online-alpha.png",
    ]
    assert all(Image.open(path).width > 200 for path in paths)


def test_curves_of_other_views_are_other_curves_with_other_files(started, place, tmp_path):
    entry = {"method": "alpha-bn", "grid": {"alpha": [0.5, 1.0]}}
    run = started(
        {"name": "v", "protocol": "leave-one-out", "methods": ["source", entry], "views": ["plain", "flips"],
         "batches": [2, 4]}
    )  # fmt: skip
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            dice = 0.2 * (job.views == "flips") + 0.1 * job.options.get("alpha", 0)
            target = job.targets[0].name
            about = {**COSTS, "key": key, "dice": {target: dice}}
            write_rows(place.record(key), about, [(target, target, "a", "disc", "dice", dice)])
    table = read_table(place.run)
    found = {
        axis.method: [p.dice for p in axis.points] for axis in find_curves(table) if axis.setting == "alpha"
    }
    assert found == {
        f"alpha-bn (online, batch={batch}, views={views})": pytest.approx([first, first + 5])
        for batch in (2, 4)
        for views, first in (("plain", 5), ("flips", 25))
    }
    paths = write_curves(table, tmp_path)
    assert len(set(paths)) == len(paths) == len(find_curves(table))


def test_dice_and_time_are_drawn_against_the_size_of_the_universe(started, place, inline, tmp_path):
    """From yaml to figure: each size has a model of its own, whose prior has so many points a tissue."""
    entry = {"method": "universe-gradient", "grid": {"recipe.points": [8, 40]}}
    run = started(
        {"name": "universe size", "protocol": "leave-one-out", "targets": ["west"], "methods": [entry],
         "limit": 2, "batches": [2]}, recipe={"encoder": "light", "steps": 1, "batch": 2},
    )  # fmt: skip
    ended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert not ended.failed, ended.failed
    table = read_table(place.run)
    (axis,) = find_curves(table)
    assert axis.setting == "recipe.points"
    assert [point.value for point in axis.points] == [8, 40]
    assert all(point.milliseconds > 0 and 0 <= point.dice <= 100 for point in axis.points)
    sizes = {len(load(place.model(job.training)).parts["prior"].tensors["universe"])
             for job in run.jobs.values() if isinstance(job, Scoring)}  # fmt: skip
    assert sizes == {3 * 8, 3 * 40}
    assert [path.name for path in write_curves(table, tmp_path)] == [
        "universe-size-universe-gradient-online-recipe-points.png"
    ]


def test_tuned_options_are_no_axis_and_do_not_split_one(started, place):
    """What was chosen differs from split to split; the curve over batches is still one."""
    tuned = {
        "name": "t",
        "protocol": "leave-one-out",
        "methods": ["alpha-bn"],
        "batches": [2, 4],
        "tuned": True,
    }
    run = started(tuned, tune={})
    for number, (key, job) in enumerate(run.jobs.items()):
        if isinstance(job, Scoring):
            name = job.targets[0].name
            about = {
                **COSTS,
                "key": key,
                "images": 1,
                "adapting_seconds": 1.0,
                "dice": {name: 0.5},
                "options": {"alpha": number},
            }
            write_rows(place.record(key), about, [(name, name, "a", "disc", "dice", 0.5)])
    assert [(axis.setting, len(axis.points)) for axis in find_curves(read_table(place.run))] == [("batch", 2)]


class Spot(nn.Module):
    """Logits that are the brightness, seen through one deep map."""

    def __init__(self):
        super().__init__()
        self.stage = nn.AvgPool2d(4)
        self.head = nn.Upsample(scale_factor=4)

    def encode(self, images):
        return (self.stage(images.mean(1, keepdim=True)),)

    def forward(self, images):
        (deep,) = self.encode(images)
        return torch.cat([-self.head(deep), self.head(deep)], 1)


def test_the_map_lights_up_where_the_evidence_is():
    images = torch.zeros(2, 3, 16, 16)
    images[0, :, 0:4, 0:4] = 1
    images[1, :, 8:12, 12:16] = 1
    network = Spot()
    assert last_stage(network, images) == "stage"
    maps = grad_cam(network, images, 1)
    assert maps.shape == (2, 16, 16)
    assert np.unravel_index(maps[0].argmax(), (16, 16)) < (4, 4)
    y, x = np.unravel_index(maps[1].argmax(), (16, 16))
    assert 8 <= y < 12
    assert x >= 12


class Never(Spot):
    """A network that never predicts label 1."""

    def forward(self, images):
        (deep,) = self.encode(images)
        return torch.cat([self.head(deep) + 1, self.head(deep)], 1)


def test_a_label_that_is_predicted_nowhere_is_explained_over_all_pixels():
    images = torch.zeros(1, 3, 16, 16)
    images[0, :, 4:8, 8:12] = 1
    (found,) = grad_cam(Never(), images, 1)
    assert (found.min(), found.max()) == (0, 1)
    y, x = np.unravel_index(found.argmax(), found.shape)
    assert (y // 4, x // 4) == (1, 2)


def test_the_last_stage_of_our_networks_is_found_by_what_it_gives(disc_model):
    assert last_stage(disc_model.network, torch.zeros(1, 3, 64, 64)) == "unet.encoder.stages.4"


@pytest.mark.parametrize("with_prior", [True, False])
def test_an_image_is_matched_to_itself_node_by_node(disc_model, with_prior):
    torch.manual_seed(0)
    prior = prior_for(level_channels(disc_model.network), 2, points=40, per_tissue=12).eval()
    image = torch.rand(1, 3, 64, 64)
    found = matched_pairs(disc_model.network, prior, image.repeat(2, 1, 1, 1), with_prior)
    assert len(found.first) > 5
    assert np.array_equal(found.first, found.second)
    assert found.share == 1.0
    assert draw_pairs([np.zeros((64, 64, 3))] * 2, {"same": found}).startswith(b"\x89PNG")


def test_grids_and_maps_of_chosen_methods_are_drawn_from_the_run(finished, tmp_path):
    folder, _ = finished
    paths = write_model_figures(read_table(folder), folder, ["source", "norm"], tmp_path)
    assert [path.name for path in paths] == [
        "segmentation-0.png",
        "grad-cam-0.png",
    ]  # these models have no prior
    with pytest.raises(UserError, match="did you mean 'norm'"):
        write_model_figures(read_table(folder), folder, ["nrom"], tmp_path)


def test_a_case_that_two_sites_name_alike_is_shown_with_the_dice_of_its_own_site(started, place, monkeypatch):
    """Of a mixture, the image with the median Dice is at the second site."""
    fields = {"name": "mixture", "protocol": "single-to-mixture", "sources": ["west"], "methods": ["source"]}
    run = started(fields)
    (key,) = (entry.job for entry in run.entries)
    scores = {("east", "00"): 0.2, ("east", "01"): 0.9, ("south", "00"): 0.8}
    rows = [("east+south", *name, "disc", "dice", dice) for name, dice in scores.items()]
    write_rows(place.record(key), {**COSTS, "key": key, "images": len(rows)}, rows)
    shown = np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8)
    monkeypatch.setattr(answers, "rerun_answers", lambda job, folder, names: dict.fromkeys(names, shown))
    table = read_table(place.run)
    (panel,) = segmentation_panels(table, image_dice(table), place, ["source"])
    assert panel.case == "south/00"
    assert panel.answers["source"][1] == pytest.approx(0.8)
