"""Small sites on disk, made on the spot."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ttdg.data import Benchmark, load_benchmark

MakeSite = Callable[..., Path]


@pytest.fixture(scope="session")
def fundus() -> Benchmark:
    return load_benchmark("fundus")


@pytest.fixture(scope="session")
def small(fundus: Benchmark) -> Benchmark:
    """Fundus at a size that costs nothing."""
    return Benchmark.from_dict(fundus.to_dict() | {"size": 32})


def picture(number: int, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """An image that tells which it is, and its mask: a disc with a cup inside."""
    generator = np.random.default_rng(number)
    image = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
    y, x = np.mgrid[:side, :side] - side / 2
    radius = np.hypot(y, x)
    mask = np.select([radius < side / 8, radius < side / 4], [0, 128], 255).astype(np.uint8)
    return image, mask


@pytest.fixture
def make_site(tmp_path: Path) -> MakeSite:
    """make_site("a", 5) → the root; site `a` then holds case0…case4."""

    def make(name: str, cases: int, side: int = 32, table: str | None = None) -> Path:
        folder = tmp_path / "root" / name
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(cases):
            image, mask = picture(number, side)
            Image.fromarray(image).save(folder / "images" / f"case{number}.png")
            Image.fromarray(mask).save(folder / "masks" / f"case{number}.png")
        if table is not None:
            (folder / "cases.csv").write_text(table, encoding="utf-8")
        return tmp_path / "root"

    return make
