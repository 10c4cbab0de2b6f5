"""Options chosen as part of a run: once a split, on sources alone, for every seed alike."""

import shutil
from dataclasses import replace

import pytest
import yaml

from ttdg.bench import execute as working
from ttdg.bench.config import parse_config
from ttdg.bench.execute import execute_job, score_job
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, Tuning
from ttdg.bench.plan import plan_jobs
from ttdg.bench.results import pack_run, read_table, select_experiments
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import RunPlan, write_run
from ttdg.bench.verification.rerun import verify_run
from ttdg.errors import UserError
from ttdg.evaluation.records import as_text, read_about, read_rows
from ttdg.evaluation.tuned_options import choices_for, chosen, pack_tuned
from ttdg.report.comparison import report_tables
from ttdg.report.tuned_tables import tuned_tables
from ttdg.report.write import write_report

SEARCH = {"hospitals": 1, "images": 2, "batch": 2}
TUNED = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "alpha-bn"], "tuned": True}
RECIPE = {"encoder": "light", "steps": 15, "batch": 4, "optimiser": "adamw", "lr": 0.01, "universe": 0.0}


def of(kind, run):
    return {key: job for key, job in run.jobs.items() if isinstance(job, kind)}


def rows_of(place, run):
    return {
        key: str([row for row in read_rows(place.record(key)) if row[4] != "seconds"])
        for key in of(Scoring, run)
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory, discs, world, here):
    """A run with tuned rows, from yaml to records: (run, place). Not to be changed."""
    folder = tmp_path_factory.mktemp("tuned")
    fields = {"name": "t", "recipe": RECIPE, "tune": SEARCH, "experiments": [{**TUNED, "seeds": [1]}]}
    config = parse_config(fields, "t.yaml")
    jobs = plan_jobs(config, world)
    run = RunPlan(config.name, config.baseline, config.harm, config.model_dump(), jobs.jobs, jobs.entries,
              str(discs), str(folder / "models"))  # fmt: skip
    write_run(folder, run)
    place = RunFolder(folder, discs, folder / "models")
    ended = run_jobs(dict(run.jobs), place, lambda: here(place))
    assert not ended.failed, ended.failed
    return run, place


def test_what_was_chosen_is_written_with_every_trial_and_used(done):
    run, place = done
    for key, job in of(Tuning, run).items():
        written = yaml.safe_load(place.tuned(key).read_text())
        sources = run.jobs[job.training].sources
        assert written["sources"] == list(sources)
        planned = [trial["options"] for trial in written["trials"] if not trial.get("added")]
        assert planned == list(job.configurations)
        assert 0 <= len(written["trials"]) - len(planned) <= 3
        assert written["dice"] == max(trial["dice"] for trial in written["trials"])
        assert written["chosen"] in [trial["options"] for trial in written["trials"]]
        assert (written["search"], written["found"]) == (job.search, {1: 2})
        assert 1 <= written["distinct"][1] <= 2
        assert written["error"] >= 0
    for key, job in of(Scoring, run).items():
        options = read_about(place.record(key))["options"]
        assert options == (chosen(place.tuned(job.tuning)) if job.tuning else {})
        alike = replace(job, options=options, tuning=None)
        again = [
            (*row[:5], float(as_text(row[5]) or "nan"))
            for row in score_job(alike, place)[1]
            if row[4] != "seconds"
        ]
        assert str(again) == rows_of(place, run)[key]
    used = {str(read_about(place.record(key))["options"]) for key in of(Scoring, run)}
    assert used != {"{}"}


def test_a_second_call_tunes_nothing(done, monkeypatch):
    run, place = done
    monkeypatch.setattr(working, "tune", lambda *_: pytest.fail("it was tuned already"))
    for job in of(Tuning, run).values():
        execute_job(job, place)
    again = run_jobs(dict(run.jobs), place, lambda: pytest.fail("nothing is to be run"))
    assert again.found == len(run.jobs)


