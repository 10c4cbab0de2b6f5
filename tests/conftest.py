"""A benchmark small enough to train on in a second: bright discs on noise, one tint a site."""

import numpy as np
import pytest
import torch
from PIL import Image

from ttdg.data import load_benchmark
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.training import Model, ModelCard

torch.set_num_threads(1)

YAML = """\
name: discs
labels: [background, disc]
mask: {threshold: 127, above: disc, below: background}
regions: {disc: [disc]}
normalisation: minmax
size: 32
"""


def draw_disc(seed: int, height: int, width: int, tint: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    cy, cx = rng.uniform(0.35, 0.65, 2) * (height, width)
    inside = (y - cy) ** 2 + (x - cx) ** 2 < (rng.uniform(0.2, 0.3) * min(height, width)) ** 2
    image = rng.normal(60 * tint, 15, (height, width, 3)) + inside[..., None] * (120, 90, 40)
    return image.clip(0, 255).astype(np.uint8), (inside * 255).astype(np.uint8)


@pytest.fixture(scope="session")
def discs(tmp_path_factory):
    """A benchmark folder with three sites of ten images."""
    root = tmp_path_factory.mktemp("discs")
    (root / "benchmark.yaml").write_text(YAML)
    for number, site in enumerate(("east", "south", "west")):
        for part in ("images", "masks"):
            (root / site / part).mkdir(parents=True)
        for case in range(10):
            image, mask = draw_disc(100 * number + case, 40, 48, 0.5 + number)
            Image.fromarray(image).save(root / site / "images" / f"{case:02}.png")
            Image.fromarray(mask).save(root / site / "masks" / f"{case:02}.png")
    return root


@pytest.fixture(scope="session")
def disc_model(discs):
    """An untrained network with its card: enough for everything but good scores."""
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).eval()
    return Model(
        network, ModelCard(network.spec, load_benchmark(None, discs), {"east": {"cases": 10}}, sha256="0")
    )
