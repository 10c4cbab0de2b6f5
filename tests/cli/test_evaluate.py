"""`ttdg evaluate`: whose options it takes, what it refuses, what it says and writes."""

import json
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.data import find_sites, split
from ttdg.errors import UserError
from ttdg.training import save
from ttdg.training.checkpoint import read_card


@pytest.fixture
def model(tmp_path, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    return tmp_path / "model"


@pytest.fixture
def evaluate(model, discs):
    """Its output; what it raises is raised."""

    def run(*arguments, data=discs, site="west"):
        given = ["evaluate", "-m", model, "-d", data, "--site", site, "--device", "cpu", *arguments]
        result = CliRunner().invoke(app, list(map(str, given)), env={"COLUMNS": "200", "TERM": "dumb"})
        if result.exception:
            raise result.exception
        return result.output

    return run


@pytest.fixture
def tuned(tmp_path, model):
    """A file as `ttdg tune` writes it, or as `ttdg report` packs the searches of a run."""

    def write(*, sha256=None, sources=("east",), packed=False, alpha=0.4):
        about = {"model": sha256 or read_card(model).sha256, "sources": list(sources)}
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
    assert written["methods"]["alpha-bn"] == {"alpha": 0.4}
    assert written["methods"]["tent"]["lr"] == 1e-4


def test_what_is_given_by_hand_goes_over_what_was_chosen(evaluate, tuned):
    output = evaluate("--method", "alpha-bn", "--tuned", tuned(), "--set", "alpha=0.7")
    assert "alpha-bn: alpha 0.7\n" in output


@pytest.mark.parametrize("packed", [False, True])
def test_a_search_for_another_model_is_refused(evaluate, tuned, packed):
    with pytest.raises(UserError, match=r"tuned for another model .*eeeeeeeeeeee.*run `ttdg tune`"):
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
    with pytest.raises(UserError, match="is not what `ttdg tune` writes"):
        evaluate("--tuned", tmp_path / "no.yaml")


def test_a_missing_file_is_said_to_be_missing(evaluate, tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*nowhere\.yaml; `ttdg tune --out"):
        evaluate("--tuned", tmp_path / "nowhere.yaml")


def test_every_method_is_checked_before_the_first_runs(evaluate, monkeypatch):
    monkeypatch.setattr("ttdg.experiment.site.evaluate_site", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(UserError, match="did you mean 'tent'"):
        evaluate("--method", "source", "--method", "TENT")
    with pytest.raises(UserError, match="'itta' needs the part 'itta'"):
        evaluate("--method", "source", "--method", "itta")


def test_a_site_that_holds_out_nothing_and_one_without_masks_are_told_apart(evaluate, discs, tmp_path):
    shutil.copytree(discs, tmp_path / "data")
    kept, out = split(find_sites(discs)["west"].cases)
    for part in ("images", "masks"):
        for case in out:
            (tmp_path / "data" / "west" / part / f"{case.name}.png").unlink()
    with pytest.raises(UserError, match=f"holds out none of its {len(kept)} images; .*--cases all$"):
        evaluate("--cases", "held-out", data=tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "west" / "masks")
    with pytest.raises(UserError, match="'west' has images without masks; scoring needs them"):
        evaluate(data=tmp_path / "data")
