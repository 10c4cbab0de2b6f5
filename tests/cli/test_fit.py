"""`ttdg fit-prior` and `ttdg fit-judge` write parts beside a checkpoint, from its own source images."""

import re
import shutil

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from ttdg.adaptation.judge.finished_rounds import FinishedRounds
from ttdg.checkpoints import load
from ttdg.cli import app
from ttdg.errors import UserError


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture(scope="module")
def trained(discs, tmp_path_factory):
    """A model without a prior."""
    out = tmp_path_factory.mktemp("models") / "m"
    result = run("train", "-d", discs, "--leave-out", "west", "-o", out, "--encoder", "light", "--steps", 1, "--batch",
                 2, "--accelerator", "cpu", "--workers", 1, "--universe", 0, "--no-fingerprint")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert not load(out).parts
    return out


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "m")


SHORT = ("--draws", 1, "--mixing-steps", 1, "--hospitals", 1, "--learning-steps", 1)


def command(kind, model, discs, *more):
    steps = ("--steps", 2) if kind == "prior" else ()
    words = (f"fit-{kind}", model, "-d", discs, *steps, "--device", "cpu", "--workers", 1, *more)
    return [str(word) for word in words]


def fit(kind, model, discs, *more):
    return run(*command(kind, model, discs, *more))


def content(part):
    """The tensors of a part, as bytes, and its settings; the order of the header differs between processes."""
    with safe_open(part, framework="pt") as file:
        return {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_prior_and_judge_are_written_beside_the_checkpoint_and_their_methods_run(model, discs):
    weights = (model / "model.safetensors").read_bytes()
    assert "ttdg fit-prior" in str(fit("judge", model, discs).exception)
    assert fit("prior", model, discs).exit_code == 0
    result = fit("judge", model, discs, *SHORT)
    assert result.exit_code == 0, result.exception
    assert "judge.safetensors" in result.output
    assert re.search(
        r"judge fitted on \d+ held-out source images; cross-validated over \d+ simulated", result.output
    )
    assert "held-out images are few to fit a judge to" in result.stderr
    parts = load(model).parts
    assert set(parts) == {"prior", "judge"}
    assert parts["prior"].fitted == {"steps": 2, "seed": 0}
    assert parts["judge"].fitted["readings"] == "four"
    assert (model / "model.safetensors").read_bytes() == weights
    scored = run("evaluate", "-m", model, "-d", discs, "--site", "west", "--method", "universe-choice",
                 "--device", "cpu")  # fmt: skip
    assert scored.exit_code == 0, scored.exception


def test_an_existing_part_is_kept_unless_again_is_given(model, discs):
    assert fit("prior", model, discs).exit_code == 0
    first = (model / "prior.safetensors").read_bytes()
    assert "has the part prior already" in fit("prior", model, discs).output
    assert (model / "prior.safetensors").read_bytes() == first
    assert fit("prior", model, discs, "--again", "--seed", 1).exit_code == 0
    assert (model / "prior.safetensors").read_bytes() != first


def test_a_new_prior_makes_the_judge_stale_and_says_so(model, discs):
    fit("prior", model, discs)
    fit("judge", model, discs, *SHORT)
    assert "fit it again" in fit("prior", model, discs, "--again", "--seed", 1).output
    scored = run(
        "evaluate", "-m", model, "-d", discs, "--site", "west", "--method", "judge", "--device", "cpu"
    )
    assert "another prior" in str(scored.exception)


class Killed(BaseException):
    """Ends a command as a signal would: nothing catches it."""


def test_an_interrupted_fit_of_the_judge_goes_on_and_ends_as_an_undisturbed_one(model, discs, monkeypatch):
    from ttdg.adaptation.judge import fit as judge_fit
    from ttdg.adaptation.universe import learner

    fit("prior", model, discs)
    short = ("--draws", 1, "--mixing-steps", 1, "--hospitals", 2, "--learning-steps", 1)
    whole, part = shutil.copytree(model, model.with_name("whole")), "judge.safetensors"
    assert fit("judge", whole, discs, *short).exit_code == 0
    assert not (whole / "judge.partial").exists()

    def fit_until_second_call(owner, name):
        function, calls = getattr(owner, name), []

        def dying(*arguments, **named):
            calls.append(name)
            if len(calls) == 2:
                raise Killed
            return function(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying)
            with pytest.raises(Killed):
                CliRunner().invoke(app, command("judge", model, discs, *short), catch_exceptions=False)

    fit_until_second_call(judge_fit, "collect_evidence")
    fit_until_second_call(learner.UniverseLearner, "learn_always")
    (kept,) = (model / "judge.partial").glob("*/round-1.pt")
    kept.write_bytes(kept.read_bytes()[:-1])  # a damaged file counts as absent
    monkeypatch.setattr(judge_fit, "fit_mixing", None)  # computed before the first kill
    result = fit("judge", model, discs, *short)
    assert result.exit_code == 0, result.exception
    assert re.search(r"goes on after \d+ of \d+ finished rounds", result.stderr)
    assert content(model / part) == content(whole / part)
    assert not (model / "judge.partial").exists()


def test_rounds_of_another_fit_are_not_used(tmp_path):
    cpu = torch.device("cpu")
    first = FinishedRounds(tmp_path / "judge.partial", {"seed": 0}, cpu)
    assert first("round-1", lambda: {"x": torch.ones(2)})["x"].tolist() == [1, 1]
    other = FinishedRounds(tmp_path / "judge.partial", {"seed": 1}, cpu)
    assert (len(first), len(other)) == (0, 0)
    assert other("round-1", lambda: {"x": torch.zeros(2)})["x"].tolist() == [0, 0]
    again = FinishedRounds(tmp_path / "judge.partial", {"seed": 1}, cpu)
    assert again("round-1", lambda: pytest.fail("computed twice"))["x"].tolist() == [0, 0]


def test_only_the_models_own_sources_are_taken(model, discs):
    result = fit("prior", model, discs, "--sources", "west")
    assert isinstance(result.exception, UserError)
    assert "'west' is no source of this model; its sources are east, south" in str(result.exception)
    assert fit("prior", model, discs, "--sources", "east").exit_code == 0


def test_images_that_changed_since_training_are_refused(model, discs, tmp_path):
    changed = shutil.copytree(discs, tmp_path / "discs")
    (changed / "south" / "masks" / "03.png").write_bytes((discs / "south" / "masks" / "04.png").read_bytes())
    result = fit("prior", model, changed)
    assert isinstance(result.exception, UserError)
    assert "site 'south' holds 10 cases that are not those the model was trained on" in str(result.exception)
    assert not (model / "prior.safetensors").exists()


def test_the_embedded_model_is_not_written_to(discs):
    assert "part of the installation" in str(fit("prior", "demo", discs).exception)
