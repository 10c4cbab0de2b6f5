"""A real server and headless Chromium. Without Chromium or Playwright these tests are skipped, with the reason."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ttdg.data.synthetic.write import write_benchmark

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("TTDG_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
RECORDS = HERE.parents[2] / "docs" / "records" / "fundus"
WAIT = 120_000  # milliseconds; a shared machine may be slow


def pytest_collection_modifyitems(items):
    try:
        import playwright  # noqa: F401

        reason = "" if CHROMIUM else "Chromium is not installed (apt install chromium)"
    except ImportError:
        reason = "Playwright is not installed (make installs it with the extra dev)"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


class Server:
    """`ttdg serve` in its own process."""

    def __init__(self, work, *options, port=0):
        self.work, self.options = work, options
        self.start(port)

    def start(self, port=0):
        words = [sys.executable, "-m", "ttdg", "serve", "--work", str(self.work), "--port", str(port)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*words, "--device", "cpu", *self.options], stdout=subprocess.PIPE, text=True, env=env
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), "the server did not start"

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1].strip("/"))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory):
    """Drawn hospitals of twelve images; the demo model has never seen summit."""
    return write_benchmark(tmp_path_factory.mktemp("hospitals"), "fundus", 12, seed=7)


@pytest.fixture(scope="session")
def server(tmp_path_factory, hospitals, finished):
    runs = ("--run", str(finished[0]), "--run", str(RECORDS))
    opened = Server(
        tmp_path_factory.mktemp("page"), "--images", str(hospitals), "--max-megabytes", "1", *runs
    )
    yield opened
    opened.stop()


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """`tab(width, dark)` opens a page whose script errors fail the test."""
    opened, errors = [], []

    def make(width=1280, dark=False):
        context = chromium.new_context(
            viewport={"width": width, "height": 860}, color_scheme="dark" if dark else "light"
        )
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        opened.append(context)
        return page

    yield make
    for context in opened:
        context.close()
    unexpected = [text for text in errors if "ERR_" not in text and "status of 4" not in text]
    assert not unexpected, unexpected


@pytest.fixture(scope="session")
def learn():
    """`learn(page, url, folder, method)` fills in the form and returns the address of the site."""

    def run(page, url, folder, title="Summit", method="judge"):
        page.goto(url)
        page.get_by_label("Name of the site").fill(title)
        page.get_by_label("Method").select_option(method)
        page.get_by_label("Or name a folder").fill(str(folder))
        page.get_by_role("button", name="Learn this site").click()
        page.wait_for_url("**/sites/*")
        return page.url

    return run


@pytest.fixture(scope="session")
def learned(chromium, server, hospitals, learn):
    """The address of a site whose images are all answered."""
    page = chromium.new_page()
    page.set_default_timeout(WAIT)
    address = learn(page, server.url, hospitals / "summit" / "images")
    page.wait_for_selector("#state .tag.done")
    page.close()
    return address


@pytest.fixture(scope="session")
def shots(tmp_path_factory):
    """Where screenshots go: the folder of TTDG_SCREENSHOTS, or one that is thrown away."""
    return Path(os.environ.get("TTDG_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))


@pytest.fixture(scope="session")
def serve():
    """The class of the server, for tests that kill it."""
    return Server
