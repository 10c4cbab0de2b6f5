"""MetaImage and NRRD: values and geometry are those that were written by hand, and damage is refused."""

import bz2
import gzip
import tracemalloc
import zlib

import numpy as np
import pytest

from ttdg.data.volumes.formats import read_stored
from ttdg.errors import UserError

VALUES = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4) - 7
METAIMAGE = "NDims = 3\n{more}DimSize = 2 3 4\nElementType = MET_SHORT\nElementDataFile = {file}\n"
NRRD = "NRRD0005\ntype: short\ndimension: 3\nsizes: 2 3 4\nencoding: {encoding}\n{more}\n"


def metaimage(path, data, more="", file="LOCAL"):
    path.write_bytes(METAIMAGE.format(more=more, file=file).encode() + (data if file == "LOCAL" else b""))
    return read_stored(path)


def nrrd(path, data, more="", encoding="raw"):
    path.write_bytes(NRRD.format(more=more, encoding=encoding).encode() + data)
    return read_stored(path)


def raw(order="<"):
    return VALUES.astype(f"{order}i2").tobytes(order="F")


def test_metaimage_in_one_file_or_two_in_either_byte_order(tmp_path):
    (tmp_path / "v.raw").write_bytes(b"skip" + raw(">"))
    found = [
        metaimage(tmp_path / "a.mha", raw()),
        metaimage(tmp_path / "b.mhd", b"", "BinaryDataByteOrderMSB = True\nHeaderSize = 4\n", "v.raw"),
        metaimage(tmp_path / "c.mhd", b"", "ElementByteOrderMSB = True\nHeaderSize = -1\n", "v.raw"),
    ]
    assert all(np.array_equal(np.asarray(volume.dataobj), VALUES) for volume in found)


def test_axes_spacing_and_origin_of_metaimage_are_in_millimetres_to_the_left_back_and_head(tmp_path):
    turned = "TransformMatrix = 0 1 0 -1 0 0 0 0 1\nOffset = 1 2 3\nElementSpacing = 0.5 2 4\n"
    affine = metaimage(tmp_path / "a.mha", raw(), turned).affine
    # The first axis steps 0.5 mm to the back (−y in NIfTI), the second 2 mm to the right (+x), the third 4 mm up.
    assert affine.tolist() == [[0, 2, 0, -1], [-0.5, 0, 0, -2], [0, 0, 4, 3], [0, 0, 0, 1]]


@pytest.mark.parametrize(("encoding", "encode"), [("raw", bytes), ("gzip", gzip.compress)])
def test_nrrd_of_each_encoding(tmp_path, encoding, encode):
    volume = nrrd(tmp_path / "a.nrrd", encode(raw()), "endian: little\nspacings: 1 2 3\n", encoding)
    assert np.array_equal(np.asarray(volume.dataobj), VALUES)
    assert np.abs(volume.affine).diagonal().tolist() == [1, 2, 3, 1]


def test_nrrd_as_text_and_with_its_data_beside(tmp_path):
    text = " ".join(map(str, VALUES.ravel(order="F"))).encode()
    assert np.array_equal(np.asarray(nrrd(tmp_path / "a.nrrd", text, encoding="ascii").dataobj), VALUES)
    (tmp_path / "data.raw").write_bytes(raw())
    beside = nrrd(tmp_path / "a.nhdr", b"", "endian: little\ndata file: data.raw\n")
    assert np.array_equal(np.asarray(beside.dataobj), VALUES)


def test_both_worlds_of_nrrd_describe_the_same_volume(tmp_path):
    lps = (
        "space: left-posterior-superior\nspace directions: (0.5,0,0) (0,2,0) (0,0,4)\nspace origin: (1,2,3)\n"
    )
    ras = "space: right-anterior-superior\nspace directions: (-0.5,0,0) (0,-2,0) (0,0,4)\nspace origin: (-1,-2,3)\n"
    first, second = nrrd(tmp_path / "a.nrrd", raw(), lps), nrrd(tmp_path / "b.nrrd", raw(), ras)
    assert np.array_equal(first.affine, second.affine)
    assert first.affine[:3, 3].tolist() == [-1, -2, 3]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.mha",
            METAIMAGE.format(more="", file="LOCAL").encode() + raw()[:-1],
            "47 bytes of data instead of 48",
        ),
        ("a.mhd", METAIMAGE.format(more="", file="gone.raw").encode(), "gone.raw"),
        ("a.mhd", METAIMAGE.format(more="", file="../../etc/passwd").encode(), "elsewhere"),
        ("a.mhd", b"\x89PNG\r\n", "no MetaImage header"),
        (
            "a.mhd",
            b"NDims = 3\nDimSize = 2 x\nElementType = MET_SHORT\nElementDataFile = LOCAL\n",
            "no numbers",
        ),
        ("a.mha", b"DimSize = 2 2\nElementType = MET_SHORT\nElementDataFile = LOCAL\n", "three axes"),
        ("a.nrrd", b"no nrrd", "no NRRD file"),
        ("a.nrrd", NRRD.format(more="", encoding="hex").encode(), "unknown encoding"),
        ("a.nrrd", NRRD.format(more="", encoding="gzip").encode() + b"xx", "damaged"),
        (
            "a.nrrd",
            NRRD.format(more="spacings: 1 2 0\n", encoding="raw").encode() + raw(),
            "axes without volume",
        ),
        (
            "a.nrrd",
            NRRD.format(more="spacings: 1 2 nan\n", encoding="raw").encode() + raw(),
            "axes without volume",
        ),
        ("a.mha", b"DimSize = -1 2 2\nElementType = MET_CHAR\nElementDataFile = LOCAL\n", "three axes"),
        (
            "a.mha",
            b"DimSize = 9999 9999 9999\nElementType = MET_CHAR\nElementDataFile = LOCAL\n",
            "million voxels",
        ),
        ("a.txt", b"", "no volume of a known type"),
    ],
)
def test_damage_is_refused_with_a_reason(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_stored(tmp_path / name)


@pytest.mark.parametrize(
    ("pack", "read"),
    [
        (gzip.compress, lambda folder, data: nrrd(folder / "a.nrrd", data, encoding="gzip")),
        (bz2.compress, lambda folder, data: nrrd(folder / "a.nrrd", data, encoding="bzip2")),
        (zlib.compress, lambda folder, data: metaimage(folder / "a.mha", data, "CompressedData = True\n")),
    ],
)
def test_compressed_data_are_unpacked_no_further_than_the_header_claims(tmp_path, pack, read):
    packed = pack(bytes(100_000_000), 1)
    tracemalloc.start()
    with pytest.raises(UserError, match="more than 48 bytes"):
        read(tmp_path, packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
