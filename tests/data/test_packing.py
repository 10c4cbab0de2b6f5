"""A pack equals its site, and is refused once the site has changed."""

import os
from pathlib import Path

import pytest
import torch

from ttdg.data import (
    Benchmark,
    Site,
    find_sites,
    load_arrays,
    load_site,
    open_folder,
    open_pack,
    pack_path,
    pack_site,
)
from ttdg.errors import UserError


@pytest.fixture
def site(make_site) -> Site:
    return find_sites(make_site("a", 6, side=40))["a"]


@pytest.fixture
def packed(site: Site, small: Benchmark, tmp_path: Path) -> Path:
    assert pack_site(site, small, tmp_path / "packs") == tmp_path / "packs/a.safetensors"
    return tmp_path / "packs"


def test_a_pack_equals_the_site_it_was_made_from(site: Site, small: Benchmark, packed: Path):
    packed_arrays, arrays = open_pack(site, small, packed), load_arrays(site.cases, small)
    assert torch.equal(packed_arrays.images, arrays.images)
    assert torch.equal(packed_arrays.masks, arrays.masks)
    assert packed_arrays.cases == arrays.cases


def test_a_site_without_masks_packs_too(site: Site, small: Benchmark, tmp_path: Path):
    bare = Site("bare", open_folder(site.cases[0].image.parent))
    pack_site(bare, small, tmp_path)
    assert open_pack(bare, small, tmp_path).masks is None


def test_a_pack_is_memory_mapped(site: Site, small: Benchmark, packed: Path):
    """The file appears in the memory map of the process; writing to the arrays does not change the file."""
    arrays = open_pack(site, small, packed)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(pack_path(site, packed)) in maps.read_text()
    before = arrays.images.clone()
    arrays.images.zero_()
    assert torch.equal(open_pack(site, small, packed).images, before)


def test_a_site_loads_from_its_pack_if_there_is_one(
    site: Site, small: Benchmark, packed: Path, tmp_path: Path
):
    for folder in (None, packed, tmp_path / "elsewhere"):
        assert torch.equal(load_site(site, small, folder).images, load_arrays(site.cases, small).images)
    for case in site.cases:
        case.image.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        load_site(site, small)
    with pytest.raises(UserError, match="is stale"):
        load_site(site, small, packed)


def test_a_pack_is_written_beside_its_site_by_default(site: Site, small: Benchmark):
    root = site.cases[0].image.parents[2]
    assert pack_site(site, small) == root / "a.safetensors"
    assert list(find_sites(root)) == ["a"]
    site.cases[0].image.write_bytes(b"")
    with pytest.raises(UserError, match="is stale"):
        load_site(site, small)


def test_a_folder_that_cannot_be_written_is_named(site: Site, small: Benchmark, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/a\.safetensors"):
        pack_site(site, small, tmp_path / "file")
    with pytest.raises(UserError, match="has no cases"):
        pack_path(Site("empty", ()))


def test_changed_added_and_removed_cases_make_a_pack_stale(site: Site, small: Benchmark, packed: Path):
    with pytest.raises(
        UserError, match=r"a\.safetensors is stale: .*site 'a' have changed; pack the site again"
    ):
        open_pack(Site("a", site.cases[1:]), small, packed)
    path = site.cases[2].mask
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UserError, match="is stale"):
        open_pack(site, small, packed)


def test_files_that_were_only_touched_do_not_make_a_pack_stale(site: Site, small: Benchmark, packed: Path):
    os.utime(site.cases[0].image, (1, 1))
    assert len(open_pack(site, small, packed).cases) == 6


@pytest.mark.parametrize("change", [{"size": 64}, {"mask": {0: "background", 128: "rim", 255: "cup"}}])
def test_a_pack_for_another_benchmark_is_refused(site: Site, small: Benchmark, packed: Path, change: dict):
    other = Benchmark.from_dict(small.to_dict() | change)
    with pytest.raises(UserError, match="packed for another image size or another mask encoding"):
        open_pack(site, other, packed)


def test_a_file_that_is_no_pack_is_refused(site: Site, small: Benchmark, packed: Path, tmp_path: Path):
    path = pack_path(site, packed)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read as a pack"):
        open_pack(site, small, packed)
    with pytest.raises(UserError, match="cannot be read as a pack"):
        open_pack(site, small, tmp_path / "nowhere")


def test_a_pack_that_fails_leaves_nothing_behind(site: Site, small: Benchmark, tmp_path: Path):
    site.cases[3].image.write_bytes(b"")
    with pytest.raises(UserError, match="case3"):
        pack_site(site, small, tmp_path / "packs")
    assert not (tmp_path / "packs").exists()


@pytest.mark.parametrize("place", [-1, -3000, 200])
def test_a_pack_with_a_changed_byte_is_refused(site: Site, small: Benchmark, packed: Path, place: int):
    """A byte of the masks, of the images, and of the header, which may then be unreadable or another one."""
    path = pack_path(site, packed)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        UserError, match=r"a\.safetensors (is damaged|cannot be read as a pack).*pack the site again"
    ):
        open_pack(site, small, packed)
