import csv
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from ttdg.newsite import predict
from ttdg.safety.review import failure_probability, failures_found, review_order, review_priority


@pytest.fixture(scope="module")
def reported(tmp_path_factory, demo, hospitals):
    """Predictions of a far hospital in which one file has markup in its name, one is black and one is no image."""
    folder = tmp_path_factory.mktemp("reported")
    images = folder / "images"
    images.mkdir()
    for number, path in enumerate(sorted((hospitals / "summit" / "images").iterdir())[:5]):
        name = "<script>alert(1)<" + chr(8260) + "script>.png" if number == 0 else path.name
        (images / name).write_bytes(path.read_bytes())
    Image.new("RGB", (64, 64)).save(images / "black.png")
    (images / "<b>notes.txt").write_text("no image")
    return predict(demo, images, folder / "out", overlays=False), folder / "out"


def test_the_page_loads_nothing_and_escapes_names(reported):
    page = reported[0].report.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;notes.txt" in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_page_is_well_formed_html(reported):
    open_tags = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "img"):
                open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            assert tag in ("rect", "line")

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balance().feed(reported[0].report.read_text())
    assert open_tags == []


def test_the_page_states_the_verdict_the_chart_the_files_set_aside_and_the_audit(reported):
    result, _ = reported
    page = result.report.read_text()
    assert result.drift.sentence()[:40] in page
    assert page.count("<rect") == len(result.drift.by_group)
    assert page.count("<figure>") == 6
    assert "Files set aside" in page
    assert "6 answers" in page


def test_the_table_and_review_csv_are_in_the_order_of_the_manifest(reported):
    _, out = reported
    rows = list(csv.DictReader((out / "review.csv").open()))
    assert [row["review"] for row in rows] == [str(n) for n in range(1, 7)]
    assert rows[0]["file"] == "black.png"
    manifest = {row["file"]: row for row in csv.DictReader((out / "manifest.csv").open())}
    assert all(manifest[row["file"]]["review"] == row["review"] for row in rows)
    dice = [float(row["expected_dice"]) for row in rows[1:]]
    probabilities = [
        failure_probability(d, (float(r["expected_high"]) - float(r["expected_low"])) / 2)
        for d, r in zip(dice, rows[1:], strict=True)
    ]
    assert probabilities == sorted(probabilities, reverse=True)


def test_a_failure_is_more_probable_the_lower_the_expected_dice_and_even_at_the_limit():
    assert failure_probability(0.6, 0.1) == pytest.approx(0.5)
    assert failure_probability(0.5, 0.1) > failure_probability(0.7, 0.1)
    assert failure_probability(0.6 + 0.1, 0.1) == pytest.approx(0.1, abs=1e-3)  # the end of an 80 % interval


def test_unusual_images_come_first_and_doubt_decides_without_an_expected_dice():
    priorities = {
        "sure": review_priority(None, None, None, 0.99, False),
        "doubtful": review_priority(None, None, None, 0.7, False),
        "black": review_priority(None, None, None, 0.99, True),
    }
    assert review_order(priorities) == {"black": 1, "doubtful": 2, "sure": 3}


def test_a_perfect_order_finds_all_failures_early_and_a_constant_one_as_many_as_it_looks_at():
    dice = np.concatenate([np.full(10, 0.3), np.full(90, 0.9)])
    assert failures_found(dice, -dice) == {0.1: pytest.approx(1.0), 0.2: pytest.approx(1.0)}
    assert failures_found(dice, dice) == {0.1: 0.0, 0.2: 0.0}
    assert failures_found(dice, np.zeros(100)) == {0.1: pytest.approx(0.1), 0.2: pytest.approx(0.2)}


def test_without_failures_the_share_found_does_not_exist():
    assert np.isnan(failures_found(np.ones(5), np.zeros(5))[0.1])


def test_a_mask_that_cannot_be_read_is_not_drawn(demo, hospitals, tmp_path):
    site, out = hospitals / "summit" / "images", tmp_path / "out"
    common = {"method": "source", "overlays": False}
    assert predict(demo, site, out, **common).report.read_text().count("<figure>") == 8
    mask = min((out / "masks").iterdir())
    mask.write_bytes(mask.read_bytes()[:60])
    assert predict(demo, site, out, **common).report.read_text().count("<figure>") == 7
