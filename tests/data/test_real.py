"""Tests on the real images, if TTDG_DATA names the folder that holds `polyp`, `fundus`, `prostate` and `vessels`."""

import os
from pathlib import Path

import pytest
import torch

from ttdg.data import check_benchmark, complete_volumes, find_sites, load_benchmark, split, stream

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
        ("prostate", {"bidmc": 223, "prostatex": 227, "runmc": 203, "ucl": 228}),
        ("vessels", {"chase": 28, "drive": 40, "stare": 20}),
        ("pacs", {"art_painting": 700, "cartoon": 700, "photo": 700, "sketch": 680}),
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


def test_every_centre_of_the_prostate_holds_out_a_patient_and_trains_on_others():
    for site in find_sites(ROOT / "prostate").values():
        train, held_out = split(site.cases)
        assert train
        assert held_out, site.name


def test_slices_of_the_prostate_are_volumes_with_a_spacing_where_it_is_known():
    sites = find_sites(ROOT / "prostate")
    volumes = {
        name: complete_volumes([(site, case) for case in site.cases], 96, spacing=True)
        for name, site in sites.items()
    }
    assert {name: len(of) for name, of in volumes.items()} == {
        "bidmc": 9,
        "prostatex": 13,
        "runmc": 12,
        "ucl": 13,
    }
    for name, of in volumes.items():
        assert all((volume.spacing is not None) == (name == "prostatex") for volume in of)
    assert volumes["prostatex"][0].spacing == pytest.approx((3, 2, 2)), "192 pixels of 1 mm, on 96"


@pytest.mark.parametrize(
    ("name", "site"), [("polyp", "etis"), ("fundus", "drishti"), ("prostate", "ucl"), ("vessels", "stare")]
)
def test_real_batches_are_ready_for_a_network(name: str, site: str):
    benchmark = load_benchmark(name)
    loaded = next(stream(find_sites(ROOT / name, [site])[site].cases, benchmark, 8))
    assert loaded.batch.images.shape == (8, 3, benchmark.size, benchmark.size)
    assert loaded.batch.images.isfinite().all()
    assert set(loaded.batch.masks.unique().tolist()) == set(range(len(benchmark.labels)))
    assert loaded.batch.images.dtype == torch.float32
