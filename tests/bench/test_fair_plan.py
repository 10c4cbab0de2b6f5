"""The plan of the comparison of all methods: what the two shipped files ask for, on sites of the real sizes."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ttdg.adaptation import METHODS
from ttdg.bench.config import read_config
from ttdg.bench.jobs import Scoring, Training, Tuning, key_of
from ttdg.bench.plan import plan_jobs
from ttdg.bench.run_file import RunPlan
from ttdg.data import Case, DataSummary, Site, load_benchmark

ROOT = Path(__file__).parents[2]
SIZES = {
    "polyp": {"bkai": 1000, "clinicdb": 612, "etis": 196, "kvasir": 1000},
    "fundus": {"drishti": 101, "refuge": 400, "rimone": 159},
}
MAIN = "every method, tuned"


@cache
def plan_of(name: str) -> RunPlan:
    """The plan of a file, over sites with as many images as the real ones have at most."""
    sites = {
        site: Site(
            site, tuple(Case(f"{n:04}", Path(f"{n}.png"), Path(f"{n}.png"), f"{n:04}") for n in range(count))
        )
        for site, count in SIZES[name].items()
    }
    config = read_config(ROOT / "experiments" / f"{name}-methods.yaml")
    data = DataSummary(
        load_benchmark(config.benchmark).to_dict(), sites, {site: f"print of {site}" for site in sites}
    )
    planned = plan_jobs(config, data)
    return RunPlan(config.name, config.baseline, config.harm, {}, planned.jobs, planned.entries)


def scorings(run, experiment):
    return [(entry.label, run.jobs[entry.job]) for entry in run.entries if entry.experiment == experiment]


@pytest.fixture(params=["polyp", "fundus"])
def run(request):
    return plan_of(request.param)


def test_every_method_has_a_tuned_row_with_and_without_flips_for_every_target_and_seed(run):
    rows = scorings(run, MAIN)
    labels, targets = {label for label, _ in rows}, {job.targets[0].name for _, job in rows}
    for name, method in METHODS.items():
        assert name in labels
        assert (f"{name} + flips" in labels) == (not method.flips)
    counts = Counter(label for label, _ in rows)
    assert {*counts.values()} == {3 * len(targets)}
    assert {job.batch for _, job in rows} == {4}
    assert {job.limit for _, job in rows} == {400}
    assert "tent, as published" in labels
    assert "tent, as published + flips" not in labels


def test_batches_of_one_and_sixteen_images_have_the_same_rows(run):
    rows = scorings(run, "every method, tuned, one image and sixteen images at a time")
    assert {label for label, _ in rows} == {label for label, _ in scorings(run, MAIN)}
    assert {(job.batch, job.limit) for _, job in rows} == {(1, 200), (16, 200)}


def test_methods_published_as_continual_meet_all_other_sites_in_one_stream(run):
    rows = scorings(run, "continual, tuned")
    continual = {name for name, method in METHODS.items() if method.reset == "continual"}
    assert {job.method for _, job in rows} == {"source", *continual}
    sites = {site for job in run.jobs.values() if isinstance(job, Scoring) for site in job.sites}
    for _, job in rows:
        trained = run.jobs[job.training].sources
        assert {target.name for target in job.targets} == sites - trained.keys()


def test_methods_on_batch_statistics_also_run_on_a_mixture_and_on_those_of_the_source(run):
    labels = {label for label, _ in scorings(run, "other BatchNorm statistics, tuned")}
    assert {"tent", "tent, mix statistics", "tent, eval statistics", "source", "alpha-bn"} <= labels


def test_every_search_stays_within_its_budget_and_has_the_batch_size_and_stream_of_its_rows(run):
    for job in run.jobs.values():
        if isinstance(job, Tuning):
            assert job.search["hospitals"] * job.search["images"] <= 600
        if isinstance(job, Scoring) and job.tuning:
            search = run.jobs[job.tuning].search
            assert search["batch"] == job.batch
            assert search.get("stream", "online") == (job.stream if METHODS[job.method].memory else "online")


def test_the_source_models_are_those_of_the_study_of_learning_a_site(run):
    name = run.name.removesuffix("-methods")
    config = read_config(ROOT / "experiments" / f"learn-{name}.yaml")
    assert config.recipe == read_config(ROOT / "experiments" / f"{name}-methods.yaml").recipe
    models = [job for job in run.jobs.values() if isinstance(job, Training)]
    assert len({key_of(job) for job in models}) == 3 * 2 * len(
        SIZES[name]
    )  # seeds, one source or all but one
