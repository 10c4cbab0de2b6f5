"""Sites with a folder of images for each class: found, read, checked, split and drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ttdg.data import (
    Benchmark,
    check_benchmark,
    find_sites,
    fingerprint,
    load_arrays,
    load_benchmark,
    load_site,
    pack_site,
)
from ttdg.data.synthetic import SITES, draw_site, write_benchmark
from ttdg.errors import UserError

BENCHMARK = Benchmark.from_dict(
    {
        "name": "pets",
        "task": "classification",
        "labels": ["cat", "dog"],
        "normalisation": "imagenet",
        "size": 32,
    }
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sites, three images of each class; the level of an image tells its class."""
    for site in ("art", "photo"):
        for number, name in enumerate(BENCHMARK.labels):
            folder = tmp_path / "pets" / site / name
            folder.mkdir(parents=True)
            for case in range(3):
                level = 100 * number + 10 * case
                Image.fromarray(np.full((20, 24, 3), level, np.uint8)).save(folder / f"{case}.png")
    return tmp_path / "pets"


def test_a_site_is_a_folder_of_classes_and_a_case_has_the_class_of_its_folder(root):
    sites = find_sites(root)
    assert list(sites) == ["art", "photo"]
    cases = sites["art"].cases
    assert [case.name for case in cases] == [f"{name}/{n}" for name in BENCHMARK.labels for n in range(3)]
    assert [case.label for case in cases] == ["cat"] * 3 + ["dog"] * 3
    assert all(case.labelled and case.mask is None for case in cases)


def test_the_label_map_of_an_image_holds_its_class_everywhere(root):
    arrays = load_arrays(find_sites(root)["art"].cases, BENCHMARK)
    assert arrays.masks is not None
    assert arrays.masks.shape == (6, 32, 32)
    levels = arrays.images.float().mean((1, 2, 3)) >= 100
    assert (arrays.masks == levels[:, None, None]).all()


def test_a_pack_holds_what_the_files_hold(root):
    site = find_sites(root)["art"]
    direct = load_arrays(site.cases, BENCHMARK)
    pack_site(site, BENCHMARK)
    packed = load_site(site, BENCHMARK)
    assert packed.cases == direct.cases
    assert packed.images.equal(direct.images)
    assert packed.masks.equal(direct.masks)


def test_the_fingerprint_depends_on_the_class(root):
    before = fingerprint(find_sites(root)["art"].cases)
    (root / "art" / "cat" / "0.png").rename(root / "art" / "dog" / "9.png")
    assert fingerprint(find_sites(root)["art"].cases) != before


def test_a_sound_folder_passes_the_check_with_the_share_of_each_class(root):
    report = check_benchmark(root, BENCHMARK)
    assert report.ok
    assert [site.labels for site in report.sites] == [{"cat": 0.5, "dog": 0.5}] * 2


def test_an_unknown_class_is_refused_with_the_closest_known_one(root):
    (root / "art" / "dog").rename(root / "art" / "dogs")
    with pytest.raises(UserError, match=r"'dogs', which is no class .* did you mean 'dog'"):
        load_arrays(find_sites(root)["art"].cases, BENCHMARK)
    assert not check_benchmark(root, BENCHMARK).ok


def test_a_segmentation_benchmark_refuses_class_folders(root):
    with pytest.raises(UserError, match="needs masks; put images into SITE/images"):
        load_arrays(find_sites(root)["art"].cases, load_benchmark("polyp"))


def test_class_folders_beside_sites_with_masks_are_not_sites(root):
    for part in ("images", "masks"):
        (root / "hospital" / part).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(root / "hospital" / part / "a.png")
    assert list(find_sites(root)) == ["hospital"]


def test_a_description_of_a_classification_has_neither_masks_nor_regions():
    fields = BENCHMARK.to_dict()
    assert fields.keys() == {"name", "task", "labels", "normalisation", "size"}
    assert Benchmark.from_dict(fields) == BENCHMARK
    with pytest.raises(UserError, match="neither masks nor regions"):
        Benchmark.from_dict({**fields, "regions": {"a": ["cat"]}})
    with pytest.raises(UserError, match="mask: Field required"):
        Benchmark.from_dict({key: value for key, value in fields.items() if key != "task"})


def test_a_segmentation_is_described_as_before_there_were_tasks():
    """The description is part of the keys of all trainings."""
    assert "task" not in load_benchmark("fundus").to_dict()
    assert (
        replace(load_benchmark("fundus"), size=64).to_dict().keys()
        == load_benchmark("fundus").to_dict().keys()
    )


def test_the_drawn_sites_hold_every_class_and_pass_the_check(tmp_path):
    out = write_benchmark(tmp_path / "shapes", "shapes", count=30, size=32)
    report = check_benchmark(out, load_benchmark(None, out))
    assert report.ok
    assert [site.cases for site in report.sites] == [30] * len(SITES)
    assert all(share > 0 for site in report.sites for share in site.labels.values())


def test_a_drawn_case_depends_on_its_number_alone():
    few, many = (draw_site("shapes", "valley", count, size=32, seed=4) for count in (2, 5))
    np.testing.assert_array_equal(few[0], many[0][:2])
    np.testing.assert_array_equal(few[1], many[1][:2])
    assert all(len(np.unique(mask)) == 1 for mask in many[1])
