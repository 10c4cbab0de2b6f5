"""Orders of slices, batches of one volume, and the volumes of a stream."""

from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import ORDERS, Case, Site, complete_volumes, find_sites, ordered
from ttdg.data.volumes.grouping import batched, volume_of


def site(name: str, slices: list[int]) -> Site:
    """A site with one patient for each number of slices."""
    cases = [
        Case(f"p{patient}_{number:02}", Path(f"p{patient}_{number:02}.png"), None, f"p{patient}")
        for patient, count in enumerate(slices)
        for number in range(count)
    ]
    return Site(name, tuple(cases))


counts = st.lists(st.integers(1, 6), min_size=1, max_size=6)
streams = st.tuples(counts, counts)


def stream_of(slices: tuple[list[int], list[int]]) -> list[tuple[Site, Case]]:
    """The images of two sites in the order of their files."""
    return [(s, case) for s in (site("a", slices[0]), site("b", slices[1])) for case in s.cases]


orders, shuffles = st.sampled_from(ORDERS), st.none() | st.integers(0, 99)


@settings(max_examples=60, deadline=None)
@given(streams, orders, shuffles, st.integers(1, 5))
def test_every_order_holds_every_image_once_and_batches_keep_it(slices, order, seed, size):
    images = stream_of(slices)
    found = ordered(images, order, seed)
    assert Counter(map(repr, found)) == Counter(map(repr, images))
    batches = list(batched(found, size, order))
    assert [image for batch in batches for image in batch] == found
    assert all(1 <= len(batch) <= size for batch in batches)
    assert found == ordered(images, order, seed)


@settings(max_examples=60, deadline=None)
@given(streams, st.sampled_from(["volume", "shuffled-volume"]), shuffles, st.integers(1, 5))
def test_by_volume_a_batch_holds_slices_of_one_volume_and_as_many_as_there_are(slices, order, seed, size):
    images = stream_of(slices)
    found = ordered(images, order, seed)
    runs = [list(run) for _, run in groupby(found, volume_of)]
    assert len(runs) == len({volume_of(image) for image in images}), "each volume comes once"
    batches = list(batched(found, size, order))
    assert all(len({volume_of(image) for image in batch}) == 1 for batch in batches)
    assert len(batches) == sum(-(-len(run) // size) for run in runs)
    if order == "volume":
        assert all([case.name for _, case in run] == sorted(case.name for _, case in run) for run in runs)


def test_shuffled_slices_of_a_volume_are_not_in_order():
    one = site("a", [30])
    names = [case.name for _, case in ordered([(one, c) for c in one.cases], "shuffled-volume", 0)]
    assert names != sorted(names)


@settings(max_examples=60, deadline=None)
@given(streams, st.integers(0, 60))
def test_a_volume_is_scored_if_all_of_its_slices_are_in_the_stream(slices, limit):
    images = stream_of(slices)
    kept = images[:limit]
    found = complete_volumes(kept, 32, spacing=False)
    whole = Counter(map(volume_of, images))
    expected = {volume for volume, count in Counter(map(volume_of, kept)).items() if count == whole[volume]}
    assert {(volume.site, volume.name) for volume in found} == expected
    for volume in found:
        assert len(volume.slices) == whole[volume.site, volume.name]
        assert list(volume.slices) == sorted(volume.slices)


def test_the_spacing_of_a_volume_follows_the_size_of_the_network(make_site):
    table = "case,patient,spacing_y,spacing_x,spacing_z\ncase0,p,0.5,0.25,3\ncase1,p,0.5,0.25,3\ncase2,q,0.5,0.25,\n"
    cases = find_sites(make_site("a", 3, side=32, table=table))["a"]
    known, unknown = complete_volumes([(cases, case) for case in cases.cases], 64, spacing=True)
    assert known.spacing == pytest.approx((3, 0.25, 0.125))
    assert unknown.spacing is None
