"""A run small enough for a second: discs, a light network, one step of training."""

import pytest

from ttdg.data import find_sites, load_benchmark
from ttdg.experiment.attempt import attempt
from ttdg.experiment.config import parse_config
from ttdg.experiment.place import Place
from ttdg.experiment.plan import plan, survey
from ttdg.experiment.run import run_jobs
from ttdg.experiment.runfile import Run, write_run

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
EXPERIMENT = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "norm"]}


@pytest.fixture(scope="session")
def world(discs):
    return survey(load_benchmark(None, discs), find_sites(discs))


@pytest.fixture
def planned(world):
    """`planned(**fields)` is the run of a config with one small experiment unless others are given."""

    def make(*experiments, **fields):
        wanted = {"name": "t", "recipe": RECIPE, "experiments": list(experiments) or [EXPERIMENT], **fields}
        config = parse_config(wanted, "t.yaml")
        jobs = plan(config, world)
        return Run(config.name, config.baseline, config.harm, config.model_dump(), jobs.jobs, jobs.entries)

    return make


@pytest.fixture
def place(tmp_path, discs):
    return Place(tmp_path / "run", discs, tmp_path / "run" / "models")


@pytest.fixture
def started(planned, place):
    """A run with its `run.json`, ready for `run_jobs`."""

    def make(*experiments, **fields):
        run = planned(*experiments, **fields)
        write_run(place.run, run)
        return run

    return make


class Inline:
    """An executor in this very process, for tests: a job runs when its end is waited for."""

    def __init__(self, place, slots=1):
        self.place, self.slots, self.queue, self.order = place, slots, [], []

    def submit(self, key, spec):
        self.queue.append((key, spec))

    def wait(self, seconds):
        key, spec = self.queue.pop(0)
        self.order.append(key)
        return [attempt(key, spec, self.place)]

    def close(self):
        self.queue.clear()


@pytest.fixture(scope="session")
def here():
    """The class, for tests that need more than one."""
    return Inline


@pytest.fixture
def inline(place):
    return Inline(place)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, discs, world):
    """A run of two methods and two seeds at every site, done: (folder, run). Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = EXPERIMENT | {"instances": True, "surfaces": True}
    fields = {"name": "t", "recipe": RECIPE, "seeds": [0, 1], "experiments": [experiment]}
    config = parse_config(fields, "t.yaml")
    jobs = plan(config, world)
    run = Run(config.name, config.baseline, config.harm, config.model_dump(), jobs.jobs, jobs.entries,
              str(discs), str(folder / "models"))  # fmt: skip
    write_run(folder, run)
    place = Place(folder, discs, folder / "models")
    ended = run_jobs(dict(run.jobs), place, lambda: Inline(place))
    assert not ended.failed, ended.failed
    return folder, run
