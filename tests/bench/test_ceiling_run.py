"""A yaml with a ceiling beside another experiment, run on drawn hospitals; the records give its tables again."""

import numpy as np
import pytest

from ttdg.bench.prepare import prepare_run
from ttdg.bench.request import RunRequest
from ttdg.bench.results import pack_run, read_table, select_experiments
from ttdg.bench.run import run_jobs
from ttdg.evaluation.records import read_rows
from ttdg.report.comparison import report_tables
from ttdg.report.formats import to_markdown
from ttdg.report.gap import SHARE
from ttdg.report.leaderboard import write_leaderboard

YAML = """\
name: with a ceiling
synthetic: {variant: fundus, cases: 24, size: 32, seed: 1}
size: 32
sites: [north, harbour]
recipe: {encoder: light, optimiser: adamw, lr: 0.005, steps: 40, batch: 8, universe: 0.0,
         augmentation: standard, average: 0.0}
experiments:
  - {name: main, protocol: leave-one-out, methods: [source, norm]}
  - {name: best, protocol: ceiling, cases: held-out, methods: [source]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, here):
    folder = tmp_path_factory.mktemp("ceiling")
    (folder / "t.yaml").write_text(YAML)
    ready = prepare_run(RunRequest(folder / "t.yaml", folder / "run", device="cpu"))
    ended = run_jobs(dict(ready.jobs), ready.folder, lambda: here(ready.folder))
    assert not ended.failed, ended.failed
    return folder / "run"


def image_scores(folder, method, protocol, region=None):
    """Dice by target and image of a row, read from the records without the report's code."""
    run = read_table(folder).run
    found = {}
    for entry in run.entries:
        if (entry.label, entry.protocol) == (method, protocol):
            for target, _, case, where, metric, value in read_rows(
                folder / "records" / f"{entry.job}.csv.gz"
            ):
                if metric == "dice" and region in (None, where):
                    found.setdefault(target, {}).setdefault(case, []).append(100 * value)
    return {target: {case: np.mean(v) for case, v in cases.items()} for target, cases in found.items()}


def expected_shares(folder, region=None):
    """Share of the gap that `norm` closes at every target, and over all of them, in percent."""
    best = image_scores(folder, "source", "ceiling", region)
    source, norm = (image_scores(folder, name, "leave-one-out", region) for name in ("source", "norm"))
    gains, gaps = {}, {}
    for target, cases in best.items():
        gains[target] = np.mean([norm[target][case] - source[target][case] for case in cases])
        gaps[target] = np.mean([best[target][case] - source[target][case] for case in cases])
    assert all(gap > 1 for gap in gaps.values())
    shares = {target: 100 * gains[target] / gaps[target] for target in gaps}
    return shares, 100 * sum(gains.values()) / sum(gaps.values())


def share_in(view, row="norm"):
    line = next(line for line in view.rows if line[0].text == row)
    return line[view.header.index(SHARE)]


def test_the_tables_show_the_share_that_the_records_give(folder):
    views = {view.title.partition(" (")[0]: view for view in report_tables(read_table(folder))}
    shares, together = expected_shares(folder)
    for title in ("main: Dice", "main: against the baseline"):
        assert share_in(views[title]).value == pytest.approx(together, rel=1e-4)
        assert share_in(views[title]).text.startswith(f"{together:.1f} [")
        assert share_in(views[title], "source").text == ""
        assert "ratio of the sums" in views[title].note
    by_target = views[f"main: {SHARE}"]
    (row,) = by_target.rows
    assert by_target.header == ("method", "access", *shares, "all transfers")
    assert [cell.value for cell in row[2:]] == pytest.approx([*shares.values(), together], rel=1e-4)


@pytest.mark.parametrize("region", ["cup", "disc"])
def test_a_region_has_its_own_share(folder, region):
    views = {view.title.partition(" (")[0]: view for view in report_tables(read_table(folder))}
    expected = expected_shares(folder, region)[1]
    assert share_in(views[f"main: Dice of {region}"]).value == pytest.approx(expected, rel=1e-4)


def test_the_ceiling_was_scored_on_fewer_images_than_the_transfers(folder):
    best, source = (image_scores(folder, "source", name) for name in ("ceiling", "leave-one-out"))
    assert all(best[target].keys() < source[target].keys() for target in best)


def test_the_ceilings_own_tables_have_no_share(folder):
    views = [view for view in report_tables(read_table(folder)) if view.title.startswith("best:")]
    assert views
    assert not any(SHARE in view.header or "gap" in view.title + view.note for view in views)


def test_a_report_of_one_experiment_still_refers_to_the_ceiling(folder):
    table = read_table(folder)
    part = to_markdown(report_tables(select_experiments(table, ["main"])))
    assert part in to_markdown(report_tables(table))
    assert SHARE in part


def test_packed_records_give_the_same_shares(folder, tmp_path):
    table = read_table(folder)
    pack_run(table, tmp_path / "packed")
    assert to_markdown(report_tables(read_table(tmp_path / "packed"))) == to_markdown(report_tables(table))


def test_the_leaderboard_shows_the_share(folder, tmp_path):
    expected = expected_shares(folder)[1]
    text = write_leaderboard([folder], tmp_path)[0].read_text()
    header, _, first = [line for line in text.splitlines() if line.startswith("|")][:3]
    shown = first.split(" | ")[header.split(" | ").index(SHARE)]
    assert shown.startswith(f"{expected:.1f} [")
