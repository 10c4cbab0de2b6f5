"""Measure the page: first paint, memory with a ResNet-50, and the time from an answer to its contour on the screen.

python benchmarks/page_speed.py            # needs Chromium; goals: 300 ms, 1 GB, 200 ms
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
from playwright.sync_api import sync_playwright

from ttdg.checkpoints import load, save
from ttdg.data.synthetic.write import write_benchmark
from ttdg.networks import NetworkSpec, Segmenter


def large_model(folder: Path) -> Path:
    """An untrained ResNet-50 for the benchmark of the demo."""
    demo = load("demo", "cpu")
    network = Segmenter(NetworkSpec(labels=demo.card.network.labels, encoder="resnet50"))
    save(folder, network, replace(demo.card, network=network.spec))
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        images = write_benchmark(root / "data", "fundus", 24, seed=7) / "summit" / "images"
        words = [
            "serve",
            "--work",
            str(root / "work"),
            "--images",
            str(images),
            "--port",
            "0",
            "--device",
            "cpu",
        ]
        words += ["--model", "demo", "--model", str(large_model(root / "large"))]
        command = [sys.executable, "-m", "ttdg", *words]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            with sync_playwright() as playwright:
                page = playwright.chromium.launch(executable_path=chromium).new_page()
                paints = []
                for _ in range(5):
                    page.goto(url)
                    page.wait_for_timeout(200)
                    paint = page.evaluate(
                        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                    )
                    paints.append(round(paint or -1))
                memory = psutil.Process(server.pid).memory_info().rss / 2**20
                page.get_by_label("Or name a folder").fill(str(images))
                page.get_by_role("button", name="Learn this site").click()
                page.wait_for_url("**/sites/*")
                delays, shown = [], None
                while page.locator("#state .tag.done").count() == 0:
                    key = page.evaluate("document.querySelector('#viewer article')?.dataset.key")
                    if key and key != shown:
                        (journal,) = (root / "work" / "sites").glob("*/out/journal.jsonl")
                        delays.append(round(1000 * (time.time() - journal.stat().st_mtime)))
                        shown = key
                    page.wait_for_timeout(5)
                print(
                    json.dumps(
                        {"first paint, ms": paints, "memory, MB": round(memory), "contour, ms": delays}
                    )
                )
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