def test_a_tuning_never_reads_a_target(done, tmp_path):
    """The target's files are rubbish, and the choice is the same, trial by trial."""
    run, place = done
    shutil.copytree(place.data, tmp_path / "data")
    for key, job in of(Tuning, run).items():
        (target,) = {"east", "south", "west"} - set(run.jobs[job.training].sources)
        for path in (tmp_path / "data" / target).rglob("*.png"):
            path.write_bytes(b"no picture")
        blind = replace(place, data=tmp_path / "data", run=tmp_path / "blind")
        execute_job(job, blind)
        texts = [yaml.safe_load(p.tuned(key).read_text())["trials"] for p in (place, blind)]
        one, two = ([{**trial, "seconds": 0} for trial in text] for text in texts)
        assert one == two
        shutil.rmtree(tmp_path / "data" / target)
        shutil.copytree(place.data / target, tmp_path / "data" / target)


def test_killed_at_random_points_it_ends_with_the_same_records(done, tmp_path, here, killed_at_random_writes):
    """The jobs of one split, of the three."""
    run, place = done
    split = next(job.training for job in of(Tuning, run).values())
    run = replace(
        run, jobs={k: job for k, job in run.jobs.items() if split in (k, getattr(job, "training", None))}
    )
    wild = replace(place, run=tmp_path / "wild", models=tmp_path / "wild" / "models")
    assert killed_at_random_writes(lambda: run_jobs(dict(run.jobs), wild, lambda: here(wild)), 8) >= 2
    assert rows_of(wild, run) == rows_of(place, run)
    assert not list((wild.run / "tuned").glob(".*"))


def test_the_report_lists_what_was_chosen_and_a_pack_carries_it(done, tmp_path):
    run, place = done
    table = read_table(place.run)
    mine = report_tables(table)[-1]
    assert mine.title == "main: tuned options"
    assert {*mine.header} == {"method", "east", "south", "west"}
    assert [row[0].text for row in mine.rows] == ["alpha-bn"]
    assert all(cell.text.startswith("alpha ") for cell in mine.rows[0][1:])
    assert "tuning streams: 1 hospitals, 2 images each (" in mine.note
    assert "at batch 2" in mine.note
    for key, job in of(Tuning, run).items():
        (target,) = {"east", "south", "west"} - set(run.jobs[job.training].sources)
        trials = [trial["dice"] for trial in yaml.safe_load(place.tuned(key).read_text())["trials"]]
        cell = dict(zip(mine.header, mine.rows[0], strict=True))[target]
        assert f"({max(trials) - min(trials):.2f}" in cell.text
    pack_run(select_experiments(table, ["main"]), tmp_path / "packed")
    without = report_tables(read_table(tmp_path / "packed"))[-1]
    assert [cell.text.partition(" (")[0] for cell in mine.rows[0]] == [cell.text for cell in without.rows[0]]
    assert "1 hospitals, at most 2 images each, at batch 2" in without.note
    pack_tuned([place.run], tmp_path / "packed")
    assert report_tables(read_table(tmp_path / "packed"))[-1] == mine
    write_report(table, place.run, tmp_path / "report", 0.0)
    for name in ("tables.md", "tables.tex", "report.html"):
        assert "tuned options" in (tmp_path / "report" / name).read_text()


def test_choices_by_chance_and_choices_at_an_edge_are_marked_and_explained(done, tmp_path):
    _, place = done
    table = read_table(place.run)
    pack_run(table, tmp_path)
    (path,) = pack_tuned([place.run], tmp_path)
    searches = yaml.safe_load(path.read_text())
    for number, search in enumerate(searches.values()):
        search.pop("edge", None)
        search["error"] = 0.0
        search["trials"] = [{"options": {"alpha": n}, "dice": 50.0 + n} for n in (0, 1)]
        search |= [{"error": 1.0}, {"edge": "alpha"}, {"error": 0.9}][number]
    path.write_text(yaml.safe_dump(searches))
    view = tuned_tables(read_table(tmp_path))[0]
    assert {cell.text.partition("(")[2] for cell in view.rows[0][1:]} == {"1.00 ≈)", "1.00 ›)", "1.00)"}
    assert "≈ not distinguishable" in view.note
    assert "› the best value still lies at an edge" in view.note


