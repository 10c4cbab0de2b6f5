"""The share of the gap closed, on frames made by hand or at random."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table
from ttdg.evaluation.records import write_rows
from ttdg.evaluation.statistics import gap_closed
from ttdg.report.aggregate import TableGroup
from ttdg.report.comparison import report_tables
from ttdg.report.formats import to_markdown
from ttdg.report.gap import SHARE, TransferGap, gap_table, method_gaps, share_cell

TARGETS = ("east", "west")
CASES = ("a", "b", "c", "d")
SEEDS = (0, 1)
DICE = st.integers(0, 100).map(float)  # sums are exact, so no order of summation moves a gap across the limit
KEYS = [(target, seed, case) for target in TARGETS for seed in SEEDS for case in CASES]
SCORES = st.lists(DICE, min_size=len(KEYS), max_size=len(KEYS)).map(
    lambda values: dict(zip(KEYS, values, strict=True))
)


def image_frame(**scores):
    """Dice per image of a leave-one-out group; `scores` is method → (target, seed, case) → Dice."""
    lines = [
        (
            "main",
            "leave-one-out",
            method,
            f"not {target}",
            "online",
            4,
            seed,
            "t",
            "j",
            target,
            target,
            case,
            dice,
        )
        for method, mine in scores.items()
        for (target, seed, case), dice in mine.items()
    ]
    names = ("experiment", "protocol", "method", "sources", "stream", "batch", "seed", "training", "job", "target",
             "site", "case", "dice")  # fmt: skip
    return pl.DataFrame(lines, names, orient="row")


def ceiling_frame(scores):
    lines = [(seed, target, case, dice) for (target, seed, case), dice in scores.items()]
    kinds = {"seed": pl.Int64, "site": pl.String, "case": pl.String, "ceiling": pl.Float64}
    return pl.DataFrame(lines, kinds, orient="row")


def shares(images, ceilings, method="m"):
    """Share at every transfer, then over all of them."""
    found = method_gaps(images, ceilings, "source").get(method, [])
    each = [gap_closed([t.gains], [t.gaps])[0] for t in found]
    return [*each, gap_closed([t.gains for t in found], [t.gaps for t in found])[0]]


@given(SCORES, SCORES)
def test_a_method_as_good_as_the_ceiling_closes_all_and_the_source_nothing(source, best):
    images = image_frame(source=source, m=best)
    for share in shares(images, ceiling_frame(best)):
        assert math.isnan(share) or share == pytest.approx(100)
    for share in shares(images, ceiling_frame(best), "source"):
        assert math.isnan(share) or share == 0


@given(SCORES, SCORES, SCORES, st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(source, method, best, random):
    images, ceilings = image_frame(source=source, m=method), ceiling_frame(best)
    expected = {
        t.name: gap_closed([t.gains], [t.gaps])[0]
        for t in method_gaps(images, ceilings, "source").get("m", [])
    }
    order = random.sample(range(len(images)), len(images))
    found = method_gaps(images[order], ceilings.reverse(), "source").get("m", [])
    again = {t.name: gap_closed([t.gains], [t.gaps])[0] for t in found}
    assert again == pytest.approx(expected, nan_ok=True)


@given(SCORES, SCORES, SCORES, st.sets(st.sampled_from(KEYS)), st.data())
def test_only_images_and_seeds_that_the_ceiling_scored_count(source, method, best, left_out, data):
    ceilings = ceiling_frame({key: dice for key, dice in best.items() if key not in left_out})
    expected = shares(image_frame(source=source, m=method), ceilings)
    changed = method | {key: data.draw(DICE) for key in left_out}
    moved = source | {key: data.draw(DICE) for key in left_out}
    assert shares(image_frame(source=moved, m=changed), ceilings) == pytest.approx(expected, nan_ok=True)


@given(SCORES, SCORES, SCORES, st.sets(st.sampled_from(KEYS)))
def test_only_images_that_the_method_scored_count(source, method, best, missing):
    kept = {key: dice for key, dice in method.items() if key not in missing}
    common = {key: dice for key, dice in best.items() if key not in missing}
    found = {t.name: (t.gains, t.gaps) for t in method_gaps(
        image_frame(source=source, m=kept), ceiling_frame(best), "source").get("m", [])}  # fmt: skip
    same = {t.name: (t.gains, t.gaps) for t in method_gaps(
        image_frame(source=source, m=kept), ceiling_frame(common), "source").get("m", []) if len(t.gaps)}  # fmt: skip
    assert found.keys() == same.keys()
    assert all(np.array_equal(found[name], same[name]) for name in found)


def test_the_share_by_hand():
    source = dict.fromkeys(KEYS, 50.0)
    method = {key: 60.0 if key[0] == "east" else 52.0 for key in KEYS}
    best = {key: 90.0 if key[0] == "east" else 54.0 for key in KEYS}
    # 10 of 40 points at east, 2 of 4 at west: 12 of 44 together, not the mean of 25 % and 50 %
    found = shares(image_frame(source=source, m=method), ceiling_frame(best))
    assert found == pytest.approx([25, 50, 100 * 12 / 44])


def test_a_target_without_a_ceiling_shows_a_dash_and_is_not_in_the_sums():
    source, method = dict.fromkeys(KEYS, 50.0), dict.fromkeys(KEYS, 60.0)
    best = {key: 90.0 for key in KEYS if key[0] == "east"}
    images = image_frame(source=source, m=method)
    view = gap_table(method_gaps(images, ceiling_frame(best), "source"),
                     TableGroup("main", "leave-one-out", "online", 4), "source")  # fmt: skip
    assert view.header == ("method", "east", "west", "all transfers")
    assert [[cell.text for cell in row] for row in view.rows] == [["m", "25.0", "–", "25.0"]]
    assert "no ceiling or a gap below 1 point shows a dash" in view.note
    assert view.note.endswith("east 40.0 (n = 4)")


@pytest.mark.parametrize(("gap", "text"), [(0.9, "–"), (-5.0, "–"), (0.0, "–"), (1.0, "50.0")])
def test_a_gap_below_one_point_shows_a_dash(gap, text):
    assert share_cell([TransferGap("east", np.array([0.5, 0.5]), np.array([gap, gap]))]).text == text


def test_a_mixture_needs_a_ceiling_of_each_of_its_sites():
    source, method = dict.fromkeys(KEYS, 50.0), dict.fromkeys(KEYS, 60.0)
    images = image_frame(source=source, m=method).with_columns(
        target=pl.lit("east+west"), sources=pl.lit("north"), protocol=pl.lit("single-to-mixture")
    )
    both, one = dict.fromkeys(KEYS, 90.0), {key: 90.0 for key in KEYS if key[0] == "east"}
    assert shares(images, ceiling_frame(both)) == pytest.approx([25, 25])
    assert method_gaps(images, ceiling_frame(one), "source") == {}


@pytest.fixture
def recorded(started, place):
    """`recorded(*experiments)`: three seeds; `source` scores 0.5, `norm` 0.6, and a ceiling 0.7 on image a alone."""

    def make(*experiments):
        run = started(*experiments, seeds=[0, 1, 2])
        protocols = {entry.job: entry.protocol for entry in run.entries}
        for key, job in run.jobs.items():
            if isinstance(job, Scoring):
                best, target = protocols[key] == "ceiling", job.targets[0].name
                dice = 0.7 if best else 0.5 if job.method == "source" else 0.6
                cases = "a" if best else "abc"
                rows = [(target, target, case, "disc", "dice", dice) for case in cases]
                about = {"images": len(cases), "batches": 1, "forwards": 1, "backwards": 0, "peak_bytes": 1,
                         "adapting_seconds": 0.5, "all_seconds": 1.0, "key": key}  # fmt: skip
                write_rows(place.record(key), about, rows)
        return read_table(place.run)

    return make


MAIN = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "norm"]}
BEST = {"name": "best", "protocol": "ceiling", "methods": ["source"], "cases": "held-out"}


def test_without_a_ceiling_no_table_mentions_a_gap(recorded):
    text = to_markdown(report_tables(recorded(MAIN)))
    assert "gap" not in text
    assert "ceiling" not in text


def test_a_ceiling_adds_the_column_and_changes_no_other_cell(recorded):
    before = {view.title: view for view in report_tables(recorded(MAIN))}
    after = {view.title: view for view in report_tables(recorded(MAIN, BEST))}
    for title, view in before.items():
        place = after[title].header.index(SHARE)
        rest = [(*row[:place], *row[place + 1 :]) for row in after[title].rows]
        assert rest == list(view.rows)
        assert after[title].rows[1][place].text == "50.0 [50.0, 50.0]"


def test_a_ceiling_of_other_seeds_is_no_ceiling(recorded):
    text = to_markdown(report_tables(recorded(MAIN | {"seeds": [0, 1]}, BEST | {"seeds": [2]})))
    assert "gap" not in text


def test_a_table_whose_targets_have_no_ceiling_has_no_column(recorded):
    other = MAIN | {"name": "other", "targets": ["west"]}
    views = report_tables(recorded(MAIN, other, BEST | {"targets": ["east"]}))
    assert {view.title.partition(":")[0] for view in views if SHARE in view.header} == {"main"}
