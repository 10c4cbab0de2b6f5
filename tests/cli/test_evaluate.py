"""`ttdg evaluate`: whose options it takes, what it refuses, what it says and writes."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from typer.testing import CliRunner

from ttdg.adaptation import METHODS
from ttdg.checkpoints import read_card, save, save_part
from ttdg.cli import app
from ttdg.cli.evaluation_notes import tuned_stream_note
from ttdg.data import find_sites, split
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.tuned_options import Choice
from ttdg.types import Part


@pytest.fixture
def model(tmp_path, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    return tmp_path / "model"


@pytest.fixture
def evaluate(model, discs):
    """Its output; what it raises is raised."""

    def run(*arguments, data=discs, site="west", stderr=False):
        given = ["evaluate", "-m", model, "-d", data, "--site", site, "--device", "cpu", *arguments]
        result = CliRunner().invoke(app, list(map(str, given)), env={"COLUMNS": "200", "TERM": "dumb"})
        if result.exception:
            raise result.exception
        return result.stderr if stderr else result.output

    return run


@pytest.fixture
def tuned(tmp_path, model):
    """A file as `ttdg tune` writes it, or as `ttdg report` packs the searches of a run."""

    def write(*, sha256=None, sources=("east",), packed=False, alpha=0.4, batch=4):
        about = {"model": sha256 or read_card(model).sha256, "sources": list(sources)}
        about |= {"search": {"batch": batch}} if packed else {"batch": batch}
        mine = {"chosen": {"alpha": alpha}, "dice": 90.0, "trials": []}
        other = {
            **about,
            "model": "f" * 64,
            "sources": ["west"],
            "method": "alpha-bn",
            "chosen": {"alpha": 0.9},
        }
        text = {"k1": other, "k2": {**about, "method": "alpha-bn", **mine}} if packed else {
            **about, "methods": {"alpha-bn": mine}}  # fmt: skip
        (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(text))
        return tmp_path / "tuned.yaml"

    return write


@pytest.mark.parametrize("packed", [False, True])
def test_chosen_options_are_used_said_and_written_and_so_are_missing_ones(evaluate, tuned, tmp_path, packed):
    file, out = tuned(packed=packed), tmp_path / "out"
    output = evaluate(
        "--method", "alpha-bn", "--method", "source", "--method", "tent", "--tuned", file, "-o", out
    )
    assert "alpha-bn: alpha 0.4\n" in output
    assert "source: no options\n" in output
    assert f"tent: not in {file}, runs with its defaults: lr 0.0001, steps 1" in output
    written = json.loads((out / "options.json").read_text())
    assert written["tuned"] == str(file)
    assert written["methods"]["alpha-bn"] == {"alpha": 0.4}
    assert written["methods"]["tent"]["lr"] == 1e-4


def test_what_is_given_by_hand_goes_over_what_was_chosen(evaluate, tuned):
    output = evaluate("--method", "alpha-bn", "--tuned", tuned(), "--set", "alpha=0.7")
    assert "alpha-bn: alpha 0.7\n" in output


@pytest.mark.parametrize("packed", [False, True])
def test_a_search_for_another_model_is_refused(evaluate, tuned, packed):
    with pytest.raises(UserError, match=r"tuned for another model .*eeeeeeeeeeee.*tune this one"):
        evaluate("--method", "alpha-bn", "--tuned", tuned(sha256="e" * 64, packed=packed))


@pytest.mark.parametrize("packed", [False, True])
def test_a_search_that_saw_a_scored_site_is_refused(evaluate, tuned, packed):
    with pytest.raises(
        UserError, match="tuned on west, and settings are never chosen on a site that is scored"
    ):
        evaluate("--method", "alpha-bn", "--tuned", tuned(sources=["east", "west"], packed=packed))


def test_two_choices_for_one_method_are_not_guessed_between(evaluate, tuned):
    file = tuned(packed=True)
    searches = yaml.safe_load(file.read_text())
    searches["k1"] |= {"model": searches["k2"]["model"], "sources": ["east"]}
    file.write_text(yaml.safe_dump(searches))
    with pytest.raises(UserError, match="several searches of 'alpha-bn'"):
        evaluate("--method", "alpha-bn", "--tuned", file)
    assert "norm: no options" in evaluate("--method", "norm", "--tuned", file)


@pytest.mark.parametrize(
    "text", ["[]", "a", "", "a: 1", "methods: {tent: {}}", "a: [", "k: {method: tent, chosen: 3}"]
)
def test_a_file_of_another_kind_is_refused(evaluate, tmp_path, text):
    (tmp_path / "no.yaml").write_text(text)
    with pytest.raises(UserError, match="is not a file of tuned options"):
        evaluate("--tuned", tmp_path / "no.yaml")


def test_a_missing_file_is_said_to_be_missing(evaluate, tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*nowhere\.yaml; tune the methods first"):
        evaluate("--tuned", tmp_path / "nowhere.yaml")


def test_every_method_is_checked_before_the_first_runs(evaluate, monkeypatch):
    monkeypatch.setattr("ttdg.evaluation.site.evaluate_site", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(UserError, match="did you mean 'tent'"):
        evaluate("--method", "source", "--method", "TENT")
    with pytest.raises(UserError, match="'itta' needs the part 'itta'"):
        evaluate("--method", "source", "--method", "itta")


@pytest.fixture
def quick(evaluate, monkeypatch):
    """An evaluation that answers nothing: (site, method) in the order they would have run."""
    ran = []

    def instead(model, site, benchmark, setting, **_):
        ran.append((setting.site, setting.method))
        metrics = ("dice", "structure", "alignment_max", "seconds")
        about = {"site": setting.site, "method": setting.method, "images": 1}
        return Evaluation(about, [(setting.site, setting.site, "a", "disc", m, 0.5) for m in metrics])

    monkeypatch.setattr("ttdg.evaluation.site.evaluate_site", instead)

    def run(*arguments, **more):
        ran.clear()
        return evaluate(*arguments, stderr=True, **more), list(ran)

    return run


def test_methods_and_sites_are_run_once_in_the_order_first_named(quick):
    said, ran = quick(
        "--method", "tent, norm", "--method", "source,tent,", "--site", "south", "--site", "west"
    )
    assert ran == [(site, method) for site in ("west", "south") for method in ("tent", "norm", "source")]
    assert said == ""


def test_rows_of_what_is_named_twice_are_written_once(evaluate, discs, tmp_path):
    evaluate("-o", tmp_path / "once", "--method", "norm")
    evaluate("-o", tmp_path / "twice", "--method", "norm", "--method", "norm", "--site", "west")
    once, twice = (
        [
            (line["site"], line["case"], line["method"], line["region"], line["dice"])
            for line in csv.DictReader((tmp_path / name / "records.csv").open(newline=""))
        ]
        for name in ("once", "twice")
    )
    assert once == twice
    assert len(once) == len(find_sites(discs)["west"].cases)
    assert json.loads((tmp_path / "once" / "options.json").read_text())["tuned"] is None


def test_all_is_every_method_the_model_has_the_parts_for_and_the_others_are_named(quick, model):
    said, ran = quick("--method", "tent,all")
    bare = [name for name, method in METHODS.items() if not method.parts and name != "tent"]
    assert [method for _, method in ran] == ["tent", *bare]
    assert said.count("\n") == 1
    for name in METHODS.keys() - {"tent", *bare}:
        assert name in said
    for how in ("prior: make it with `ttdg fit-prior`", "`ttdg train`", "`--with nc-ttt,deynet,tasd-r,itta`"):
        assert how in said
    save_part(model, "itta", Part({"a": torch.zeros(1)}), read_card(model).sha256)
    said, ran = quick("--method", "all")
    assert "itta" in [method for _, method in ran]
    assert "itta" not in said


def test_a_method_option_that_names_nothing_is_refused(quick):
    with pytest.raises(UserError, match="--method names no method"):
        quick("--method", " ,")


def test_options_given_by_hand_go_with_one_method_however_the_methods_are_named(quick):
    for methods in ("tent,sar", "all"):
        with pytest.raises(UserError, match="--set goes with one method"):
            quick("--method", methods, "--set", "lr=1e-3")
    assert quick("--method", "tent,tent", "--set", "lr=1e-3")[1] == [("west", "tent")]


@pytest.mark.parametrize("packed", [False, True])
def test_options_tuned_at_another_batch_are_said_to_be(quick, tuned, packed):
    common = ("--method", "alpha-bn,source", "--tuned", tuned(packed=packed, batch=4))
    assert quick(*common, "--batch", 1)[0] == "run here at batch 1, tuned at another: alpha-bn (batch 4)\n"
    assert quick(*common, "--batch", 4)[0] == ""
    by_hand = ("--method", "alpha-bn", *common[2:], "--set", "alpha=0.7", "--batch", 1)
    assert quick(*by_hand)[0] == "", "nothing of what was tuned is used"


def test_options_tuned_on_another_stream_are_said_to_be_if_the_method_has_memory():
    searched = {name: Choice(name, {"lr": 1e-3}, "", (), 4, "online") for name in ("cotta", "alpha-bn")}
    assert (
        tuned_stream_note(searched, {}, "episodic")
        == "run here on the stream episodic, tuned on another: cotta (online)"
    )
    assert tuned_stream_note(searched, {}, "online") is None
    assert tuned_stream_note(searched, {"lr": 1e-4}, "episodic") is None


def test_a_training_site_is_said_to_be_one(quick):
    assert quick("--site", "east")[0].startswith("east: this model was trained there")
    assert quick("--site", "south")[0] == ""


def test_a_site_that_holds_out_nothing_and_one_without_masks_are_told_apart(evaluate, discs, tmp_path):
    shutil.copytree(discs, tmp_path / "data")
    cases = find_sites(discs)["west"].cases
    (alone,) = [case for case in cases if case.name == split(cases)[0][0].name]
    for part in ("images", "masks"):
        for case in set(cases) - {alone}:
            (tmp_path / "data" / "west" / part / f"{case.name}.png").unlink()
    with pytest.raises(UserError, match="holds out none of its 1 images; score all of them instead"):
        evaluate("--cases", "held-out", data=tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "west" / "masks")
    with pytest.raises(UserError, match="'west' has images without masks; scoring needs them"):
        evaluate(data=tmp_path / "data")


def test_a_method_that_cannot_use_one_image_is_said_so(quick, model, monkeypatch):
    monkeypatch.setitem(METHODS, "tent", replace(METHODS["tent"], needs=("BatchNorm", "batch ≥ 2")))
    assert quick("--method", "norm,tent", "--batch", 1)[0].startswith(
        "tent: one image a batch is answered as `source`"
    )
    assert quick("--method", "norm,tent", "--batch", 2)[0] == ""


def test_a_folder_collects_evaluations_of_one_model_and_refuses_another(
    evaluate, model, disc_model, tmp_path
):
    out = tmp_path / "out"
    evaluate("-o", out, "--method", "source")
    evaluate("-o", out, "--method", "source", site="south")
    with (out / "records.csv").open(newline="") as file:
        assert {line["site"] for line in csv.DictReader(file)} == {"west", "south"}
    torch.nn.init.normal_(next(disc_model.network.parameters()))
    save(model, disc_model.network, disc_model.card)
    with pytest.raises(UserError, match="holds evaluations of another model"):
        evaluate("-o", out, "--method", "source")


def test_an_out_that_is_a_file_is_refused_before_anything_runs(quick, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; name a folder"):
        quick("-o", tmp_path / "file")


def test_a_folder_describes_every_method_it_holds_and_refuses_what_would_not_compare(evaluate, tmp_path):
    out = tmp_path / "out"
    evaluate("-o", out, "--method", "alpha-bn", "--set", "alpha=0.3")
    evaluate("-o", out, "--method", "source", site="south")
    methods = json.loads((out / "options.json").read_text())["methods"]
    assert methods == {"alpha-bn": {"alpha": 0.3}, "source": {}}
    with pytest.raises(UserError, match="alpha-bn with other options"):
        evaluate("-o", out, "--method", "alpha-bn", site="south")
    for other in (("--cases", "held-out"), ("--shuffle", 0)):
        with pytest.raises(UserError, match="another choice or order of images"):
            evaluate("-o", out, "--method", "source", *other)
    evaluate("-o", out, "--method", "source", site="south")  # the same again replaces its record


def test_a_folder_refuses_scores_of_changed_images(evaluate, discs, tmp_path):
    out, data = tmp_path / "out", shutil.copytree(discs, tmp_path / "data")
    evaluate("-o", out, "--method", "source", data=data)
    mask = min((data / "west" / "masks").iterdir())
    mask.write_bytes(max((data / "west" / "masks").iterdir()).read_bytes())
    with pytest.raises(UserError, match="other images or masks of west"):
        evaluate("-o", out, "--method", "norm", data=data)
    evaluate("-o", out, "--method", "norm", data=data, site="south")


def test_views_stand_beside_the_plain_answers_in_one_folder(evaluate, tmp_path):
    evaluate("--method", "source", "--out", tmp_path / "out")
    said = evaluate("--method", "source", "--views", "flips", "--out", tmp_path / "out")
    assert "source + flips" in said
    with (tmp_path / "out" / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_method = {
        name: [row["structure"] for row in rows if row["method"] == name]
        for name in ("source", "source + flips")
    }
    assert len(by_method["source"]) == len(by_method["source + flips"]) == 10
    assert by_method["source"] != by_method["source + flips"]


def test_unknown_views_are_refused_before_the_model_is_read(evaluate, model):
    shutil.rmtree(model)
    with pytest.raises(UserError, match="unknown views 'flip'; did you mean 'flips'"):
        evaluate("--views", "flip")