def test_every_batch_size_and_stream_has_its_own_table_of_options(done):
    run, place = done
    table = read_table(place.run)
    other = {
        key: replace(job, batch=1) if isinstance(job, Scoring) and job.targets[0].name == "east" else job
        for key, job in run.jobs.items()
    }
    views = tuned_tables(replace(table, run=replace(table.run, jobs=other)))
    title = "main: tuned options (online, reset per target; batch {})"
    assert {view.title for view in views} == {title.format(1), title.format(4)}
    assert sum(cell.text != "–" for view in views for cell in view.rows[0][1:]) == 3


def test_tuned_rows_are_verified_from_the_run_and_from_a_pack_without_a_search(done, tmp_path, monkeypatch):
    _, place = done
    monkeypatch.setattr(working, "tune", lambda *_: pytest.fail("the record says what was chosen"))
    assert verify_run(place.run, rows=30).in_words().startswith("verified: 30 rows")
    pack_run(read_table(place.run), tmp_path / "packed")
    found = verify_run(tmp_path / "packed", rows=30, data=place.data, models=place.models)
    assert found.in_words().startswith("verified: 30 rows")


@pytest.mark.parametrize(("field", "value"), [("chosen", {"alpha": 0.123}), ("dice", 99.9)])
def test_a_search_that_was_changed_afterwards_is_not_verified(done, tmp_path, field, value):
    _, place = done
    pack_run(read_table(place.run), tmp_path)
    (path,) = pack_tuned([place.run], tmp_path)
    searches = yaml.safe_load(path.read_text())
    next(iter(searches.values()))[field] = value
    path.write_text(yaml.safe_dump(searches))
    with pytest.raises(UserError, match="changed"):
        verify_run(tmp_path, rows=1, data=place.data, models=place.models)


def test_a_choice_that_the_records_did_not_run_with_is_not_verified(done, tmp_path):
    _, place = done
    pack_run(read_table(place.run), tmp_path)
    (path,) = pack_tuned([place.run], tmp_path)
    searches = yaml.safe_load(path.read_text())
    search = next(iter(searches.values()))
    worst = min(search["trials"], key=lambda trial: trial["dice"])
    worst["dice"], search["chosen"] = search["dice"], worst["options"]
    path.write_text(yaml.safe_dump(searches))
    with pytest.raises(UserError, match=r"but record .* ran with"):
        verify_run(tmp_path, rows=1, data=place.data, models=place.models)


def test_all_searches_of_a_run_are_packed_as_one_yaml(done, tmp_path):
    _, place = done
    (path,) = pack_tuned([place.run], tmp_path)
    searches = yaml.safe_load(path.read_text())
    assert {name: each["chosen"] for name, each in searches.items()} == {
        one.stem: chosen(one) for one in (place.run / "tuned").glob("*.yaml")
    }
    assert all(len(each["trials"]) > 1 for each in searches.values())
    for each in searches.values():
        (choice,) = choices_for(path, each["model"], [], [each["method"]]).values()
        assert (choice.method, choice.options, choice.batch) == (each["method"], each["chosen"], 2)
        with pytest.raises(UserError, match=f"tuned on {each['sources'][0]}"):
            choices_for(path, each["model"], each["sources"][:1], [each["method"]])
    (again,) = pack_tuned([tmp_path], tmp_path / "again")
    assert again.read_text() == path.read_text()
    assert pack_tuned([tmp_path / "nothing"], tmp_path) == []
