"""Inputs that overlap, repeat each other, or hold what earlier predictions wrote."""

import csv
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.inputs import find_files


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Five images, in a folder, in folders below it, and beside it."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("site/a.png", "site/b.png", "site/left/c.png", "site/left/deep/d.png", "alone.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name)
    return root


PLACES = ("site", "site/left", "site/left/deep", "site/a.png", "site/left/c.png", "alone.png", "site/../site")


@given(places=st.lists(st.sampled_from(PLACES), min_size=1, max_size=5))
def test_a_file_is_read_once_however_often_inputs_hold_it(tree, places):
    """The same images are found for every order and number of the inputs that hold them."""
    found = find_files([tree / place for place in places], tree / "out")
    paths = [image.path.resolve() for image in found.images]
    held = {
        path
        for place in places
        for path in ([tree / place] if (tree / place).is_file() else (tree / place).rglob("*.png"))
    }
    assert len(paths) == len(set(paths))
    assert set(paths) == {path.resolve() for path in held}
    assert not found.set_aside


def test_the_order_of_inputs_changes_no_name(tree):
    inputs = [tree / "site", tree / "site/left", tree / "alone.png"]
    names = [
        {image.file for image in find_files(order, tree / "out").images} for order in (inputs, inputs[::-1])
    ]
    assert (
        names[0]
        == names[1]
        == {"site/a.png", "site/b.png", "site/left/c.png", "site/left/deep/d.png", "alone.png"}
    )


def test_two_files_of_one_name_are_refused_and_a_link_is_a_file(tree, tmp_path):
    shutil.copy(tree / "alone.png", tmp_path / "alone.png")
    with pytest.raises(UserError, match=r"two inputs hold a file alone\.png"):
        find_files([tree / "alone.png", tmp_path / "alone.png"], tmp_path / "out")
    (tmp_path / "link.png").symlink_to(tree / "alone.png")
    assert len(find_files([tree / "alone.png", tmp_path / "link.png"], tmp_path / "out").images) == 2


def rows(out):
    with (out / "manifest.csv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_the_output_of_an_earlier_prediction_is_named_and_not_read(disc_model, images, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    predict(disc_model, images, images / "first", overlays=False)
    command = [
        "predict",
        "-m",
        str(tmp_path / "model"),
        "-i",
        str(images),
        "--device",
        "cpu",
        "--no-overlays",
    ]
    for out in (images / "second", tmp_path / "third"):
        result = CliRunner().invoke(app, [*command, "-o", str(out)])
        outputs = ["first"] if out.name == "second" else ["first", "second"]
        assert f"an earlier prediction wrote it: {', '.join(outputs)}\n" in result.stdout
        assert "7 segmented" in result.stdout
        ignored = {file for file, row in rows(out).items() if row["status"] == "ignored"}
        assert ignored == set(outputs)
        assert len(rows(out)) == 9 + len(outputs)


def test_an_unfinished_output_is_recognised_too(disc_model, images, tmp_path):
    def stop(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(disc_model, images, images / "first", progress=stop)
    assert find_files([images], tmp_path / "out").outputs == ("first",)


def test_a_folder_that_holds_only_outputs_and_an_output_itself_are_refused(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "all" / "out", overlays=False)
    with pytest.raises(UserError, match="holds no image apart from the output of earlier predictions"):
        predict(disc_model, tmp_path / "all", tmp_path / "other")
    with pytest.raises(UserError, match="is the output of an earlier prediction; name a folder of images"):
        predict(disc_model, tmp_path / "all" / "out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_masks_that_no_prediction_wrote_are_not_replaced(disc_model, discs, tmp_path):
    """A site of a benchmark has its masks where a prediction would write them."""
    site = shutil.copytree(discs / "west", tmp_path / "west")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    for again in (False, True):
        with pytest.raises(UserError, match="holds files that no prediction wrote"):
            predict(disc_model, site / "images", site, again=again)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name",
    [
        "shards/train.tar",
        "overlays/00.jpg",
        "probabilities/00-1.png",
        "state/a",
        "manifest.csv",
        "report.html",
    ],
)
def test_files_in_the_output_folder_that_no_prediction_wrote_stay(disc_model, discs, tmp_path, name):
    shutil.copytree(discs / "west" / "images", tmp_path / "us" / "images")
    mine = tmp_path / "us" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    for again in (False, True):
        with pytest.raises(UserError, match=r"no prediction .*choose another output folder"):
            predict(disc_model, tmp_path / "us" / "images", tmp_path / "us", again=again)
    assert mine.read_text() == "mine"


def test_images_that_were_named_otherwise_before_are_refused(disc_model, discs, tmp_path):
    """A second input puts the name of its folder before every name."""
    one, two = (shutil.copytree(discs / "west" / "images", tmp_path / name) for name in "ab")
    out, second = tmp_path / "out", tmp_path / "second"
    predict(disc_model, one, out, method="source", overlays=False)
    with pytest.raises(UserError, match="give the inputs of the earlier call"):
        predict(disc_model, [one, two], out, method="source")
    predict(disc_model, [one, two], second, method="source", overlays=False)
    with pytest.raises(UserError, match="give the inputs of the earlier call"):
        predict(disc_model, one, second, method="source")
    assert predict(disc_model, one, out, method="source", overlays=False).kept == len(list(one.iterdir()))


def test_images_where_answers_would_be_written_are_refused(disc_model, discs, tmp_path):
    images = shutil.copytree(discs / "west" / "images", tmp_path / "io" / "overlays")
    with pytest.raises(UserError, match="where answers are written"):
        predict(disc_model, images, tmp_path / "io")
