from dataclasses import replace
from importlib import resources
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from ttdg.data import check_benchmark, find_sites, load_benchmark, read_image
from ttdg.data.synthetic.cases import SITES, draw_site, patient_of
from ttdg.data.synthetic.fields import smooth_noise
from ttdg.data.synthetic.style import Style, develop
from ttdg.data.synthetic.write import write_benchmark
from ttdg.errors import UserError

VARIANTS = ("fundus", "polyp")
NEIGHBOURS = np.ones((3, 3), dtype=bool)

some = settings(max_examples=12, deadline=None)
variants, sites, seeds = st.sampled_from(VARIANTS), st.sampled_from(SITES), st.integers(0, 10_000)
sizes = st.sampled_from((32, 48, 97, 128))


@some
@given(variants, sites, sizes, seeds)
def test_the_same_seed_draws_the_same_pictures_and_another_draws_others(variant, site, size, seed):
    images, masks = draw_site(variant, site, 2, size, seed)
    again, masks_again = draw_site(variant, site, 2, size, seed)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(masks, masks_again)
    others, other_masks = draw_site(variant, site, 2, size, seed + 1)
    assert (images != others).any()
    assert (masks != other_masks).any()


@some
@given(variants, sites, seeds, st.integers(1, 3), st.integers(1, 3))
def test_a_site_grows_without_changing_the_pictures_it_has(variant, site, seed, few, more):
    images, masks = draw_site(variant, site, few, 32, seed)
    grown, grown_masks = draw_site(variant, site, few + more, 32, seed)
    np.testing.assert_array_equal(images, grown[:few])
    np.testing.assert_array_equal(masks, grown_masks[:few])


@some
@example("lakeside", 32, 24)
@given(sites, sizes, seeds)
def test_the_cup_lies_inside_the_disc_with_a_rim_all_round(site, size, seed):
    _, masks = draw_site("fundus", site, 4, size, seed)
    for mask in masks:
        assert set(np.unique(mask)) == {0, 1, 2}
        disc, cup = mask > 0, mask == 2
        assert ndimage.label(disc)[1] == ndimage.label(cup, NEIGHBOURS)[1] == 1
        assert (ndimage.binary_fill_holes(disc) == disc).all()
        assert disc[ndimage.binary_dilation(cup)].all()  # no cup pixel touches the background


@some
@given(sites, sizes, seeds)
def test_one_to_three_polyps_are_found_wholly_within_the_picture(site, size, seed):
    _, masks = draw_site("polyp", site, 4, size, seed)
    for mask in masks:
        assert set(np.unique(mask)) == {0, 1}
        assert 1 <= ndimage.label(mask, NEIGHBOURS)[1] <= 3
        assert mask[1:-1, 1:-1].sum() == mask.sum()


@pytest.mark.parametrize("site", SITES)
def test_the_anatomy_can_be_seen_at_every_hospital(site):
    """Disc against retina and cup against rim differ by more than the colours within each vary."""
    images, masks = draw_site("fundus", site, 6)
    for image, mask in zip(images.astype(float), masks, strict=True):
        near = ndimage.binary_dilation(mask > 0, iterations=10) & (mask == 0)
        for one, other in ((near, mask == 1), (mask == 1, mask == 2)):
            gap = np.median(image[other], 0) - np.median(image[one], 0)
            assert np.abs(gap).max() > 10, site


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_two_hospitals_differ_in_their_colours(variant):
    means = {}
    spreads = {}
    for site in SITES:
        levels = draw_site(variant, site, 10, 64)[0].mean((1, 2))
        means[site], spreads[site] = levels.mean(0), levels.std(0)
    for one, other in combinations(SITES, 2):
        apart = np.abs(means[one] - means[other]) / np.maximum(spreads[one], spreads[other])
        assert apart.max() > 2, f"{one} and {other} look alike"


def test_a_left_eye_has_its_macula_on_the_other_side():
    """Retina darkens towards the macula: on the right of even cases, on the left of odd ones."""
    images, masks = draw_site("fundus", "lakeside", 12, 64)
    retina = np.where(masks > 0, np.nan, images.astype(float).mean(-1))
    lean = np.nanmean(retina[..., 44:60], (1, 2)) - np.nanmean(retina[..., 4:20], (1, 2))
    assert (lean[0::2] < 0).mean() > 0.8
    assert (lean[1::2] > 0).mean() > 0.8


def test_of_every_five_pictures_two_are_of_one_patient():
    patients = [patient_of(case) for case in range(40)]
    assert [b - a for a, b in pairwise(patients)][:10] == [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]


