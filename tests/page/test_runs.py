"""The benchmark view of a small finished run, against its records."""

import dataclasses
import html
import re
import shutil
from urllib.parse import unquote_plus

import polars as pl
import pytest

from ttdg.bench.results import read_table
from ttdg.page.runs import open_run
from ttdg.report.aggregate import image_dice


@pytest.fixture
def reader(settings, finished, browse, tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    shutil.copy(finished[0] / "run.json", started)
    with browse(dataclasses.replace(settings, runs=(finished[0], started))) as browser:
        yield browser


def test_the_tables_are_those_of_the_report_and_filters_leave_some_out(reader, finished):
    text = reader.get("/runs/0").text
    for item in open_run(finished[0]).tables:
        assert html.escape(item.table.title, quote=False).replace("'", "&#39;") in text
    assert reader.get("/runs/0?stream=online&batch=1000").text.count("<table>") == 0
    kept = reader.get("/runs/0?access=source-free").text
    assert kept.count("<table>") == text.count("<table>")


def test_a_cell_leads_to_its_images_the_worst_first(reader, finished):
    text = reader.get("/runs/0").text
    address = html.unescape(re.search(r'href="(/runs/0/cell[^"]*method=norm[^"]*)"', text)[1])
    column = unquote_plus(re.search(r"column=([^&]*)", address)[1])
    rows = re.findall(r"<tr><td>[^/]*/([^<]*)</td><td>[^<]*</td><td>([\d.]+)</td>", reader.get(address).text)
    lines = image_dice(read_table(finished[0])).filter(
        (pl.col("method") == "norm") & (pl.col("target") == column)
    )
    means = lines.group_by("case").agg(pl.col("dice").mean()).sort("dice", "case")
    assert [float(value) for _, value in rows] == [round(value, 1) for value in means["dice"]]
    assert {case for case, _ in rows} == set(means["case"].cast(pl.String))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sites", "differences"])
def test_plots_are_drawn(reader, kind):
    answer = reader.get(f"/runs/0/plots/0/{kind}.png")
    assert answer.content.startswith(b"\x89PNG")


def test_a_plot_of_a_table_that_does_not_exist_is_not_found(reader):
    assert reader.get("/runs/0/plots/9/sites.png").status_code == 404
    assert reader.get("/runs/0/plots/0/others.png").status_code == 404


@pytest.mark.slow
def test_the_worst_images_are_drawn_with_every_contour(reader):
    query = {"group": 0, "method": "norm", "column": "west"}
    assert reader.get("/runs/0/worst.png", params=query).content.startswith(b"\x89PNG")
    assert reader.get("/runs/0/worst.png", params=query | {"column": "nowhere"}).status_code == 400


def test_a_run_without_records_says_so_and_shows_how_far_it_is(reader):
    text = reader.get("/runs/1").text
    assert "no records yet" in text
    state = reader.get("/runs/1/state").json()
    assert state["done"] == 0
    assert state["total"] > 0
    assert reader.get("/runs/0/state").json()["done"] == state["total"]


def test_a_run_that_the_command_did_not_name_is_refused(reader):
    for number in ("2", "-1"):
        assert reader.get(f"/runs/{number}").status_code == 400
    assert reader.get("/runs/x").status_code == 422
