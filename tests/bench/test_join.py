"""Records of several runs of one benchmark are joined into one folder of packed records."""

import shutil
from dataclasses import replace

import polars as pl
import pytest
from typer.testing import CliRunner

from ttdg.bench.jobs import Scoring, key_of
from ttdg.bench.other_runs.join import join_tables
from ttdg.bench.results import pack_run, read_table
from ttdg.bench.run_file import read_run, write_run
from ttdg.bench.verification.outcome import verified_records
from ttdg.bench.verification.rerun import verify_run
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.report.access import row_facts
from ttdg.report.comparison import report_tables


@pytest.fixture
def piece(finished, tmp_path):
    """`piece(name, keep)` is a copy of the run that has only the records of the scorings for which `keep` is true."""

    def make(name, keep):
        folder = shutil.copytree(finished[0], tmp_path / name)
        for key, job in read_run(folder).jobs.items():
            if isinstance(job, Scoring) and not keep(job):
                (folder / "records" / f"{key}.csv.gz").unlink()
        return folder

    return make


def values(table):
    rows = table.rows.filter(pl.col("value").is_not_nan()).with_columns(pl.exclude("value").cast(pl.String))
    return sorted(rows.iter_rows())


def test_two_pieces_make_the_whole(finished, piece):
    one, two = piece("one", lambda job: job.seed == 0), piece("two", lambda job: job.seed == 1)
    joined, whole = join_tables([read_table(one), read_table(two)]), read_table(finished[0])
    assert values(joined.table) == values(whole)
    assert set(joined.table.run.entries) == set(whole.run.entries)
    assert joined.table.about == whole.about
    assert sum(joined.taken) == len(whole.about)
    assert min(joined.taken) > 0


def test_where_two_runs_have_scored_the_same_the_first_counts(finished, piece):
    part, whole = read_table(piece("one", lambda job: job.method == "norm")), read_table(finished[0])
    changed = replace(part, rows=part.rows.with_columns(pl.lit(0.25, pl.Float32).alias("value")))
    joined = join_tables([changed, whole]).table
    norm = [key for key, job in whole.run.jobs.items() if isinstance(job, Scoring) and job.method == "norm"]
    of_norm = pl.col("job").cast(pl.String).is_in(norm)
    assert set(joined.rows.filter(of_norm)["value"]) == {0.25}
    assert values(replace(joined, rows=joined.rows.filter(~of_norm))) == values(
        replace(whole, rows=whole.rows.filter(~of_norm))
    )


def changed(folder, change):
    """Apply `change` to every scoring of `norm` in a run; their keys and the names of their records follow."""
    run, jobs, names = read_run(folder), {}, {}
    for key, job in run.jobs.items():
        new = change(job) if isinstance(job, Scoring) and job.method == "norm" else job
        names[key] = key_of(new)
        jobs[names[key]] = new
    write_run(
        folder, replace(run, jobs=jobs, entries=tuple(replace(e, job=names[e.job]) for e in run.entries))
    )
    for record in list((folder / "records").glob("*.csv.gz")):
        record.rename(record.with_name(f"{names[record.name.removesuffix('.csv.gz')]}.csv.gz"))
    return read_table(folder)


def test_a_row_keeps_its_place_when_a_default_changes_its_key(finished, piece):
    """Seed 1 was scored by a version whose method had another default."""
    one, two = piece("one", lambda job: job.seed == 0), piece("two", lambda job: job.seed == 1)
    later = changed(two, lambda job: replace(job, defaults={**job.defaults, "later": "1.0"}))
    joined, whole = join_tables([read_table(one), later]).table, read_table(finished[0])
    settings = ["experiment", "method", "sources", "stream", "batch", "seed"]
    assert sorted(joined.settings().select(settings).rows()) == sorted(
        whole.settings().select(settings).rows()
    )
    assert {key_of(joined.run.jobs[entry.job]) for entry in joined.run.entries} == set(joined.about)
    assert joined.about.keys() != whole.about.keys()