def test_both_eyes_of_a_patient_are_alike():
    """Their discs differ less in area than those of strangers."""
    area = np.sqrt((draw_site("fundus", "north", 60, 48)[1] > 0).sum((1, 2)))
    pairs = np.abs(area[0::5] - area[1::5])
    strangers = np.abs(area[2::5] - area[3::5])
    assert pairs.mean() < 0.6 * strangers.mean()


@some
@given(st.integers(1, 12), st.integers(16, 64), seeds)
def test_smooth_noise_has_unit_variance_at_every_pixel(knots, size, seed):
    rng = np.random.default_rng(seed)
    noise = np.stack([smooth_noise(rng, size, knots) for _ in range(400)])
    assert noise.std(0).min() > 0.8
    assert noise.std(0).max() < 1.25


def test_a_neutral_camera_stores_what_it_sees():
    y, x = np.mgrid[0:1:64j, 0:1:64j].astype(np.float32)
    scene = np.stack([x, y, (x + y) / 2], -1)
    stored = develop(scene, Style(drift=0.0), np.random.default_rng(0))
    assert np.abs(stored / 255 - scene).mean() < 0.01


@pytest.mark.parametrize(("variant", "greys"), [("fundus", {0, 128, 255}), ("polyp", {0, 255})])
def test_a_written_benchmark_holds_what_was_drawn(variant, greys, tmp_path):
    counts = []
    out = write_benchmark(
        tmp_path / "deep" / "out", variant, count=6, size=48, seed=3, progress=counts.append
    )
    assert counts == list(range(1, 31))
    benchmark, found = load_benchmark(None, out), find_sites(out)
    assert benchmark == replace(load_benchmark(f"synthetic-{variant}"), size=48)
    assert set(found) == set(SITES)
    for name, site in found.items():
        images, masks = draw_site(variant, name, 6, 48, seed=3)
        for case, image, mask in zip(site.cases, images, masks, strict=True):
            np.testing.assert_array_equal(read_image(case.image), image)
            raw = np.asarray(Image.open(case.mask))
            assert set(np.unique(raw)) == greys
            np.testing.assert_array_equal(benchmark.encode(raw), mask)


@pytest.mark.parametrize("variant", [*VARIANTS, "prostate", "shapes"])
def test_the_default_size_is_described_by_the_packages_own_text(variant, tmp_path):
    out = write_benchmark(tmp_path / "out", variant, count=1)
    own = resources.files("ttdg.data") / "benchmarks" / f"synthetic-{variant}.yaml"
    assert (out / "benchmark.yaml").read_text() == own.read_text()


def test_a_written_benchmark_passes_the_check(tmp_path):
    out = write_benchmark(tmp_path / "out", "fundus", count=6, size=48)
    report = check_benchmark(out, load_benchmark(None, out))
    assert report.ok
    assert [(site.cases, site.patients) for site in report.sites] == [(6, 5)] * 5


def test_growing_a_benchmark_keeps_its_files_and_patients(tmp_path):
    small = write_benchmark(tmp_path / "small", "polyp", count=2, size=32)
    large = write_benchmark(tmp_path / "large", "polyp", count=4, size=32)
    for site in SITES:
        kept = (small / site / "cases.csv").read_text().splitlines()
        assert (large / site / "cases.csv").read_text().splitlines()[: len(kept)] == kept
    for file in small.rglob("*.png"):
        assert (large / file.relative_to(small)).read_bytes() == file.read_bytes()


def test_an_older_drawing_is_replaced_and_other_files_are_left_alone(tmp_path):
    out = write_benchmark(tmp_path / "out", "fundus", count=2, size=32)
    write_benchmark(out, "polyp", count=1, size=32)
    assert load_benchmark(None, out).name == "synthetic-polyp"
    assert len(list(out.rglob("*.png"))) == 10
    write_benchmark(out, "polyp", count=1, size=48)
    assert load_benchmark(None, out).size == 48
    mine = (out / "benchmark.yaml").read_text() + "# mine\n"
    (out / "benchmark.yaml").write_text(mine)
    with pytest.raises(UserError, match="holds other files"):
        write_benchmark(out, "polyp", count=1, size=48)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for taken in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(UserError, match="holds other files"):
            write_benchmark(taken, "fundus", count=1, size=32)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_writing_that_is_broken_off_leaves_nothing(tmp_path):
    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_benchmark(tmp_path / "out", "fundus", count=2, size=32, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fundsu", "north", 1), "did you mean 'fundus'"),
        (("fundus", "nroth", 1), "did you mean 'north'"),
        (("fundus", "north", 0), "at least 1"),
        (("polyp", "north", 1, 16), "at least 32"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(arguments, words):
    with pytest.raises(UserError, match=words):
        draw_site(*arguments)
