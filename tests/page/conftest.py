"""A page over a small model, and helpers that act as a browser without one."""

import re
import shutil
import time

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from ttdg.checkpoints import save
from ttdg.page import PageSettings, create_app

BASE = "http://127.0.0.1:8020"


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, disc_model):
    folder = tmp_path_factory.mktemp("models") / "discs"
    save(folder, disc_model.network, disc_model.card)
    return folder


def write_images(folder, discs):
    """Write five images, one with a name that is HTML, and a file that is no image."""
    folder.mkdir(parents=True)
    for path in sorted((discs / "west" / "images").iterdir())[:4]:
        Image.open(path).save(folder / path.name)
    Image.open(path).save(folder / "<img src=x onerror=alert(1)>.png")
    (folder / "notes.png").write_text("no image")
    return folder


@pytest.fixture
def images(tmp_path, discs):
    """The images of a site, in a folder that the page may read."""
    return write_images(tmp_path / "allowed" / "west", discs)


@pytest.fixture(scope="session")
def learned(tmp_path_factory, model_folder, discs):
    """The folder of a site that was learned once. Not to be changed."""
    root = tmp_path_factory.mktemp("learned")
    settings = PageSettings(root / "work", (str(model_folder),), (root,), device="cpu")
    with Browser(create_app(settings)) as browser:
        identifier = browser.new_site(
            settings, write_images(root / "west", discs), "<script>alert(1)</script>"
        )
        assert browser.wait(identifier) == "done"
    return root / "work" / "sites" / identifier


@pytest.fixture
def site(learned, settings, browser):
    """The identifier of a copy of the learned site in the page of the test."""
    shutil.copytree(learned, settings.work / "sites" / learned.name)
    return learned.name


@pytest.fixture
def settings(tmp_path, model_folder, images):
    return PageSettings(tmp_path / "work", (str(model_folder),), (tmp_path / "allowed",), device="cpu")


class Browser:
    """A client that sends the CSRF token, as the scripts of the page do."""

    def __init__(self, app):
        self.client = TestClient(app, base_url=BASE, follow_redirects=False)

    def __enter__(self):
        self.client.__enter__()
        found = re.search(r'name="csrf" content="(\w+)"', self.client.get("/").text)
        self.headers = {"x-csrf-token": found[1]} if found else {}
        return self

    def __exit__(self, *error):
        self.client.__exit__(*error)

    def get(self, address, **more):
        return self.client.get(address, **more)

    def send(self, method, address, **more):
        return self.client.request(method, address, headers=self.headers, **more)

    def new_site(self, settings, folder, title="West", method="norm"):
        fields = {"title": title, "model": settings.models[0], "method": method, "folder": str(folder)}
        answer = self.send("POST", "/sites", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    def wait(self, identifier, *states):
        for _ in range(1200):
            found = re.search(r'data-state="(\w+)"', self.get(f"/sites/{identifier}").text)[1]
            if found in (states or ("done", "failed", "stopped")):
                return found
            time.sleep(0.05)
        raise AssertionError(f"the site is {found}")

    def keys(self, identifier):
        return re.findall(r'<li data-key="(\w+)"', self.get(f"/sites/{identifier}").text)


@pytest.fixture
def browse():
    """`browse(settings)`: a browser at a page with these settings, for a `with` block."""
    return lambda settings: Browser(create_app(settings))


@pytest.fixture
def browser(settings, browse):
    with browse(settings) as opened:
        yield opened
