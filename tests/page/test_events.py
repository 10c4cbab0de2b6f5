"""What an open page is told: each change once, as soon as it happens, and contours while a site is learned."""

import asyncio
import json
import threading
import time
from dataclasses import asdict, replace

import pytest

from ttdg.newsite import predict
from ttdg.newsite.journal import read_journal
from ttdg.page import live
from ttdg.page.contours import image_key
from ttdg.page.events import OpenPage
from ttdg.page.live import LearningView, read_live
from ttdg.page.sites import Changes


@pytest.fixture
def opened(browser, site):
    """A page that was opened before the first answer."""
    return OpenPage(browser.client.app.app.state.workspace, site)


def rewrite(settings, site, change):
    """Write the journal of a site again, with some of its entries."""
    path = settings.work / "sites" / site / "out" / "journal.jsonl"
    entries = change(list(read_journal(path).entries.values()))
    path.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries))


def test_new_answers_come_once_with_the_contours_of_the_last_one(opened, settings, site):
    rewrite(settings, site, lambda entries: entries[:2])
    first = opened.news()
    assert first["rows"].count("<li") == 2
    assert image_key("00.png") in first["case"] or image_key("01.png") in first["case"]
    assert 'class="adapted"' in first["case"]
    assert not {"rows", "case", "reset"} & opened.news().keys()
    opened.known = 1  # a page that lost its connection asks for what it does not know
    assert opened.news()["rows"].count("<li") == 1


def test_an_answer_that_was_taken_back_empties_the_queue_first(opened, settings, site):
    opened.news()
    rewrite(settings, site, lambda entries: entries[:1])
    again = opened.news()
    assert again["reset"]
    assert again["rows"].count("<li") == 1


def test_decisions_are_told_when_they_change(opened, browser, site):
    assert opened.news()["decided"] == {}
    assert "decided" not in opened.news()
    key = image_key("00.png")
    browser.send("POST", f"/sites/{site}/images/{key}/verdict", json={"verdict": "flagged"})
    assert opened.news()["decided"] == {key: "flagged"}


def test_a_change_wakes_a_page_at_once_and_one_before_the_wait_is_not_lost():
    changes = Changes()

    async def waits():
        count = changes.count
        threading.Timer(0.05, changes.report).start()
        start = time.monotonic()
        await changes.after(count, 20)
        woken = time.monotonic() - start
        await changes.after(count, 20)  # the change is already there
        return woken, time.monotonic() - start

    woken, both = asyncio.run(waits())
    assert 0.04 < woken < 10
    assert both < 15


def test_a_page_waits_no_longer_than_it_is_told():
    start = time.monotonic()
    asyncio.run(Changes().after(0, 0.05))
    assert 0.04 < time.monotonic() - start < 10


@pytest.fixture
def watched(tmp_path, disc_model, images, monkeypatch):
    """The view of a site that self-training learned in three steps, and the folder that was written."""
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "SHARE", 1e9)
    (images / "notes.png").unlink()
    view, steps = LearningView(tmp_path / "site", disc_model, images, 10**6), []

    def learning(done, total):
        view.draw(done, total)
        steps.append(read_live(tmp_path / "site"))

    options = {"folder_steps": 3, "draw": 2, "lr": 0.01, "momentum": 0.5}
    predict(disc_model, images, tmp_path / "seen", method="self-training", options=options,
            learning=learning, prepared=view.begin, gate=False)  # fmt: skip
    predict(disc_model, images, tmp_path / "unseen", method="self-training", options=options, gate=False)
    return steps


def test_contours_are_drawn_while_a_site_is_learned(watched, tmp_path):
    assert [step["step"] for step in watched] == [1, 2, 3]
    first, last = watched[0]["images"], watched[-1]["images"]
    assert len(first) == live.COUNT
    assert [image["source"] for image in first] == [image["source"] for image in last]
    assert [image["adapted"] for image in first] != [image["adapted"] for image in last]
    assert all((tmp_path / "site" / "shown" / f"{image['key']}.small.jpg").is_file() for image in first)


def test_watching_a_site_changes_none_of_its_answers(watched, tmp_path):
    seen, unseen = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "masks").iterdir()}
        for name in ("seen", "unseen")
    )
    assert seen == unseen
    assert len(seen) == 5


def test_drawing_takes_a_small_share_of_the_time(tmp_path, disc_model, images, monkeypatch):
    drawn = []
    monkeypatch.setattr(LearningView, "_write", lambda *_: (time.sleep(0.02), drawn.append(1)))
    view = LearningView(tmp_path / "site", disc_model, images, 10**6)
    view._network = disc_model.network
    for step in range(100):
        view.draw(step, 100)
    assert len(drawn) == 1  # the next one comes after a second


def test_a_method_without_a_network_of_its_own_is_not_watched(tmp_path, disc_model, images):
    view = LearningView(tmp_path / "site", disc_model, images, 10**6)
    predict(disc_model, images, tmp_path / "out", method="norm", prepared=view.begin)
    view.draw(1, 2)
    assert read_live(tmp_path / "site") is None


def test_a_page_that_is_opened_while_a_site_is_learned_shows_the_latest_contours(opened, settings, site):
    folder, store = settings.work / "sites" / site, opened.workspace.store
    outlines = json.loads(next((folder / "shown").glob("*.json")).read_text())
    shown = [{"key": "0" * 16, "file": "<b>.png", **outlines}]
    (folder / live.LIVE).write_text(json.dumps({"step": 7, "steps": 9, "images": shown}))
    assert "live" not in opened.news()  # it is done
    rewrite(settings, site, lambda entries: [])
    store.update(site, state="running")
    text = opened.news()["live"]
    assert "Step 7 of 9" in text
    assert "&lt;b&gt;.png" in text
    assert "live" not in opened.news()


def test_the_choice_of_the_judge_is_told_with_its_reason(browser, settings, site):
    def judged(reading, expected, unadapted):
        rewrite(settings, site, lambda entries: [
            replace(e, reading=reading, expected_dice=expected, expected_low=0.1, expected_high=0.9,
                    expected_unadapted=unadapted) if e.file == "00.png" else e for e in entries
        ])  # fmt: skip
        return browser.get(f"/sites/{site}/images/{image_key('00.png')}").text

    text = judged("mix learned, both ways", 0.6, 0.4)
    assert "averaged over the image and its mirror image" in text
    assert "Expected Dice 0.60, against 0.40 for the unadapted answer." in text
    assert "clearly better than 0.40" in judged("source, both ways", 0.4, 0.4)
    assert "The adapted answer was not expected to be better than 0.40." in judged("not adapted", 0.4, 0.4)
    assert "the site as a whole is expected to gain" in judged("adapted", 0.4, 0.5)
    assert "unadapted answer" not in judged("adapted", 0.4, None)
