import dataclasses
from urllib.parse import quote, unquote

import pytest
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.page import PageSettings
from ttdg.page.uploads import safe_name


def test_a_change_without_the_csrf_token_is_refused(browser):
    assert browser.client.post("/sites", json={"model": "demo", "method": "judge"}).status_code == 403
    wrong = browser.client.post("/sites", json={}, headers={"x-csrf-token": "0" * 64})
    assert wrong.status_code == 403


def test_the_token_of_another_session_is_refused(browser):
    browser.client.cookies.clear()
    assert browser.send("POST", "/sites", json={}).status_code == 403


def test_a_change_from_a_page_of_another_server_is_refused(browser):
    headers = {**browser.headers, "origin": "http://evil.example"}
    assert browser.client.post("/sites", json={}, headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8020", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_name_is_refused(browser, host):
    assert browser.client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8020", "127.0.0.1", "[::1]:8020"])
def test_the_names_of_this_machine_are_accepted(browser, host):
    assert browser.client.get("/", headers={"host": host}).status_code == 200


def test_an_address_that_others_can_reach_needs_a_token(tmp_path):
    with pytest.raises(UserError, match="token"):
        PageSettings(tmp_path, host="0.0.0.0")


def test_without_the_token_nothing_is_shown_and_with_it_a_cookie_replaces_the_address(settings, browse):
    others = dataclasses.replace(settings, host="0.0.0.0", token="secret-token")
    with browse(others) as browser:
        for address in ("/", "/static/page.css", "/sites/0123456789abcdef", "/?token=wrong"):
            assert browser.get(address).status_code == 401
        opened = browser.get("/?token=secret-token")
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        assert "httponly" in opened.headers["set-cookie"].lower()
        assert browser.get("/").status_code == 200


@pytest.mark.parametrize("token", ["zwölf", "a;b", "a b", 'a"b', "a\\b", "a\nb"])
def test_a_token_that_no_cookie_can_hold_is_refused(tmp_path, token):
    with pytest.raises(UserError, match="no cookie can hold"):
        PageSettings(tmp_path, token=token)


def test_any_other_token_opens_the_page_by_the_address_that_is_printed(settings, browse):
    token = "ab+cd/e&f#%=='"
    with browse(dataclasses.replace(settings, token=token)) as browser:
        assert browser.get(f"/?token={quote(token, safe='')}").status_code == 303
        assert browser.get("/").status_code == 200


def test_every_answer_forbids_foreign_scripts_and_storage(browser):
    for address in ("/", "/nowhere", "/static/page.css"):
        headers = browser.get(address).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert browser.get("/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "address",
    ["/static/../settings.py", "/static/%2e%2e%2fsettings.py", "/sites/..%2f..%2fetc", "/sites/../secret",
     "/sites/0123456789abcdef/images/..%2f..%2fsite.json", "/sites/%00/images/a.small.jpg"],
)  # fmt: skip
def test_no_address_leaves_its_folder(browser, address):
    answer = browser.get(address)
    assert answer.status_code in (400, 404)
    assert "PageSettings" not in answer.text


@pytest.mark.parametrize("folder", ["/etc", "/", "west/../../../..", "\0", "~root", "nowhere"])
def test_a_folder_outside_the_allowed_ones_is_refused(browser, settings, folder):
    fields = {"model": settings.models[0], "method": "norm", "folder": folder}
    answer = browser.send("POST", "/sites", json=fields)
    assert answer.status_code == 400
    assert "may read" in answer.json()["reason"]


def test_a_link_out_of_the_allowed_folder_is_refused(browser, settings, tmp_path, discs):
    (settings.folders[0] / "link").symlink_to(discs)
    fields = {"model": settings.models[0], "method": "norm", "folder": str(settings.folders[0] / "link")}
    assert browser.send("POST", "/sites", json=fields).status_code == 400


def test_a_model_that_the_command_did_not_name_is_refused(browser, discs):
    for model in ("demo", str(discs), "../../etc"):
        answer = browser.send("POST", "/sites", json={"model": model, "method": "norm", "folder": "x"})
        assert answer.status_code == 400


def test_the_secret_is_for_its_owner_only_and_outlives_the_server(browser, settings, browse):
    assert (settings.work / "secret").stat().st_mode & 0o077 == 0
    with browse(settings) as again:
        again.client.cookies.update(browser.client.cookies)
        assert browser.headers["x-csrf-token"] in again.get("/").text


@pytest.mark.parametrize(
    ("name", "safe"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\eye.png", "eye.png"), (".hidden.png", "hidden.png"), ("", "image"),
     ("a\nb\0.png", "ab.png"), ("...", "image"), ("<b>.png", "<b>.png")],
)  # fmt: skip
def test_uploaded_names_become_plain_file_names(name, safe):
    assert safe_name(name) == safe


def test_a_long_uploaded_name_is_cut_and_keeps_its_suffix():
    name = safe_name("é" * 300 + ".tiff")
    assert len(name.encode()) <= 160
    assert name.endswith(".tiff")


@pytest.mark.parametrize(
    ("host", "given", "asked"),
    [("127.0.0.1", "", False), ("0.0.0.0", "", True), ("127.0.0.1", "mi+ne/==", True)],
)
def test_the_command_makes_a_token_for_other_hosts_than_loopback(
    tmp_path, monkeypatch, model_folder, host, given, asked
):
    served = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: served.append(server.config.app))
    monkeypatch.setenv("TTDG_TOKEN", given)
    words = [
        "serve",
        "--host",
        host,
        "--port",
        "0",
        "--model",
        str(model_folder),
        "--work",
        str(tmp_path / "work"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    token = unquote(result.output.partition("?token=")[2].split("\n")[0])
    assert served[0].settings.token == token
    assert (len(token) >= 32) == (asked and not given)
    assert bool(token) == asked
    if host != "127.0.0.1":
        assert served[0].settings.folders == ()  # nothing of the server can be named unless --images says so
