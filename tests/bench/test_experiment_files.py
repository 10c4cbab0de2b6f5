"""The shipped experiments keep the source models of their records; what every method is offered when it is tuned."""

import os
import re
from pathlib import Path

import pytest
import yaml

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.bench import execute
from ttdg.bench.config import read_config
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Training, key_of
from ttdg.bench.plan import plan_jobs
from ttdg.bench.prepare import check_baseline
from ttdg.bench.rows import recipe_of_job
from ttdg.bench.run_file import read_run
from ttdg.data import (
    Case,
    DataSummary,
    Site,
    Sources,
    find_benchmark_folder,
    find_sites,
    load_benchmark,
    summarise_data,
    synthetic,
)
from ttdg.evaluation.search_space import configurations

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "docs" / "records").glob("*/run.json"))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_is_small_and_has_the_defaults_in_it(method):
    offered, usual = configurations(method), defaults(method)
    assert 1 <= len(offered) <= 6 + 1 + len(METHODS[method].published_for)
    assert any(all(usual[name] == value for name, value in options.items()) for options in offered)
    for options in offered:
        assert {name: checked(method, name, value) for name, value in options.items()} == options


@pytest.mark.parametrize("name", [path.parent.name for path in RECORDED])
def test_an_experiment_asks_for_the_source_models_of_its_records(name):
    run = read_run(ROOT / "docs" / "records" / name)
    files = [ROOT / "experiments" / folder / f"{run.name}.yaml" for folder in ("earlier", "")]
    text = next(path for path in files if path.is_file()).read_text()
    requested = recipe_of_job(yaml.safe_load(text)["recipe"])
    trainings = {key: job for key, job in run.jobs.items() if isinstance(job, Training)}
    # fields that differ by machine, by seed or in a grid
    varied = {"encoder_weights", "seed", "edges", *re.findall(r"recipe\.(\w+)", text)}
    same = {field: value for field, value in requested.items() if field not in varied}
    for key, job in trainings.items():
        own = {field: value for field, value in job.recipe.items() if field in varied}
        assert key_of(Training(job.benchmark, job.sources, same | own)) == key


SITES = {
    "polyp": ["bkai", "clinicdb", "etis", "kvasir"],
    "fundus": ["drishti", "origa", "papila"],
    "prostate": ["bidmc", "runmc", "ucl", "prostatex"],
    "vessels": ["chase", "drive", "stare"],
    "pacs": ["art_painting", "cartoon", "photo", "sketch"],
}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "experiments").glob("*.yaml")))
def test_every_shipped_experiment_can_be_planned_and_has_its_baseline(name):
    config = read_config(ROOT / "experiments" / name)
    names = SITES[config.benchmark] if config.benchmark else synthetic.SITES
    cases = [Case(f"{i}", ROOT, ROOT, f"{i}", label="dog") for i in range(20)]
    sites = {site: Site(site, tuple(cases)) for site in names}
    described = load_benchmark(config.benchmark or f"synthetic-{config.synthetic.variant}").to_dict()
    planned = plan_jobs(config, DataSummary(described, sites, dict.fromkeys(sites, "")))
    check_baseline(config, planned)


def test_a_recorded_job_trains_with_the_recipe_it_was_recorded_with(monkeypatch, tmp_path):
    jobs = read_run(RECORDED[0].parent).jobs.values()
    job = next(job for job in jobs if isinstance(job, Training))
    received = []
    monkeypatch.setattr(execute, "train", lambda *arguments, **more: received.append(arguments[3]))
    monkeypatch.setattr(execute, "_sources", lambda *arguments: Sources({}, {}, {}))
    folder = RunFolder(tmp_path, tmp_path, tmp_path, "cpu", 1, None)
    execute._train(job, folder)
    (recipe,) = received
    assert recipe.average == 0
    assert recipe.to_dict() == {**job.recipe, "encoder_weights": None}


@pytest.mark.parametrize("name", ["prostate", "vessels", "pacs"])
def test_experiments_on_real_data_name_a_built_in_benchmark_and_plan_the_sites_they_find(name):
    if not os.environ.get("TTDG_DATA"):
        pytest.skip("TTDG_DATA is not set; the real images are not part of the repository")
    config = read_config(ROOT / "experiments" / f"{name}.yaml")
    root = find_benchmark_folder(None, config.benchmark)
    data = summarise_data(load_benchmark(config.benchmark), find_sites(root))
    planned = plan_jobs(config, data)
    assert {entry.experiment for entry in planned.entries} == {each.name for each in config.experiments}


@pytest.mark.parametrize("name", ["source-fundus", "source-polyp", "parts", "smoke"])
def test_experiments_measured_with_the_earlier_default_recipe_state_it(name):
    recipe = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text())["recipe"]
    assert (recipe["augmentation"], recipe["average"]) == ("standard", 0)
