"""What the page says of a whole site: drift, method, gate, audit log, report."""

import csv
import json
import re
from dataclasses import asdict, replace

import pytest

from ttdg.newsite.auto import MethodChoice
from ttdg.newsite.journal import read_journal
from ttdg.page import jobs
from ttdg.page.contours import image_key
from ttdg.page.queue_rows import by_risk, queue_rows
from ttdg.safety import Drift

SHIFTED = Drift("shifted", 0.8, 0.3, 1.5, 3.0, {"layer <1>": 0.2, "layer 2": 1.4}, "home", 0.002, 12, 3)


def words(browser, site):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", browser.get(f"/sites/{site}/findings").text))


@pytest.fixture
def out(settings, site):
    return settings.work / "sites" / site / "out"


def test_an_untouched_audit_log_is_verified_and_a_changed_line_breaks_it(browser, site, out):
    assert "verified" in words(browser, site)
    assert "5 answers" in words(browser, site)
    log = (out / "audit.jsonl").read_text()
    (out / "audit.jsonl").write_text(log.replace("norm", "tent", 1))
    assert "broken line 1 was changed" in words(browser, site)
    assert "verified" not in words(browser, site)


def test_a_correction_is_told_apart_from_a_mask_that_was_changed_elsewhere(browser, site, out):
    stroke = {"label": 1, "radius": 0.4, "points": [[0.5, 0.5]]}
    address = f"/sites/{site}/images/{image_key('00.png')}/strokes"
    assert browser.send("POST", address, json={"strokes": [stroke]}).status_code == 200
    assert "1 masks were corrected on this page" in words(browser, site)
    (out / "masks" / "01.png").write_bytes(b"other")
    text = words(browser, site)
    assert "masks/01.png was changed after it was written" in text
    assert "masks/00.png" not in text


def test_the_drift_of_the_manifest_is_a_verdict_and_a_bar_for_each_layer(browser, site, out):
    assert "no fingerprint" in words(browser, site)
    manifest = json.loads((out / "manifest.json").read_text()) | {"drift": SHIFTED.to_dict()}
    (out / "manifest.json").write_text(json.dumps(manifest))
    text = browser.get(f"/sites/{site}/findings").text
    assert SHIFTED.sentence() in words(browser, site)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', text)]
    assert widths[1] / widths[0] == pytest.approx(7, abs=0.02)
    assert "layer &lt;1&gt;" in text


def test_a_drift_survives_its_way_through_the_manifest():
    assert Drift.from_dict(SHIFTED.to_dict()) == SHIFTED
    earlier = {name: value for name, value in SHIFTED.to_dict().items() if name != "foreign_images"}
    assert Drift.from_dict(earlier) == replace(SHIFTED, foreign_images=0)


def test_what_auto_chose_is_shown_with_its_reason_and_a_continued_site_keeps_it(
    browser, settings, images, monkeypatch
):
    real = jobs.predict

    def choosing(*arguments, chosen, **more):
        def measured(choice, drift):
            chosen(MethodChoice(choice.method, reasons.pop(0)), SHIFTED)

        return real(*arguments, chosen=measured, **more)

    reasons = ["it is <b>near</b>", "the folder was begun with this method"]
    monkeypatch.setattr(jobs, "predict", choosing)
    identifier = browser.new_site(settings, images, method="auto")
    assert browser.wait(identifier) == "done"
    browser.client.app.app.state.workspace.worker.submit(identifier)
    assert browser.wait(identifier) == "done"
    assert not reasons
    text = browser.get(f"/sites/{identifier}/findings").text
    assert "<b>source</b>, chosen by auto: it is &lt;b&gt;near&lt;/b&gt;" in text
    folder = settings.work / "sites" / identifier
    (folder / "out" / "manifest.json").unlink()  # as before the end of the run
    assert SHIFTED.sentence() in words(browser, identifier)


def test_gate_decisions_are_counted_and_told_for_each_image(browser, site, out):
    journal = read_journal(out / "journal.jsonl")
    gates = {"00.png": "accepted", "01.png": "expected to lose (-3.0 Dice)"}
    lines = [replace(entry, gate=gates.get(entry.file, "")) for entry in journal.entries.values()]
    with (out / "journal.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in ({"run": journal.run}, *map(asdict, lines)))
    assert "1 answers accepted, 1 rolled back to the source model" in words(browser, site)
    assert browser.get(f"/sites/{site}").text.count("rolled back</small>") == 1
    case = browser.get(f"/sites/{site}/images/{image_key('01.png')}").text
    assert "the answer of the source model: expected to lose (-3.0 Dice)" in case
    assert "accepted</dd>" in browser.get(f"/sites/{site}/images/{image_key('00.png')}").text


def test_the_queue_has_the_order_of_review_csv(settings, site, out):
    queue = [row.entry.file for row in by_risk(queue_rows(out.parent)) if row.done]
    with (out / "review.csv").open() as file:
        assert queue == [row["file"] for row in csv.DictReader(file)]


def test_the_report_is_shown_without_scripts_and_only_when_it_is_written(browser, site, out):
    answer = browser.get(f"/sites/{site}/report.html")
    assert "Report of a new site" in answer.text
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]
    assert "report.html" in browser.get(f"/sites/{site}/findings").text
    (out / "report.html").unlink()
    assert browser.get(f"/sites/{site}/report.html").status_code == 400
    assert "report.html" not in browser.get(f"/sites/{site}/findings").text


def test_files_that_are_no_images_are_named_with_their_reason(browser, settings, images):
    (images / "letter.pdf").write_text("%PDF")
    (images / "cut.dcm").write_bytes(bytes(128) + b"DICM" + b"\x02\x00")
    (images / "cut.nii.gz").write_bytes(b"\x1f\x8b")
    identifier = browser.new_site(settings, images, method="source")
    assert browser.wait(identifier) == "done"
    text = words(browser, identifier)
    assert "3 other files set aside" in text
    assert "letter.pdf is a PDF file" in text
    assert "cut.dcm" in text
    assert "cut.nii.gz cannot be read as NIfTI" in text
    assert str(images) not in text
