"""Drawn prostate volumes: anatomy, scanners, and the folder they are written to."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from ttdg.data import check_benchmark, complete_volumes, find_sites, load_arrays, load_benchmark
from ttdg.data.synthetic.cases import SITES, draw_site
from ttdg.data.synthetic.prostate import PERIPHERAL, SCANNERS, TRANSITION, draw_volume
from ttdg.data.synthetic.write import write_benchmark
from ttdg.data.volumes import nifti
from ttdg.errors import UserError

sites, seeds = st.sampled_from(SITES), st.integers(0, 10_000)


@settings(max_examples=12, deadline=None)
@given(sites, seeds, st.sampled_from([48, 64]))
def test_a_gland_is_one_piece_of_two_zones_with_slices_beyond_it(site, seed, size):
    drawn = draw_volume(site, 0, size, seed)
    gland = drawn.labels > 0
    assert set(np.unique(drawn.labels)) == {0, TRANSITION, PERIPHERAL}
    assert ndimage.label(gland)[1] == 1
    inside = gland.any((1, 2))
    assert not inside[:2].any()
    assert not inside[-2:].any()
    assert inside[len(inside) // 2]
    millilitres = gland.sum() * np.prod(drawn.spacing) / 1000
    assert 10 < millilitres < 90, "the size of a prostate, whatever the spacing"
    front, back = (np.nonzero(drawn.labels == label)[1].mean() for label in (TRANSITION, PERIPHERAL))
    assert front < back, "the transition zone lies in front"
    assert np.isfinite(drawn.values).all()
    assert drawn.values.min() >= 0


@settings(max_examples=6, deadline=None)
@given(sites, seeds)
def test_a_volume_depends_on_its_seed_and_number_only(site, seed):
    one = draw_volume(site, 3, 48, seed)
    np.testing.assert_array_equal(one.values, draw_volume(site, 3, 48, seed).values)
    for other in (draw_volume(site, 4, 48, seed), draw_volume(site, 3, 48, seed + 1)):
        assert one.values.shape != other.values.shape or (one.values != other.values).any()


def test_hospitals_differ_in_spacing_and_in_the_intensities_of_the_gland():
    def contrast(site: str) -> float:
        """Peripheral minus transition zone, in standard deviations of the volume."""
        drawn = [draw_volume(site, number, 64, 0) for number in range(6)]
        return float(np.mean([
            (d.values[d.labels == PERIPHERAL].mean() - d.values[d.labels == TRANSITION].mean()) / d.values.std()
            for d in drawn
        ]))  # fmt: skip

    contrasts = {site: contrast(site) for site in SITES}
    assert max(contrasts.values()) > 1.5 * min(contrasts.values()) > 0
    spacings = {site: draw_volume(site, 0, 64, 0).spacing for site in SITES}
    assert all(spacings[a] != spacings[b] for a, b in combinations(SITES, 2))
    assert all(z > 1.05 * y for z, y, _ in spacings.values()), "slices are farther apart than pixels"


def test_a_written_benchmark_holds_the_volumes_whatever_their_stored_axes(tmp_path):
    out = write_benchmark(tmp_path / "out", "prostate", count=2, size=48, seed=3)
    benchmark = load_benchmark(None, out)
    assert benchmark == replace(load_benchmark("synthetic-prostate"), size=48)
    report = check_benchmark(out, benchmark)
    assert report.ok, [problem for site in report.sites for problem in site.problems]
    assert len({scanner.axes for scanner in SCANNERS.values()}) > 1
    for name, site in find_sites(out).items():
        images = [(site, case) for case in site.cases]
        for number, volume in enumerate(complete_volumes(images, 48, spacing=True)):
            drawn = draw_volume(name, number, 48, 3)
            cases = [case for case in site.cases if case.volume == volume.name]
            np.testing.assert_array_equal(load_arrays(cases, benchmark).masks, drawn.labels)
            np.testing.assert_array_equal(nifti.read_volume(cases[0].image), np.rint(drawn.values))
            assert volume.spacing == pytest.approx(drawn.spacing)


def test_volumes_are_not_drawn_as_images():
    with pytest.raises(UserError, match="are volumes; write them as a benchmark folder"):
        draw_site("prostate", "north", 1)
