"""Loading keeps pixels, labels and order, and bounds memory."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from ttdg.data import (
    Benchmark,
    Case,
    find_sites,
    load_arrays,
    loading,
    normalise,
    open_folder,
    stream,
    to_batch,
)
from ttdg.errors import UserError


def cases_of(root) -> tuple[Case, ...]:
    return next(iter(find_sites(root).values())).cases


def names(cases: Sequence[Case]) -> list[str]:
    return [case.name for case in cases]


def file_image(case: Case) -> np.ndarray:
    return np.array(Image.open(case.image))


# --- all at once


def test_arrays_hold_what_the_files_hold(make_site, small: Benchmark):
    cases = cases_of(make_site("a", 5))
    arrays = load_arrays(cases, small, workers=2)
    assert arrays.images.dtype == arrays.masks.dtype == torch.uint8
    assert arrays.cases == tuple(names(cases))
    for row, case in enumerate(cases):
        np.testing.assert_array_equal(arrays.images[row].permute(1, 2, 0), file_image(case))
        grey = np.array(Image.open(case.mask))
        np.testing.assert_array_equal(arrays.masks[row], np.select([grey == 0, grey == 128], [2, 1], 0))


def test_loading_twice_gives_equal_values_whatever_the_workers(make_site, small: Benchmark):
    cases = cases_of(make_site("a", 7, side=50))
    first, second = load_arrays(cases, small, workers=1), load_arrays(cases, small, workers=4)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.masks, second.masks)


def test_progress_is_reported_after_each_case(make_site, small: Benchmark):
    counts: list[int] = []
    load_arrays(cases_of(make_site("a", 4)), small, progress=counts.append)
    assert counts == [1, 2, 3, 4]


def test_large_images_are_averaged_and_masks_sampled_at_the_same_place(small: Benchmark, tmp_path):
    """An oblong picture of four flat quarters: its square keeps them in place, and no label is made up."""
    quarters = np.kron(np.array([[0, 128], [255, 0]], np.uint8), np.ones((40, 100), np.uint8))
    for part, values in (("images", np.dstack([quarters] * 3)), ("masks", quarters)):
        (tmp_path / "a" / part).mkdir(parents=True)
        Image.fromarray(values).save(tmp_path / "a" / part / "x.png")
    arrays = load_arrays(cases_of(tmp_path), small)
    greys = np.array([255, 128, 0])[arrays.masks[0].numpy()]
    expected = np.kron(np.array([[0, 128], [255, 0]]), np.ones((16, 16)))
    np.testing.assert_array_equal(greys, expected)
    inner = np.kron(np.ones((2, 2), bool), np.pad(np.ones((12, 12), bool), 2))
    np.testing.assert_array_equal(arrays.images[0, 0].numpy()[inner], expected[inner])


def test_no_label_is_made_up_between_two_others(small: Benchmark, tmp_path):
    """Background beside cup, with no rim between: mixing them would draw one."""
    cup = np.random.default_rng(0).random((50, 70)) < 0.5
    for part in ("images", "masks"):
        (tmp_path / "a" / part).mkdir(parents=True)
        Image.fromarray(np.where(cup, 0, 255).astype(np.uint8)).save(tmp_path / "a" / part / "x.png")
    assert load_arrays(cases_of(tmp_path), small).masks.unique().tolist() == [0, 2]


def test_shrinking_averages_away_what_is_finer_than_a_pixel(small: Benchmark, tmp_path):
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    (tmp_path / "x").mkdir()
    Image.fromarray(stripes).save(tmp_path / "x/a.png")
    image = load_arrays(open_folder(tmp_path / "x"), small).images.int()
    assert (image - 127).abs().max() <= 8


def test_images_without_masks_load_without_masks(make_site, small: Benchmark):
    cases = open_folder(make_site("a", 3) / "a/images")
    assert load_arrays(cases, small).masks is None
    assert next(stream(cases, small, 2)).batch.masks is None


def test_no_cases_give_no_batches(small: Benchmark):
    assert load_arrays([], small).images.shape == (0, 3, 32, 32)
    assert list(stream([], small, 4)) == []


# --- batch by batch


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 20])
def test_a_stream_is_the_arrays_normalised_in_order(
    make_site, small: Benchmark, workers: int, batch_size: int
):
    cases = cases_of(make_site("a", 10, side=40))
    arrays = load_arrays(cases, small)
    batches = list(stream(cases, small, batch_size, workers))
    assert [len(loaded.cases) for loaded in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert [case for loaded in batches for case in loaded.cases] == list(cases)
    images = torch.cat([loaded.batch.images for loaded in batches])
    torch.testing.assert_close(images, normalise(arrays.images / 255, "minmax"))
    masks = torch.cat([loaded.batch.masks for loaded in batches])
    assert masks.dtype == torch.int64
    assert torch.equal(masks, arrays.masks.long())
    assert batches[0].batch.cases == tuple(names(batches[0].cases))


def test_a_batch_of_arrays_is_what_the_stream_gives(make_site, small: Benchmark):
    cases = cases_of(make_site("a", 3))
    batch, loaded = to_batch(load_arrays(cases, small), "minmax"), next(stream(cases, small, 3))
    assert torch.equal(batch.images, loaded.batch.images)
    assert torch.equal(batch.masks, loaded.batch.masks)


def test_reading_never_runs_more_than_two_batches_ahead(make_site, small: Benchmark, monkeypatch):
    """Memory does not grow with the number of images, however slowly the batches are consumed."""
    cases = cases_of(make_site("a", 30))
    read, lock, taken = [], threading.Lock(), 0
    original = loading.read_case

    def counted(case: Case, benchmark: Benchmark):
        with lock:
            read.append(case)
        return original(case, benchmark)

    monkeypatch.setattr(loading, "read_case", counted)
    for loaded in stream(cases, small, 3, workers=2):
        taken += len(loaded.cases)
        assert len(read) - taken <= 2 * 3
    assert taken == len(read) == 30


def test_unreadable_cases_are_set_aside_and_batches_stay_full(make_site, small: Benchmark):
    root = make_site("a", 8)
    for number in (0, 3, 4):
        (root / f"a/images/case{number}.png").write_bytes(b"")
    aside: dict[str, str] = {}
    batches = loading.read_batches(
        cases_of(root),
        lambda case: loading.read_case(case, small),
        2,
        on_error=lambda case, why: aside.update({case.name: str(why)}),
    )
    found = [[case.name for case, _ in batch] for batch in batches]
    assert found == [["case1", "case2"], ["case5", "case6"], ["case7"]]
    assert list(aside) == ["case0", "case3", "case4"]
    assert all("is empty (0 bytes)" in why for why in aside.values())


def test_an_unreadable_case_stops_a_stream(make_site, small: Benchmark):
    root = make_site("a", 3)
    (root / "a/images/case1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"case1\.png is empty"):
        list(stream(cases_of(root), small, 1))


# --- masks that do not fit


def test_a_mask_of_another_size_is_named_with_both_sizes(make_site, small: Benchmark):
    root = make_site("a", 1)
    Image.fromarray(np.zeros((10, 20), np.uint8)).save(root / "a/masks/case0.png")
    with pytest.raises(
        UserError, match=r"masks/case0\.png is 20 × 10 pixels but its image case0\.png.*32 × 32"
    ):
        load_arrays(cases_of(root), small)


def test_an_unknown_grey_is_named_with_its_file(make_site, small: Benchmark):
    root = make_site("a", 1)
    Image.fromarray(np.full((32, 32), 77, np.uint8)).save(root / "a/masks/case0.png")
    with pytest.raises(UserError, match=r"masks/case0\.png: the mask holds grey values .* 77"):
        load_arrays(cases_of(root), small)


def test_masks_for_some_cases_only_are_refused(make_site, small: Benchmark):
    root = make_site("a", 2)
    cases = [*cases_of(root), *open_folder(root / "a/images")]
    for read in (lambda: load_arrays(cases, small), lambda: next(stream(cases, small, 2))):
        with pytest.raises(UserError, match="has no mask while others do"):
            read()
