"""Requests and files that mean harm: nothing leaves its folder, nothing is sent back as it came, the server goes on."""

import dataclasses
import gzip
import json
import shutil
import struct
import zlib

import pytest

from ttdg.page.contours import image_key

SCRIPT = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"


def png(width, height, rows):
    """A PNG file of black pixels, one bit each; the header may promise more rows than there are."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(bytes((1 + width // 8) * rows), 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


HOSTILE = {
    "bomb.png": png(40_000, 40_000, 4_000),
    "huge.png": png(2**31 - 1, 2**31 - 1, 1),
    "cut.png": png(64, 64, 64)[:45],
    "page.png": b"<!doctype html><script>alert(1)</script>",
    "drawing.svg": SCRIPT,
    "bomb.nii.gz": gzip.compress(bytes(20_000_000)),
    "link.dcm": b"\0" * 128 + b"DICM" + b"\xff" * 64,
    "=cmd('calc').png": b"",
}


@pytest.fixture
def attacked(browser, settings, images):
    """The identifier of a site with hostile uploads and one image."""
    identifier = browser.new_site(settings, "", "<script>alert(1)</script>", method="source")
    for name, data in {**HOSTILE, "good.png": (images / "00.png").read_bytes()}.items():
        answer = browser.send("PUT", f"/sites/{identifier}/images", params={"name": name}, content=data)
        assert answer.status_code == 200, answer.text
    browser.send("POST", f"/sites/{identifier}/start")
    assert browser.wait(identifier) == "done"
    return identifier


def test_hostile_files_are_set_aside_and_the_others_are_answered(browser, settings, attacked):
    folder = settings.work / "sites" / attacked
    assert [path.name for path in (folder / "out" / "masks").iterdir()] == ["good.png"]
    manifest = (folder / "out" / "manifest.csv").read_text()
    assert all(f"{name}," in manifest for name in HOSTILE)
    assert browser.get("/").status_code == 200


def test_no_uploaded_byte_is_sent_back(browser, attacked):
    pages = ["/", f"/sites/{attacked}", f"/sites/{attacked}/findings", f"/matching?site={attacked}"]
    for name in (*HOSTILE, "good.png"):
        at = f"/sites/{attacked}/images/{name}"
        pages += [
            at,
            f"/sites/{attacked}/images/{image_key(name)}",
            f"/sites/{attacked}/images/{image_key(name)}.large.jpg",
        ]
    for address in pages:
        answer = browser.get(address)
        assert b"<script>alert" not in answer.content, address
        assert b"onload=" not in answer.content, address
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "unsafe-inline" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name", ["../site.json", "..\\..\\secret", "/etc/cron.d/x", "../../../secret", "a/../../b.png"]
)
def test_an_uploaded_name_stays_in_the_folder_of_its_site(browser, settings, name):
    identifier = browser.new_site(settings, "")
    folder, secret = settings.work / "sites" / identifier, (settings.work / "secret").read_bytes()
    about = (folder / "site.json").read_bytes()
    browser.send("PUT", f"/sites/{identifier}/images", params={"name": name}, content=b"mine")
    (written,) = (folder / "images").iterdir()
    assert written.read_bytes() == b"mine"
    assert (folder / "site.json").read_bytes() == about
    assert (settings.work / "secret").read_bytes() == secret


def test_a_site_that_has_started_or_names_a_folder_takes_no_uploads(browser, settings, site, images):
    before = sorted(images.iterdir())
    answer = browser.send("PUT", f"/sites/{site}/images", params={"name": "a.png"}, content=b"1")
    assert answer.status_code == 400
    assert "has started" in answer.json()["reason"]
    assert sorted(images.iterdir()) == before


@pytest.mark.parametrize(
    ("method", "address"),
    [("POST", "/sites"), ("PUT", "/sites/{}/images?name=a.png"), ("POST", "/sites/{}/start"),
     ("POST", "/sites/{}/stop"), ("DELETE", "/sites/{}"), ("POST", "/sites/{}/images/{key}/verdict"),
     ("POST", "/sites/{}/images/{key}/strokes")],
)  # fmt: skip
def test_every_change_needs_the_csrf_token_and_a_page_of_this_server(
    browser, settings, site, method, address
):
    address = address.format(site, key=image_key("00.png"))
    folder = settings.work / "sites" / site
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for headers in (
        {},
        {"x-csrf-token": "x"},
        browser.headers | {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
    ):
        answer = browser.client.request(method, address, headers=headers, json={"verdict": "accepted"})
        assert answer.status_code == 403, headers
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_with_a_token_no_address_answers_without_it(settings, browse, learned):
    shutil.copytree(learned, settings.work / "sites" / learned.name)
    others = dataclasses.replace(
        settings, host="0.0.0.0", token="secret-token", names=("gpu.clinic.example",)
    )
    at = f"/sites/{learned.name}"
    with browse(others) as browser:
        for address in ("/", "/runs", "/matching", at, f"{at}/events", f"{at}/export.zip", f"{at}/report.html",
                        f"{at}/images/{image_key('00.png')}.large.jpg", "/static/site.js"):  # fmt: skip
            answer = browser.get(address)
            assert answer.status_code == 401, address
            assert learned.name not in answer.text
        assert browser.client.post("/sites?token=secret-token", json={}).status_code == 401
        browser.client.cookies.set("ttdg_token", "secret-tokem")
        assert browser.get("/").status_code == 401
        browser.client.cookies.clear()
        opened = browser.get(f"{at}?token=secret-token")
        assert (opened.status_code, opened.headers["location"]) == (303, "/")  # the token leaves the address
        assert browser.get(at).status_code == 200
        assert browser.get(at, headers={"host": "evil.example"}).status_code == 421
        assert browser.get(at, headers={"host": "gpu.clinic.example:8020"}).status_code == 200


def test_html_in_the_names_of_a_run_is_escaped(settings, finished, browse, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    text = json.loads((run / "run.json").read_text()) | {"name": "<img src=x onerror=alert(1)>"}
    (run / "run.json").write_text(json.dumps(text))
    with browse(dataclasses.replace(settings, runs=(run,))) as browser:
        query = {"group": 0, "method": "<script>alert(1)</script>", "column": "<b>"}
        for answer in (browser.get("/runs"), browser.get("/runs/0"), browser.get("/runs/0/cell", params=query),
                       browser.get("/runs/0?experiment=<script>alert(1)</script>")):  # fmt: skip
            assert "<script>alert" not in answer.text
            assert "<img src=x" not in answer.text
        assert "&lt;img src=x" in browser.get("/runs").text


def test_an_image_with_too_many_pixels_is_set_aside(settings, browse, images):
    small = dataclasses.replace(settings, most_pixels=1000)
    with browse(small) as browser:
        identifier = browser.new_site(small, images, method="source")
        assert browser.wait(identifier) == "done"
        assert "Set aside" in browser.get(f"/sites/{identifier}/images/{image_key('00.png')}").text
        assert not (small.work / "sites" / identifier / "shown" / f"{image_key('00.png')}.jpg").exists()