def test_rows_of_other_source_models_are_not_joined(piece):
    """The second run has the rows of `norm` that the first lacks, with models of another recipe."""
    one, two = (
        piece("one", lambda job: job.method == "source"),
        piece("two", lambda job: job.method == "norm"),
    )
    training = next(key for key, job in read_run(two).jobs.items() if not isinstance(job, Scoring))
    other = changed(two, lambda job: replace(job, training=training))
    with pytest.raises(UserError, match=r"'norm' of 'main' was scored with another source model"):
        join_tables([read_table(one), other])


def test_rows_of_other_weights_of_the_same_training_are_neither_joined_nor_compared(piece):
    """A model that is trained again on another machine may differ."""
    one, two = (
        read_table(piece("one", lambda job: job.method == "source")),
        read_table(piece("two", lambda job: job.method == "norm")),
    )
    other = replace(two, about={job: {**about, "model": "other"} for job, about in two.about.items()})
    with pytest.raises(
        UserError, match=r"'norm' of 'main' was scored with other weights of the same source model"
    ):
        join_tables([one, other])
    mixed = join_tables([one, two]).table
    assert not row_facts(mixed, "main")["norm"].other_model
    mixed = replace(mixed, about={**mixed.about, **{job: other.about[job] for job in other.about}})
    assert row_facts(mixed, "main")["norm"].other_model


@pytest.mark.parametrize("change", [{"limit": 3}, {"sites": {"east": "other"}}, {"shuffle": False}])
def test_rows_of_other_images_are_not_joined(piece, change):
    """The second run has the rows of `norm` that the first lacks, and has scored other images."""
    one, two = (
        piece("one", lambda job: job.method == "source"),
        piece("two", lambda job: job.method == "norm"),
    )
    other = changed(two, lambda job: replace(job, **change))
    with pytest.raises(
        UserError, match=r"'norm' of 'main' was scored with other images \(their files, `limit`"
    ):
        join_tables([read_table(one), other])


def test_runs_of_other_names_are_not_joined(finished):
    table = read_table(finished[0])
    with pytest.raises(UserError, match="join records of the same benchmark run"):
        join_tables([table, replace(table, run=replace(table.run, name="another"))])


def test_the_command_joins_into_one_of_its_folders_and_keeps_what_was_verified(finished, piece, tmp_path):
    one, two = piece("one", lambda job: job.seed == 0), piece("two", lambda job: job.seed == 1)
    verify_run(two, rows=3)
    packed = tmp_path / "packed"
    pack_run(read_table(one), packed)
    told = CliRunner().invoke(app, ["join", str(packed), str(two), "--out", str(packed)])
    assert told.exit_code == 0, told.exception
    joined = read_table(packed)
    assert joined.about.keys() == read_table(finished[0]).about.keys()
    assert verified_records(packed, joined) == verified_records(two, read_table(two))
    assert verified_records(packed, joined)


def test_records_are_not_packed_into_the_folder_of_their_run(piece):
    """Packed records are read first, so that they would hide all records that the run makes later."""
    run = piece("one", lambda job: True)
    with pytest.raises(UserError, match="pack its records into another folder"):
        pack_run(read_table(run), run)
    assert CliRunner().invoke(app, ["join", str(run), str(run), "--out", str(run)]).exit_code
    assert not (run / "records.csv.gz").exists()


@pytest.mark.parametrize("killed_at", ["gzip.compress", "write_text"])
def test_records_that_are_joined_into_their_own_folder_stay_readable_if_the_command_is_killed(
    piece, tmp_path, monkeypatch, killed_at
):
    """The command is killed before it writes the rows, or before it writes the metadata."""
    one, two = piece("one", lambda job: job.seed == 0), piece("two", lambda job: job.seed == 1)
    packed = tmp_path / "packed"
    pack_run(read_table(one), packed)
    before = read_table(packed)
    joined = join_tables([before, read_table(two)]).table
    monkeypatch.setattr(f"ttdg.bench.results.{killed_at}", lambda *given, **more: pytest.exit("killed"))
    with pytest.raises(pytest.exit.Exception):
        pack_run(joined, packed)
    after = read_table(packed)
    assert after.about == before.about
    assert report_tables(after) == report_tables(before)
