"""Which files of the inputs are segmented, where their masks go, and what becomes of all others."""

import csv
import os
import struct
import zlib

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.names import output_names


def rows(out):
    with (out / "manifest.csv").open(encoding="utf-8", errors="surrogateescape") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


@pytest.fixture
def picture(discs):
    return Image.open(discs / "west" / "images" / "00.png")


@pytest.fixture
def tree(tmp_path, picture):
    """Images at several depths, and one of every kind of file that is not segmented."""
    root = tmp_path / "site"
    (root / "a" / "b" / "c").mkdir(parents=True)
    for name in ("top.png", "a/same.png", "a/same.jpg", "a/b/c/deep.bmp", "a/web.webp", "a/b/NOSUFFIX"):
        picture.save(root / name, format="PNG" if "." not in name else None)
    (root / "scan.dcm").write_bytes(bytes(128) + b"DICM")
    (root / "a" / "IM0001").write_bytes(bytes(128) + b"DICM")
    (root / "brain.nii.gz").write_bytes(b"\x1f\x8b")
    (root / "notes.txt").write_text("not an image")
    (root / "a" / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    (root / "a" / "loop").symlink_to(root)
    (root / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (root / ".DS_Store").write_bytes(b"x")
    (root / ".hidden.png").write_bytes(b"x")
    os.mkfifo(root / "pipe.png")
    return root


def test_every_file_at_any_depth_is_in_the_manifest(disc_model, tree, tmp_path):
    outcome = predict(disc_model, tree, tmp_path / "out")
    found = rows(tmp_path / "out")
    on_disk = {
        str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    assert found.keys() == on_disk
    by_status = {status: {name for name, row in found.items() if row["status"] == status} for status in
                 ("segmented", "set aside", "ignored")}  # fmt: skip
    assert by_status["segmented"] == {
        "top.png", "a/same.png", "a/same.jpg", "a/b/c/deep.bmp", "a/web.webp", "a/b/NOSUFFIX",
    }  # fmt: skip
    assert by_status["ignored"] == {".DS_Store"}
    assert (
        outcome.set_aside.keys() == by_status["set aside"] == on_disk - by_status["segmented"] - {".DS_Store"}
    )
    words = {"scan.dcm": "no DICOM file that can be read", "a/IM0001": "no DICOM file", "brain.nii.gz": "as NIfTI",
             "notes.txt": "no image of a known kind", "a/dangling.png": "does not exist", "a/loop": "searched anyway",
             "pipe.png": "no regular file", ".hidden.png": "hidden file", "damaged.png": "is no PNG"}  # fmt: skip
    for name, reason in words.items():
        assert reason in found[name]["reason"]
        assert name in found[name]["reason"]


def test_masks_mirror_the_tree_and_files_of_one_stem_keep_their_suffix(disc_model, tree, tmp_path):
    predict(disc_model, tree, tmp_path / "out")
    masks = {
        str(path.relative_to(tmp_path / "out" / "masks")) for path in (tmp_path / "out/masks").rglob("*.png")
    }
    assert masks == {
        "top.png", "a/same.png.png", "a/same.jpg.png", "a/b/c/deep.png", "a/web.png", "a/b/NOSUFFIX.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "taken", "names"),
    [
        (["a.png", "b.jpg"], {}, ["a", "b"]),
        (["a.png", "A.jpg"], {}, ["a.png", "A.jpg"]),
        (["x/a.png", "y/a.png"], {}, ["x/a", "y/a"]),
        (["a.jpg"], {"a.png": "a"}, ["a.jpg"]),
        (["a.png", "a.jpg"], {"a.png": "a"}, ["a", "a.jpg"]),
        (["a.jpg", "a/b.png"], {}, ["a", "a/b"]),
        (["a.jpg", "a.png/b.jpg"], {}, ["a.jpg", "a.png/b"]),  # masks/a.png is a folder
        (["v.nii", "v/0001.png"], {}, ["v.nii", "v/0001"]),  # overlays/v/0001.jpg is that of a slice
        (["v.nii", "v/photo.png"], {}, ["v", "v/photo"]),
    ],
)
def test_an_output_name_keeps_the_suffix_only_where_needed(files, taken, names):
    assert [output_names(files, taken, stacks={"v.nii"})[file] for file in files] == names


PARTS = st.sampled_from(["a", "a.png", "A.jpg", "a.dcm", "v.nii", "v", "0001", "a-1"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@given(st.lists(NAMES, unique=True, max_size=8), st.integers(0, 8), st.data())
def test_no_output_replaces_another_or_lies_in_a_file(files, earlier, data):
    """Files of a second call come to those of a first, and a file may have become a folder meanwhile."""
    stacks = {file for file in files if file.endswith(".nii")}
    first, second = files[:earlier], files[earlier:]
    first = [file for file in first if not any(other.startswith(f"{file}/") for other in first)]
    second = [file for file in second if not any(other.startswith(f"{file}/") for other in second)]
    names = output_names(second, output_names(first, {}, stacks), stacks)
    for tree, suffix in (("masks", ".png"), ("overlays", ".jpg")):
        written = [
            f"{tree}/{name}/0001{suffix}"
            if file in stacks and tree == "overlays"
            else f"{tree}/{name}{suffix}"
            for file, name in names.items()
        ]
        folded = [name.casefold() for name in written]
        assert len(set(folded)) == len(folded)
        assert not any(other.startswith(f"{name}/") for name in folded for other in folded)


def test_no_two_files_share_an_output_name():
    files = ["a.png", "a.jpg", "a.png.bmp", "a.jpg.png.tif", "A.PNG", "\u00e9.png", "e\u0301.png", "n" * 250 + ".png",
             "n" * 250 + ".jpg", "n" * 250 + "m.jpg"]  # fmt: skip
    names = output_names(files, {})
    assert len({name.casefold() for name in names.values()}) == len(files)
    assert all(len(f".{name}-12345678.png".encode()) <= 255 for name in names.values())


def test_names_that_are_long_or_no_text_are_segmented(disc_model, picture, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    names = [os.fsencode("n" * 251 + ".png"), b"bad\xff\xfename.png", b"line\nbreak [x].png"]
    for name in names:
        picture.save(os.path.join(os.fsencode(folder), name).decode(errors="surrogateescape"))
    outcome = predict(disc_model, folder, tmp_path / "out")
    assert (outcome.done, outcome.set_aside) == (3, {})
    assert {os.fsencode(name) for name in rows(tmp_path / "out")} == set(names)
    assert predict(disc_model, folder, tmp_path / "out").kept == 3


def test_inputs_are_files_or_folders(disc_model, tree, tmp_path, picture):
    single = tmp_path / "single.png"
    picture.save(single)
    outcome = predict(disc_model, [single, tree / "a" / "b"], tmp_path / "out")
    assert outcome.done == 3
    assert rows(tmp_path / "out").keys() == {"single.png", "b/NOSUFFIX", "b/c/deep.bmp"}
    with pytest.raises(UserError, match="no file or folder"):
        predict(disc_model, tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "other").mkdir()
    picture.save(tmp_path / "other" / "single.png")
    with pytest.raises(UserError, match="two inputs hold a file"):
        predict(disc_model, [single, tmp_path / "other" / "single.png"], tmp_path / "both")


def test_an_output_folder_inside_the_input_is_not_read(disc_model, picture, tmp_path):
    (tmp_path / "site").mkdir()
    picture.save(tmp_path / "site" / "a.png")
    for _ in range(2):
        outcome = predict(disc_model, tmp_path / "site", tmp_path / "site" / "out")
    assert (outcome.kept, outcome.done, outcome.set_aside) == (1, 0, {})
    with pytest.raises(UserError, match="the output folder is the input folder"):
        predict(disc_model, tmp_path / "site", tmp_path / "site")


def test_the_command_ends_with_status_three_if_anything_was_set_aside(disc_model, tree, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    arguments = ["predict", "-m", str(tmp_path / "model"), "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "-i", str(tree), "-o", str(tmp_path / "out")])
    assert result.exit_code == 3, result.output
    assert "set aside scan.dcm: scan.dcm is no DICOM file" in result.output
    clean = CliRunner().invoke(app, [*arguments, "-i", str(tree / "a" / "b"), "-o", str(tmp_path / "clean")])
    assert clean.exit_code == 0, clean.output
    text = " ".join(CliRunner().invoke(app, ["predict", "--help"], terminal_width=200).output.split())
    assert "PNG, JPEG, BMP, TIFF (8 or 16 bit, float), WebP, DICOM and NIfTI" in text


def test_the_command_needs_a_model_and_prints_the_method_that_it_chose(disc_model, tree, tmp_path):
    arguments = ["predict", "-i", str(tree / "a" / "b"), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--model" in result.output
    assert not (tmp_path / "out").exists()
    save(tmp_path / "model", disc_model.network, disc_model.card)
    result = CliRunner().invoke(app, [*arguments, "-m", str(tmp_path / "model"), "--device", "cpu"])
    assert "method source with no options" in result.output


def test_an_image_above_the_pixel_limit_is_set_aside_with_a_remedy(disc_model, picture, tmp_path):
    (tmp_path / "site").mkdir()
    picture.save(tmp_path / "site" / "small.png")
    bomb = bytearray((tmp_path / "site" / "small.png").read_bytes())
    bomb[16:24] = struct.pack(">II", 60_000, 60_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    (tmp_path / "site" / "bomb.png").write_bytes(bomb)
    outcome = predict(disc_model, tmp_path / "site", tmp_path / "out")
    assert outcome.done == 1
    reason = outcome.set_aside["bomb.png"]
    assert "raise the limit of pixels" in reason
    assert "PIL" not in reason
    tight = predict(disc_model, tmp_path / "site", tmp_path / "tight", most_pixels=1000)
    assert tight.set_aside.keys() == {"bomb.png", "small.png"}


NAME = b"Zebedee-Quillfeather"


def test_no_name_from_metadata_or_from_above_the_input_is_written(disc_model, picture, tmp_path, capfd):
    """Names are planted in EXIF, text chunks, TIFF tags and the path of the input; every byte written is searched."""
    site = tmp_path / f"patient-{NAME.decode()}" / "site"
    site.mkdir(parents=True)
    exif, name = Image.Exif(), NAME.decode()
    for tag in (0x010E, 0x013B, 0x8298, 0x9C9D, 0x010F):  # description, artist, copyright, author, maker
        exif[tag] = name
    for number in range(3):
        for suffix in (".jpg", ".png", ".tif", ".webp"):
            picture.save(site / f"{number}{suffix}", exif=exif)
    for image in sorted(site.glob("1.*")):  # the same metadata in damaged files
        image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    values = np.random.default_rng(0).random((20, 20, 3), np.float32)
    tifffile.imwrite(site / "float.tif", values, photometric="rgb", description=name, software=name)
    (site / "link.png").symlink_to(tmp_path / name / "gone.png")
    (site / "notes.txt").write_text(name)
    outcome = predict(disc_model, site, tmp_path / "out")
    assert outcome.done >= 9
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        content = path.read_bytes()
        assert NAME not in content, path
        assert NAME.decode().encode("utf-16-le") not in content, path
        assert str(tmp_path).encode() not in content, path
    said = "".join(capfd.readouterr()) + str(outcome.set_aside)
    assert name not in said


def test_of_many_files_that_were_set_aside_some_are_printed_and_all_are_in_the_manifest(
    disc_model, picture, tmp_path
):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    (tmp_path / "site").mkdir()
    picture.save(tmp_path / "site" / "a.png")
    for number in range(23):
        (tmp_path / "site" / f"{number:02}.txt").write_text("a note")
    out = tmp_path / "out"
    arguments = [
        "-m",
        str(tmp_path / "model"),
        "--device",
        "cpu",
        "-i",
        str(tmp_path / "site"),
        "-o",
        str(out),
    ]
    result = CliRunner().invoke(app, ["predict", *arguments])
    lines = [line for line in result.stderr.splitlines() if line.startswith("set aside")]
    assert len(lines) == 21
    assert lines[-1] == f"set aside 3 more; {out / 'manifest.csv'} has all with their reasons"
    assert (out / "manifest.csv").read_text().count("set aside") == 23
