"""Searches of options that another run has finished are taken over, if they are provably the same."""

import re
import shutil
from dataclasses import replace

import pytest
import yaml

from ttdg.bench import execute as working
from ttdg.bench.console import progress_display
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, Tuning, key_of
from ttdg.bench.other_runs.reuse import reuse_records
from ttdg.bench.other_runs.reuse_searches import reuse_searches
from ttdg.bench.prepare import prepare_run
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.results import pack_run, read_table
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import RunPlan, write_run
from ttdg.evaluation.tuned_options import pack_tuned, searches

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
SEARCH = {"hospitals": 1, "images": 2, "batch": 2}
MAIN = {
    "name": "main", "protocol": "leave-one-out", "methods": ["source", "alpha-bn"], "tuned": True,
    "targets": ["west"],
}  # fmt: skip
FIELDS = {"name": "t", "recipe": RECIPE, "tune": SEARCH, "seeds": [0], "experiments": [MAIN]}


@pytest.fixture(scope="module")
def planned_from(discs, tmp_path_factory):
    """`planned_from(out, records, **fields)`: prepare a run of one tuned row, as `ttdg bench` does."""

    def make(out, *records, **fields):
        config = tmp_path_factory.mktemp("config") / "t.yaml"
        config.write_text(yaml.safe_dump(FIELDS | fields))
        return prepare_run(RunRequest(config, out, discs, device="cpu", records=records))

    return make


@pytest.fixture(scope="module")
def done(planned_from, here, tmp_path_factory):
    """A finished run with a tuned row. Not to be changed."""
    ready = planned_from(tmp_path_factory.mktemp("done"))
    assert not run_jobs(dict(ready.jobs), ready.folder, lambda: here(ready.folder)).failed
    return ready


@pytest.fixture(params=["run", "packed"])
def records(request, done, tmp_path):
    """The finished run, as a folder without its models and as packed records."""
    if request.param == "packed":
        pack_run(read_table(done.folder.run), tmp_path / "records")
        pack_tuned([done.folder.run], tmp_path / "records")
        return tmp_path / "records"
    ignored = shutil.ignore_patterns("models", "parts")
    return shutil.copytree(done.folder.run, tmp_path / "records", ignore=ignored)


def tunings(ready):
    return {key: job for key, job in ready.jobs.items() if isinstance(job, Tuning)}


def changed(records, change):
    """Change the only search of some records."""
    (path,) = [*records.glob("tuned.yaml"), *records.glob("tuned/*.yaml")]
    stored = yaml.safe_load(path.read_text())
    change(next(iter(stored.values())) if path.parent == records else stored)
    path.write_text(yaml.safe_dump(stored))


def test_a_finished_search_is_not_made_again_for_a_new_row(
    planned_from, records, done, here, tmp_path, monkeypatch
):
    """The averaged answers are new; they have the options that were chosen without views."""
    monkeypatch.setattr(working, "tune", lambda *_: pytest.fail("it was searched already"))
    more = [MAIN | {"views": ["plain", "flips"]}]
    ready = planned_from(tmp_path / "new", records, experiments=more)
    assert ready.remarks == ()
    assert searches(tmp_path / "new") == searches(done.folder.run)
    outcome = run_jobs(dict(ready.jobs), ready.folder, lambda: here(ready.folder))
    assert not outcome.failed
    assert outcome.left == 0
    assert len(read_table(tmp_path / "new").about) == 4


def test_a_search_with_other_settings_is_made_again_and_the_reason_is_said(planned_from, records, tmp_path):
    ready = planned_from(tmp_path / "new", records, tune=SEARCH | {"images": 3})
    assert not (tmp_path / "new" / "tuned").exists()
    assert ready.remarks == (
        f"{records}: 1 search of options (alpha-bn) cannot be taken over, because the stored ones differ in: "
        "simulated hospitals",
    )
    ready = planned_from(tmp_path / "other", records, recipe=RECIPE | {"steps": 2})
    assert [remark.partition("differ in: ")[2] for remark in ready.remarks] == ["source model"]


def test_nothing_is_said_of_searches_that_the_records_do_not_have(planned_from, records, tmp_path):
    other = [MAIN | {"methods": ["source", "tent"]}]
    ready = planned_from(tmp_path / "new", records, experiments=other)
    assert tunings(ready)
    assert ready.remarks == ()


def needed_again(done, records, folder):
    """The plan of the finished run with another seed of the tuned row, so that its search is needed."""
    again = {key: replace(job, seed=5) if isinstance(job, Scoring) else job for key, job in done.jobs.items()}
    jobs = {key_of(job): job for job in again.values()}
    assert reuse_records(records, jobs, folder) == 0
    return reuse_searches([records], jobs, folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["search"].update(images=99), "was changed: it states .* for simulated hospitals"),
        (lambda s: s.update(method="norm"), "was changed: it states other values than its key for method"),
        (lambda s: s.update(sources=["west"]), "was changed: it states .* for source sites"),
        (
            lambda s: s["trials"][0]["options"].update(alpha=7.0),
            "was changed: it states .* candidate options",
        ),
        (lambda s: s.update(chosen={"alpha": 7.0}), "was changed: it did not choose its best trial"),
        (lambda s: s.pop("trials"), "is damaged"),
    ],
)
def test_a_search_that_does_not_agree_with_its_key_is_not_taken_over(change, reason, done, records, tmp_path):
    changed(records, change)
    folder = RunFolder(tmp_path / "new", done.folder.data, tmp_path / "new" / "models")
    (remark,) = needed_again(done, records, folder)
    assert re.search(
        rf"1 search of options \(alpha-bn\) cannot be taken over, because the stored search {reason}", remark
    )
    assert not (tmp_path / "new" / "tuned").exists()


def test_a_search_for_other_weights_of_the_same_training_is_not_taken_over(done, records, tmp_path):
    folder = RunFolder(tmp_path / "new", done.folder.data, done.folder.models)
    assert needed_again(done, records, folder) == ()
    changed(records, lambda search: search.update(model="0" * 64))
    folder = replace(folder, run=tmp_path / "second")
    (remark,) = needed_again(done, records, folder)
    assert "other weights of the same training" in remark
    assert not (tmp_path / "second" / "tuned").exists()


def test_the_first_records_that_have_a_search_count_and_own_searches_are_kept(done, records, tmp_path):
    folder = RunFolder(tmp_path / "new", done.folder.data, tmp_path / "new" / "models")
    wrong = shutil.copytree(records, tmp_path / "wrong")
    changed(wrong, lambda search: search.update(method="norm"))
    assert reuse_searches([wrong, records], done.jobs, folder) == ()
    assert searches(folder.run) == searches(done.folder.run)
    (own,) = (folder.run / "tuned").glob("*.yaml")
    own.write_text(own.read_text() + "# mine\n")
    assert reuse_searches([records], done.jobs, folder) == ()
    assert own.read_text().endswith("# mine\n")


@pytest.mark.parametrize("interactive", [True, False])
def test_remarks_of_a_plan_are_printed_before_the_jobs_run(interactive, done, capsys, tmp_path):
    run = RunPlan("t", "source", 0.05, {}, {}, ())
    write_run(tmp_path, run)
    ready = PreparedRun(run, {}, done.folder, 1, 0, ("the options of tent are searched again",))
    with progress_display(interactive=interactive) as watch:
        watch(ready)
    assert "the options of tent are searched again" in capsys.readouterr().err
