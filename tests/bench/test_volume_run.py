"""A run on drawn volumes: rows of volumes, orders, and the shipped experiment."""

from pathlib import Path

import pytest

from ttdg.bench.config import parse_config, read_config
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring
from ttdg.bench.plan import plan_jobs
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import RunPlan, write_run
from ttdg.data import complete_volumes, find_sites, load_benchmark, summarise_data
from ttdg.data.synthetic.write import write_benchmark
from ttdg.evaluation.records import read_about, read_rows

ROOT = Path(__file__).parents[2]
RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
ORDERS = ("site", "volume", "shuffled-volume")


@pytest.fixture(scope="module")
def run(tmp_path_factory, here):
    """One source model and the `source` method on a target in all orders: (folder, run plan, data)."""
    folder = tmp_path_factory.mktemp("volumes")
    data = write_benchmark(folder / "data", "prostate", count=3, size=32)
    experiments = [
        {
            "name": order, "protocol": "fixed-source", "sources": ["north"], "targets": ["valley"], "batches": [4],
            "methods": ["source"], "order": order, "surfaces": True,
        }
        for order in ORDERS
    ]  # fmt: skip
    config = parse_config({"name": "t", "recipe": RECIPE, "experiments": experiments}, "t.yaml")
    planned = plan_jobs(
        config, summarise_data(load_benchmark(None, data), find_sites(data, ["north", "valley"]))
    )
    plan = RunPlan(
        "t", "source", 5.0, config.model_dump(), planned.jobs, planned.entries, str(data), str(folder / "m")
    )
    write_run(folder, plan)
    place = RunFolder(folder, data, folder / "m")
    ended = run_jobs(dict(plan.jobs), place, lambda: here(place))
    assert not ended.failed, ended.failed
    return folder, plan, data


def records(run):
    folder, plan, _ = run
    jobs = {entry.experiment: entry.job for entry in plan.entries}
    return {order: folder / "records" / f"{jobs[order]}.csv.gz" for order in ORDERS}


def test_every_volume_of_the_target_has_rows_and_the_order_changes_none_of_them(run):
    found = {
        order: {row[1:5]: row[5] for row in read_rows(path) if row[4].startswith("volume_")}
        for order, path in records(run).items()
    }
    metrics = {
        "volume_dice",
        *(f"volume_{name}_{unit}" for name in ("hd95", "assd") for unit in ("voxels", "mm")),
    }
    volumes = {f"valley-{number:04}" for number in range(3)}
    assert {key[1] for key in found["site"]} == volumes
    assert {key[3] for key in found["site"]} == metrics
    assert len(found["site"]) == len(volumes) * len(metrics) * 2
    assert found["volume"].keys() == found["shuffled-volume"].keys() == found["site"].keys()
    for key, value in found["site"].items():
        assert found["volume"][key] == pytest.approx(value, abs=1e-3), "`source` answers every order alike"


def test_batches_end_with_their_volume(run):
    site = find_sites(run[2])["valley"]
    sizes = [
        len(volume.slices) for volume in complete_volumes([(site, c) for c in site.cases], 32, spacing=False)
    ]
    about = {order: read_about(path) for order, path in records(run).items()}
    assert about["site"]["batches"] == -(-sum(sizes) // 4)
    assert about["volume"]["batches"] == sum(-(-size // 4) for size in sizes) == about["volume"]["forwards"]


def test_the_order_is_part_of_the_key(run):
    jobs = [job for job in run[1].jobs.values() if isinstance(job, Scoring)]
    assert {job.order for job in jobs} == set(ORDERS)
    assert len(jobs) == len(ORDERS)


def test_the_shipped_experiment_on_drawn_volumes_is_planned(run):
    config = read_config(ROOT / "experiments" / "prostate-synthetic.yaml")
    assert config.synthetic.variant == "prostate"
    planned = plan_jobs(config, summarise_data(load_benchmark(None, run[2]), find_sites(run[2])))
    assert {entry.experiment for entry in planned.entries} == {each.name for each in config.experiments}
