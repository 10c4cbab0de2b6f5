"""Listing of sites and folders, and splits that depend on patients only."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import Case, find_sites, open_folder, split
from ttdg.data.sites import scan_site
from ttdg.errors import UserError

TABLE = """case,patient,split,spacing_y,spacing_x,remark
case0,p1,,0.5,0.25,left eye
case1,p1,,,,right eye
case2,,test,,,
"""


def case(patient: str, number: int = 0, side: str | None = None) -> Case:
    return Case(f"{patient}-{number}", Path(f"{patient}-{number}.png"), None, patient, side)


# --- folders


def test_sites_and_cases_are_found_sorted(make_site):
    make_site("b", 2)
    root = make_site("a", 11)
    (root / "notes").mkdir()
    sites = find_sites(root)
    assert list(sites) == ["a", "b"]
    assert [c.name for c in sites["a"].cases] == sorted(f"case{n}" for n in range(11))
    first = sites["b"].cases[0]
    assert first.image == root / "b/images/case0.png"
    assert first.mask == root / "b/masks/case0.png"
    assert list(find_sites(root, ["b"])) == ["b"]


def test_a_table_gives_patient_split_and_spacing(make_site):
    cases = find_sites(make_site("a", 4, table="\ufeff" + TABLE))["a"].cases
    assert [c.patient for c in cases] == ["p1", "p1", "case2", "case3"]
    assert [c.split for c in cases] == [None, None, "test", None]
    assert [c.spacing for c in cases] == [(0.5, 0.25), None, None, None]


def test_a_table_gives_the_distance_of_slices(make_site):
    table = "case,spacing_y,spacing_x,spacing_z\ncase0,0.5,0.5,3.6\ncase1,,,\n"
    cases = find_sites(make_site("a", 2, table=table))["a"].cases
    assert [c.slice_spacing for c in cases] == [3.6, None]


def test_a_site_without_a_folder_of_masks_has_cases_without_masks(make_site):
    root = make_site("a", 2)
    for path in (root / "a/masks").iterdir():
        path.unlink()
    (root / "a/masks").rmdir()
    assert [c.mask for c in find_sites(root)["a"].cases] == [None, None]


def test_files_of_file_managers_are_ignored(make_site):
    root = make_site("a", 1)
    for name in (".DS_Store", "._case0.png", "Thumbs.db"):
        (root / "a/images" / name).touch()
    assert len(find_sites(root)["a"].cases) == 1


def test_names_are_compared_as_text_not_as_bytes(make_site):
    root = make_site("a", 1)
    (root / "a/images/case0.png").rename(root / "a/images/caf\u0065\u0301.png")  # e and an accent
    (root / "a/masks/case0.png").rename(root / "a/masks/caf\u00e9.png")  # é
    assert [c.name for c in find_sites(root)["a"].cases] == ["caf\u00e9"]


BREAKS = {
    "a missing mask": (
        lambda a: (a / "masks/case1.png").unlink(),
        r"images/case1\.png has no mask; put one at",
    ),
    "a mask without an image": (
        lambda a: (a / "images/case1.png").unlink(),
        r"masks/case1\.png is a mask without",
    ),
    "two images of one name": (
        lambda a: (a / "images/case1.jpg").touch(),
        "case1.png has the name of case1.jpg",
    ),
    "an unknown type": (
        lambda a: (a / "images/x.gif").touch(),
        r"x\.gif is of no known type; convert it to one of",
    ),
    "an empty site": (
        lambda a: [path.unlink() for path in a.glob("*/*.png")],
        "images is empty; put images there",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BREAKS.values(), ids=BREAKS.keys())
def test_a_problem_of_a_site_is_named_with_its_remedy(make_site, damage, words: str):
    root = make_site("a", 2)
    damage(root / "a")
    with pytest.raises(UserError, match=words):
        find_sites(root)


TABLES = {
    "an unknown case": ("case,patient\ncase9,p", "names 'case9', which has no image"),
    "a case twice": ("case\ncase0\ncase0", "line 3 names the case 'case0' a second time"),
    "no column of cases": ("cases,patient\ncase0,p", "lacks the column 'case'; did you mean 'cases'"),
    "an unknown split": ("case,split\ncase0,trian", "line 2 has the split 'trian'; write train or test"),
    "half a spacing": ("case,spacing_y,spacing_x\ncase0,1,", "line 2 has the spacing '1' × ''"),
    "a spacing of nothing": ("case,spacing_y,spacing_x\ncase0,0,1", "line 2 has the spacing '0' × '1'"),
    "a distance of slices that is none": ("case,spacing_z\ncase0,-1", "line 2 has the spacing_z '-1'"),
    "a patient on both sides": (
        "case,patient,split\ncase0,p,train\ncase1,p,test",
        "patient 'p' the same split",
    ),
    "a patient half on one side": (
        "case,patient,split\ncase0,p,train\ncase1,p,",
        "patient 'p' the same split",
    ),
}


@pytest.mark.parametrize(("table", "words"), TABLES.values(), ids=TABLES.keys())
def test_a_mistake_in_the_table_is_named(make_site, table: str, words: str):
    with pytest.raises(UserError, match=rf"cases\.csv .*{words}"):
        find_sites(make_site("a", 2, table=table))


def test_a_table_that_is_not_text_is_named(make_site):
    root = make_site("a", 1)
    (root / "a/cases.csv").write_bytes(b"case\n\xff\xfe\xff")
    with pytest.raises(UserError, match="no csv file in UTF-8"):
        find_sites(root)


def test_all_problems_are_found_and_counted(make_site):
    root = make_site("a", 4)
    for number in range(3):
        (root / f"a/masks/case{number}.png").unlink()
    assert len(scan_site(root / "a")[1]) == 3
    with pytest.raises(UserError, match=r"case0.*and 2 more in this site; check the benchmark folder"):
        find_sites(root)


def test_a_wrong_folder_is_answered_with_the_right_one(make_site, tmp_path: Path):
    root = make_site("drishti", 1)
    with pytest.raises(UserError, match="no site 'dristi'; did you mean 'drishti'"):
        find_sites(root, ["dristi"])
    with pytest.raises(UserError, match=f"did you mean {root}"):
        find_sites(root / "drishti")
    with pytest.raises(UserError, match="holds no site"):
        find_sites(root / "drishti/images")
    with pytest.raises(UserError, match="is no folder"):
        find_sites(tmp_path / "nowhere")


def test_a_plain_folder_of_images_opens_without_masks(make_site):
    folder = make_site("a", 3) / "a/images"
    (folder / "notes.txt").touch()
    cases = open_folder(folder)
    assert [(c.name, c.mask, c.patient) for c in cases] == [(f"case{n}", None, f"case{n}") for n in range(3)]


def test_a_plain_folder_without_images_is_refused(make_site, tmp_path: Path):
    root = make_site("a", 1)
    with pytest.raises(UserError, match=f"holds no image.*did you mean {root}/a/images"):
        open_folder(root / "a")
    with pytest.raises(UserError, match="is no folder"):
        open_folder(tmp_path / "nowhere")
    (root / "a/images/case0.jpg").touch()
    with pytest.raises(UserError, match="has the name of"):
        open_folder(root / "a/images")


# --- split

patients = st.lists(st.text(max_size=8), min_size=1, max_size=60, unique=True)
frames = patients.flatmap(
    lambda names: st.lists(st.sampled_from(names), min_size=1, max_size=80).map(
        lambda drawn: [case(name, number) for number, name in enumerate(drawn)]
    )
)


@settings(max_examples=60, deadline=None)
@given(frames, st.floats(0, 1), st.text(max_size=3))
def test_a_split_is_a_partition_in_which_no_patient_straddles(cases: list[Case], fraction: float, salt: str):
    train, held_out = split(cases, fraction, salt)
    assert sorted((*train, *held_out), key=cases.index) == cases
    assert not {c.patient for c in train} & {c.patient for c in held_out}


def by_hash_alone(cases: list[Case], fraction: float, salt: str) -> set[Case]:
    """The rule of all published splits: a patient is held out if 64 bits of a hash fall below the fraction."""
    out = set()
    for each in cases:
        digest = hashlib.blake2b(
            f"{salt}\0{each.patient}".encode(errors="surrogateescape"), digest_size=8
        ).digest()
        share = int.from_bytes(digest, "big") / 2**64
        if each.split == "test" or (each.split is None and share < fraction):
            out.add(each)
    return out


@settings(max_examples=60, deadline=None)
@given(frames, frames, st.randoms(use_true_random=False))
def test_a_split_does_not_depend_on_order_or_on_additions_where_the_hash_holds_someone_out(
    cases: list[Case], more: list[Case], random
):
    _, held_out = split(cases)
    shuffled = random.sample(cases, len(cases))
    assert set(split(shuffled)[1]) == set(held_out)
    if by_hash_alone(cases, 0.2, ""):
        mixed = random.sample([*cases, *more], len(cases) + len(more))
        assert set(held_out) == set(split(mixed)[1]) & set(cases)


sides = st.sampled_from([None, "train", "test"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=6), sides), max_size=30), st.floats(0, 1), st.text(max_size=3))
def test_every_split_that_holds_someone_out_is_that_of_the_hash(drawn, fraction: float, salt: str):
    cases = [case(name, number, side) for number, (name, side) in enumerate(drawn)]
    expected = by_hash_alone(cases, fraction, salt)
    if expected or fraction == 0 or len({c.patient for c in cases}) < 2:
        assert set(split(cases, fraction, salt)[1]) == expected


@settings(max_examples=100, deadline=None)
@given(patients, st.floats(0.001, 1), st.text(max_size=3))
def test_one_patient_is_held_out_wherever_there_are_two_and_the_hash_takes_none(names, fraction, salt):
    cases = [case(name, number) for name in names for number in range(2)]
    train, held_out = split(cases, fraction, salt)
    if len(names) > 1 and not by_hash_alone(cases, fraction, salt):
        assert len({c.patient for c in held_out}) == 1
        assert len(held_out) == 2
        assert train
    assert len(names) == 1 or held_out


def test_a_table_that_trains_on_everyone_is_kept():
    cases = [case(str(n), side="train") for n in range(5)]
    assert split(cases) == (tuple(cases), ())
    free = case("free")
    assert split([*cases, free])[1] == (free,)


def test_the_split_is_the_same_on_every_machine():
    """Golden values: a change would change published splits."""
    _, held_out = split([case(f"patient{n}") for n in range(30)])
    assert [c.patient.removeprefix("patient") for c in held_out] == GOLDEN


GOLDEN = ["10", "12", "14", "16", "19", "20", "21", "24", "25", "26"]


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 1.0])
def test_the_fraction_is_met_on_average(fraction: float):
    n = 4000
    _, held_out = split([case(str(number)) for number in range(n)], fraction)
    assert abs(len(held_out) / n - fraction) <= 4 * np.sqrt(fraction * (1 - fraction) / n)


def test_another_salt_is_another_split():
    cases = [case(str(number)) for number in range(100)]
    assert split(cases, salt="a") != split(cases, salt="b")


def test_a_split_fixed_by_the_table_is_kept():
    cases = [case(str(n), side="test" if n % 2 else "train") for n in range(20)]
    assert split(cases) == (tuple(cases[::2]), tuple(cases[1::2]))
