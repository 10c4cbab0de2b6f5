"""Matching, benchmark, a long queue and accessibility in a browser."""

import json
import re
import shutil
from dataclasses import asdict

import pytest

from ttdg.newsite.journal import JournalEntry
from ttdg.page.contours import image_key

SERIOUS = ("serious", "critical")


SCROLL = """() => new Promise(done => {
  const queue = document.getElementById('queue');
  let left = 100;
  const step = () => { queue.scrollTop += 120; if (--left) requestAnimationFrame(step); else done(); };
  requestAnimationFrame(step);
})"""


def busy(page, script):
    """Seconds of processor time that the page's thread needs for a script and what follows from it."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent():
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = spent()
    page.evaluate(script)
    return spent() - before


def violations(page):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in SERIOUS]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
def test_no_view_has_a_serious_violation_or_overflows(server, tab, learned, width, dark):
    page = tab(width, dark)
    views = {
        server.url: "#new-site", learned: "#viewer dl", f"{server.url}matching?site={learned[-16:]}": "#board svg",
        f"{server.url}runs": ".sites a", f"{server.url}runs/0": "table",
    }  # fmt: skip
    for address, ready in views.items():
        page.goto(address)
        page.wait_for_selector(ready)
        if address == learned:
            page.keyboard.press("c")  # with the tools of the brush
        assert violations(page) == [], address
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, address


def test_a_node_is_followed_into_every_other_image_with_and_without_the_prior(server, tab, learned, shots):
    page = tab()
    page.goto(f"{server.url}matching?site={learned[-16:]}")
    page.wait_for_selector("#board svg .nodes g")
    assert "0 % of the cycles over three images broken. Without" in page.locator("#measures").inner_text()
    glyphs = page.evaluate(
        "[...document.querySelectorAll('#points path')].map(p => p.getAttribute('d') + p.getAttribute('fill'))"
    )
    assert len(set(glyphs)) == len(glyphs) == 24  # no two points look alike
    page.locator("#points button").nth(2).focus()
    page.keyboard.press("Enter")
    told = page.locator("#lands").inner_text()
    assert re.match(r"Universe point \d+, (background|rim|cup) of summit-\d+.png: lands in [123] of 3", told)
    assert page.locator("g.chosen line").count() >= 1
    assert page.locator("g.chosen circle").count() == page.locator("g.chosen line").count() + 1
    page.screenshot(path=shots / "page-matching.png")
    page.get_by_label("labels carried").check()
    through = [path.get_attribute("d") for path in page.locator("#board .carried path").all()]
    assert len(through) == 8  # two regions of four images
    page.get_by_role("button", name="Without").click()
    assert [path.get_attribute("d") for path in page.locator("#board .carried path").all()] != through
    page.locator(".nodes [data-at] circle").first.hover(force=True)
    assert page.locator("g.chosen line").count() == 3  # by features every node has a partner in each image
    page.get_by_label("all lines").check()
    assert page.locator("g.lines line").count() > 50


def test_a_cell_of_a_table_leads_to_its_images_and_a_filter_leaves_tables_out(server, tab):
    page = tab()
    page.goto(f"{server.url}runs/0")
    page.wait_for_selector("#tables img")
    tables = page.locator("table").count()
    page.get_by_label("benchmark").select_option(index=1)
    page.wait_for_url("**/runs/1")
    page.get_by_label("benchmark").select_option(index=0)
    page.wait_for_url("**/runs/0")
    page.get_by_label("experiment").select_option("main")
    page.wait_for_url("**experiment=main**")
    assert 0 < page.locator("table").count() <= tables
    page.locator("td a").first.click()
    page.wait_for_url("**/cell?**")
    dice = [float(text) for text in page.locator("tbody td:nth-child(3)").all_inner_texts()]
    assert dice == sorted(dice)
    page.get_by_role("button", name="Draw").click()
    page.wait_for_selector("#drawn img.complete")


@pytest.mark.slow
def test_tables_of_a_run_that_goes_on_grow_without_a_reload(serve, finished, tab, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    records = sorted((folder / "records").glob("*.gz"))
    aside = tmp_path / "aside"
    aside.mkdir()
    late = [path.rename(aside / path.name) for path in records[1:]]
    served = serve(tmp_path / "work", "--run", str(folder))
    try:
        page = tab()
        page.goto(f"{served.url}runs/0")
        page.wait_for_selector("table")
        assert page.locator("#run output").inner_text() == f"1 of {len(records)}"
        for path in late:
            path.rename(folder / "records" / path.name)
        page.locator("#run output", has_text=f"{len(records)} of {len(records)}").wait_for()
        page.locator("#tables table").first.locator("tbody tr").nth(1).wait_for()  # the second method
        page.locator("td a").first.wait_for()
    finally:
        served.stop()


def test_published_records_are_shown_and_filtered(server, tab, shots):
    page = tab()
    page.goto(f"{server.url}runs/1?experiment=single+source")
    page.wait_for_selector("table")
    assert page.get_by_label("experiment").input_value() == "single source"
    titles = page.locator("#tables h2").all_inner_texts()
    assert titles
    assert all(title.startswith("single source:") for title in titles)
    page.screenshot(path=shots / "page-benchmark.png")


def test_a_queue_of_a_thousand_images_loads_few_thumbnails_and_is_walked_by_keys(server, tab, learned):
    """The journal is written by hand; one preview serves all images."""
    source, many = server.work / "sites" / learned[-16:], server.work / "sites" / ("ab" * 8)
    key = image_key(sorted(p.name for p in (source / "out" / "masks").iterdir())[0])
    (many / "out").mkdir(parents=True)
    (many / "shown").mkdir()
    entries = [
        JournalEntry(f"image {i:04}.png", "done", round=1, mask=f"masks/{i}.png", width=64, height=64,
                     expected_dice=0.5 + i / 4000, expected_low=i / 2000, expected_high=0.9)
        for i in range(1000)
    ]  # fmt: skip
    for entry in entries:
        for suffix in (".jpg", ".small.jpg", ".json"):
            shutil.copyfile(
                source / "shown" / f"{key}{suffix}", many / "shown" / f"{image_key(entry.file)}{suffix}"
            )
    (many / "out" / "journal.jsonl").write_text(
        "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
    )
    site = json.loads((source / "site.json").read_text()) | {"id": many.name, "title": "Many"}
    (many / "site.json").write_text(json.dumps(site))
    page, asked = tab(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.url}sites/{many.name}")
    page.wait_for_selector("#viewer article")
    assert page.locator("#queue li").count() == 1000
    for _ in range(30):
        page.keyboard.press("j")
    page.wait_for_selector("#viewer h2:has-text('image 0030.png')")
    assert page.locator("#queue a[aria-current]").bounding_box()["y"] < 860  # it scrolled along
    assert sum(url.endswith(".small.jpg") for url in asked) < 200
    work = busy(page, SCROLL) / 100  # seconds of a frame; other processes do not count
    assert work < 1 / 30
