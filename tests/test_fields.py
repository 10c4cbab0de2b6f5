"""Values of other kinds than a dataclass declares, as a damaged file holds them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ttdg.bench.results import pack_run, read_table
from ttdg.bench.run_file import read_run, write_run
from ttdg.errors import UserError
from ttdg.evaluation.tuned_options import read_choices, searches
from ttdg.fields import wrong_field
from ttdg.report.comparison import report_tables
from ttdg.report.leaderboard import build_leaderboards


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int = 0
    share: float | None = None
    inner: Mapping[str, Inner] = field(default_factory=dict)
    anything: Any = None


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, None),
        ({"count": 3, "share": 1, "inner": {"a": Inner(("b",))}, "anything": [{}]}, None),
        ({"count": True}, "count"),
        ({"count": 2**63}, "count"),
        ({"count": "3"}, "count"),
        ({"share": float("inf")}, "share"),
        ({"share": {}}, "share"),
        ({"inner": [Inner()]}, "inner"),
        ({"inner": {"a": Inner((1,))}}, "inner"),
        ({"inner": {1: Inner()}}, "inner"),
    ],
)
def test_the_field_of_another_kind_is_named(fields, wrong):
    assert wrong_field(Outer(**fields)) == wrong


@pytest.mark.parametrize(("name", "value"), [("harm", "x"), ("baseline", 3), ("name", {}), ("config", [])])
def test_a_run_file_with_a_value_of_another_kind_is_refused(finished, tmp_path, name, value):
    write_run(tmp_path, finished[1])
    fields = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(fields | {name: value}))
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path)


def test_a_run_file_with_an_entry_of_another_kind_is_refused(finished, tmp_path):
    write_run(tmp_path, finished[1])
    fields = json.loads((tmp_path / "run.json").read_text())
    fields["entries"][0]["experiment"] = []
    (tmp_path / "run.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path)


def test_a_plan_with_an_unknown_stream_and_a_benchmark_without_a_name_is_reported(finished):
    folder, run = finished
    table = read_table(folder)
    jobs = {}
    for key, job in run.jobs.items():
        jobs[key] = replace(job, stream="../..") if hasattr(job, "stream") else replace(job, benchmark={})
    odd = replace(table, run=replace(table.run, jobs=jobs))
    assert "../.." in report_tables(odd)[0].title


@pytest.mark.parametrize("name", ["forwards", "batches", "peak_bytes"])
def test_packed_records_without_their_costs_are_refused(finished, tmp_path, name):
    pack_run(read_table(finished[0]), tmp_path)
    about = json.loads((tmp_path / "about.json").read_text())
    next(iter(about.values()))[name] = "x"
    (tmp_path / "about.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="does not declare its time, memory and passes"):
        build_leaderboards([tmp_path])


@pytest.mark.parametrize("trials", ["5", "[5]", "[{}]", "[{dice: x}]", "x"])
def test_a_search_whose_trials_have_no_dice_is_refused(tmp_path, trials):
    (tmp_path / "tuned.yaml").write_text(
        f"aa: {{method: tent, sources: [a], chosen: {{}}, dice: 1.0, model: m, trials: {trials}}}\n"
    )
    with pytest.raises(UserError, match="complete search"):
        searches(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        "method: tent, sources: [{}]",
        "method: [], sources: [a]",
        "method: tent, sources: [a], search: {batch: .inf}",
    ],
)
def test_tuned_options_of_another_kind_are_refused(tmp_path, odd):
    (tmp_path / "tuned.yaml").write_text(f"aa: {{chosen: {{}}, model: m, {odd}}}\n")
    with pytest.raises(UserError, match="not a file of tuned options"):
        read_choices(tmp_path / "tuned.yaml")
