"""Equal data have equal fingerprints, different data different ones."""

import os
import shutil

import pytest

from ttdg.data import find_sites, fingerprint
from ttdg.errors import UserError


def cases_of(root):
    return find_sites(root)["a"].cases


@pytest.mark.parametrize("quick", [False, True])
def test_the_order_of_cases_does_not_matter_but_every_case_does(make_site, quick: bool):
    cases = cases_of(make_site("a", 4))
    assert fingerprint(cases, quick) == fingerprint(cases[::-1], quick)
    assert fingerprint(cases, quick) != fingerprint(cases[1:], quick)


def test_a_copy_elsewhere_has_the_same_content(make_site, tmp_path):
    root = make_site("a", 3)
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    for path in (tmp_path / "copy").glob("a/*/*"):
        os.utime(path, (1, 1))
    assert fingerprint(cases_of(root)) == fingerprint(cases_of(tmp_path / "copy"))
    assert fingerprint(cases_of(root), quick=True) != fingerprint(cases_of(tmp_path / "copy"), quick=True)


@pytest.mark.parametrize("part", ["images", "masks"])
@pytest.mark.parametrize("quick", [False, True])
def test_one_changed_byte_changes_the_fingerprint(make_site, part: str, quick: bool):
    root = make_site("a", 3)
    before = fingerprint(cases_of(root), quick)
    path = root / "a" / part / "case1.png"
    path.write_bytes(path.read_bytes() + b"\0")
    assert fingerprint(cases_of(root), quick) != before


def test_exchanging_two_images_changes_the_fingerprint(make_site):
    root = make_site("a", 2)
    before = fingerprint(cases_of(root))
    first, second = (root / f"a/images/case{n}.png" for n in (0, 1))
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    assert fingerprint(cases_of(root)) != before


@pytest.mark.parametrize("quick", [False, True])
def test_renaming_a_case_changes_the_fingerprint(make_site, quick: bool):
    root = make_site("a", 2)
    before = fingerprint(cases_of(root), quick)
    for part in ("images", "masks"):
        (root / "a" / part / "case1.png").rename(root / "a" / part / "case2.png")
    assert fingerprint(cases_of(root), quick) != before


@pytest.mark.parametrize("quick", [False, True])
def test_a_vanished_file_is_named(make_site, quick: bool):
    cases = cases_of(make_site("a", 1))
    cases[0].image.unlink()
    with pytest.raises(UserError, match=r"cannot read .*case0\.png"):
        fingerprint(cases, quick)
