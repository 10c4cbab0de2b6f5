"""The check reports all problems with their files, and correct counts."""

import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.data import Benchmark, CheckReport, SiteCheck, check_benchmark, check_table, first_problems
from ttdg.errors import UserError

TABLE = "case,patient,split\ncase0,p,train\ncase1,p,train\ncase2,q,test\n"


def lines_of(report, width: int = 80) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(check_table(report))
    return capture.get().splitlines()


def text_of(report) -> str:
    return " ".join("\n".join([*lines_of(report), *first_problems(report)]).split())


def test_a_sound_benchmark_is_counted(make_site, fundus: Benchmark):
    make_site("a", 3, table=TABLE)
    root = make_site("b", 2, side=64)
    report = check_benchmark(root, fundus)
    assert report.ok
    assert report.cases == 5
    a, b = report.sites
    assert (a.name, a.cases, a.patients, a.train, a.held_out) == ("a", 3, 2, 2, 1)
    assert (a.sizes, b.sizes) == ({(32, 32): 3}, {(64, 64): 2})
    grey = np.array(Image.open(root / "b/masks/case0.png"))
    assert b.labels == pytest.approx(
        {"background": (grey == 255).mean(), "rim": (grey == 128).mean(), "cup": (grey == 0).mean()}
    )


def test_all_problems_are_found_at_once(make_site, fundus: Benchmark):
    root = make_site("a", 9)
    images, masks = root / "a/images", root / "a/masks"
    (masks / "case0.png").unlink()  # missing mask
    (images / "case1.png").unlink()  # mask without image
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(masks / "case2.png")  # size mismatch
    Image.fromarray(np.full((32, 32), 9, np.uint8)).save(masks / "case3.png")  # unknown label value
    (images / "case4.png").write_bytes((images / "case4.png").read_bytes()[:200])  # truncated
    (images / "case5.jpg").touch()  # duplicate name, and an empty file
    bomb = bytearray((images / "case6.png").read_bytes())
    bomb[16:24] = struct.pack(">II", 60_000, 60_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    (images / "case6.png").write_bytes(bomb)  # decompression bomb
    (images / "case7.png").write_bytes(b"")  # image and mask both
    (masks / "case7.png").write_text("no picture")
    (root / "empty/images").mkdir(parents=True)
    a, empty = check_benchmark(root, fundus).sites
    expected = (
        "case0.png has no mask", "case1.png is a mask without an image", "case2.png is 6 × 5 pixels",
        "case3.png: the mask holds grey values", "case4.png is truncated", "case5.png has the name of case5.jpg",
        "case5.jpg is empty", "case6.png claims more than", "images/case7.png is empty",
        "masks/case7.png is no PNG",
    )  # fmt: skip
    for words in expected:
        assert sum(words in problem for problem in a.problems) == 1, words
    assert len(a.problems) == len(expected)
    assert a.sizes == {(32, 32): 4}
    assert [problem.split("; ")[0].removeprefix(f"{root}/") for problem in empty.problems] == [
        "empty/images is empty",
        "empty/masks is missing",
    ]


def test_a_label_that_no_mask_of_a_site_shows_is_a_problem(make_site, fundus: Benchmark):
    root = make_site("a", 3)
    for path in (root / "a/masks").iterdir():
        mask = np.array(Image.open(path))
        Image.fromarray(np.where(mask == 0, 128, mask).astype(np.uint8)).save(path)
    (site,) = check_benchmark(root, fundus).sites
    assert [problem for problem in site.problems if "no mask of a shows cup" in problem] == list(
        site.problems
    )
    assert len(site.problems) == 1


def test_one_image_in_two_sites_is_a_problem_of_the_second(make_site, fundus: Benchmark):
    root = make_site("a", 3)
    make_site("b", 3, side=40)
    with Image.open(root / "a/images/case1.png") as picture:
        picture.save(root / "b/images/case2.png", compress_level=1)  # another file with the same pixels
    a, b = check_benchmark(root, fundus).sites
    shared = [problem for problem in b.problems if "shows the same image as" in problem]
    assert len(shared) == 1
    assert "b/images/case2.png" in shared[0]
    assert "a/images/case1.png" in shared[0]
    assert not any("same image" in problem for problem in a.problems)


def test_a_report_with_a_problem_is_not_ok(make_site, fundus: Benchmark):
    root = make_site("a", 2)
    (root / "a/masks/case0.png").unlink()
    assert not check_benchmark(root, fundus).ok


def test_a_folder_without_sites_is_an_error(tmp_path, fundus: Benchmark):
    with pytest.raises(UserError, match="holds no site"):
        check_benchmark(tmp_path, fundus)


def test_the_table_shows_counts_and_names_problems(make_site, fundus: Benchmark):
    root = make_site("a", 15)
    assert "none" in text_of(check_benchmark(root, fundus))
    for number in range(12):
        (root / f"a/masks/case{number}.png").unlink()
    shown = text_of(check_benchmark(root, fundus))
    for words in ("fundus: 15 cases", "32 × 32: 15", "background", "12", "has no mask", "… and 2 more"):
        assert words in shown


@pytest.mark.parametrize("name", ["clinicdb", "site" * 8])
def test_every_value_is_whole_in_80_columns(name):
    counts = {"cases": 12_345, "patients": 10_996, "train": 10_791, "held_out": 1_554}
    labels = {"background": 0.9, "central zone": 0.1}
    sizes = {(1024, 2048): 10_000, (960, 1280): 2_345}
    site = SiteCheck(name, **counts, sizes=sizes, labels=labels, problems=("x",), images={})
    lines = lines_of(CheckReport("prostate", (site,)))
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    rows = [re.split(r" {2,}", line.strip()) for line in lines[4:] if line.strip()]
    cells = {cell for row in rows for cell in row}
    assert {"12,345 cases", "10,996 patients", "10,791 train", "1,554 held out"} < cells
    assert {"2048 × 1024: 10,000", "1280 × 960: 2,345"} < cells
    if name == "clinicdb":
        assert rows[0] == [name, "12,345 cases", "2048 × 1024: 10,000", "background 90.0%", "1"]
        assert "central zone 10.0%" in cells
    else:
        first = [line.removeprefix(" ").split("  ")[0] for line in lines[4:]]
        assert "".join(first).replace(" ", "") == name
        assert {"background", "90.0%"} < cells


def test_a_long_path_of_a_problem_is_not_broken(make_site, fundus: Benchmark):
    root = make_site("a-site-with-a-long-name-" * 3, 1)
    next(root.glob("*/masks/case0.png")).unlink()
    report = check_benchmark(root, fundus)
    result = CliRunner().invoke(app, ["data", "check", str(root), "-b", "fundus"], env={"COLUMNS": "80"})
    assert report.sites[0].problems[0] in result.output.splitlines()


def test_names_that_look_like_markup_are_shown_as_they_are(make_site, fundus: Benchmark):
    assert "[bold]" in text_of(check_benchmark(make_site("[bold]", 1), fundus))
