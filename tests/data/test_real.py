"""Tests on the real images, if TTDG_DATA names the folder that holds `polyp` and `fundus`."""

import os
from pathlib import Path

import pytest
import torch

from ttdg.data import check_benchmark, find_sites, load_benchmark, split, stream

ROOT = Path(os.environ.get("TTDG_DATA", "")) if os.environ.get("TTDG_DATA") else None

pytestmark = pytest.mark.skipif(
    ROOT is None, reason="TTDG_DATA is not set; the real images are not part of the repository"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("polyp", {"bkai": 1000, "clinicdb": 612, "etis": 196, "kvasir": 1000}),
        ("fundus", {"drishti": 101, "origa": 650, "papila": 488}),
    ],
)
def test_the_real_folders_are_sound_and_as_large_as_documented(name: str, counts: dict[str, int]):
    report = check_benchmark(ROOT / name, load_benchmark(name))
    assert [problem for site in report.sites for problem in site.problems] == []
    assert {site.name: site.cases for site in report.sites} == counts


def test_both_eyes_of_a_patient_are_on_one_side():
    train, held_out = split(find_sites(ROOT / "fundus", ["papila"])["papila"].cases)
    assert len({case.patient for case in (*train, *held_out)}) == 244
    assert not {case.patient for case in train} & {case.patient for case in held_out}
    assert 0.1 < len(held_out) / 488 < 0.3


@pytest.mark.parametrize(("name", "site"), [("polyp", "etis"), ("fundus", "drishti")])
def test_real_batches_are_ready_for_a_network(name: str, site: str):
    benchmark = load_benchmark(name)
    loaded = next(stream(find_sites(ROOT / name, [site])[site].cases, benchmark, 8))
    assert loaded.batch.images.shape == (8, 3, 256, 256)
    assert loaded.batch.images.isfinite().all()
    assert set(loaded.batch.masks.unique().tolist()) == set(range(len(benchmark.labels)))
    assert loaded.batch.images.dtype == torch.float32
