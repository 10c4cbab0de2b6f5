"""The settings of training: checked, stored, and mirrored by the options of `ttdg train`."""

import csv
import inspect
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ttdg.bench.jobs import from_dict, key_of
from ttdg.cli import app
from ttdg.cli.models.fit import fit_prior_command
from ttdg.cli.train import train_command
from ttdg.data import AUGMENTATIONS
from ttdg.errors import UserError
from ttdg.networks import ENCODERS, NetworkSpec, Segmenter, feature_maps, level_channels
from ttdg.networks.losses import LOSSES
from ttdg.prior import literal_prior_for, prior_for
from ttdg.prior.literal import CLASS_MATRICES
from ttdg.training import Recipe, loop, parts, prior_fit
from ttdg.training.recipe import CHOICES, LATER, OPTIONAL

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def test_the_rate_decays_from_lr_to_zero():
    recipe = Recipe(steps=100, lr=0.1)
    rates = [recipe.rate(step) for step in range(101)]
    assert rates[0] == 0.1
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "dice"}, "unknown loss 'dice'"),
        ({"encoder": "resnet5"}, "did you mean 'resnet50'"),
        ({"augmentation": "heavy"}, "unknown augmentation"),
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"precision": "16"}, "unknown precision"),
        ({"steps": 0}, "steps must be positive"),
        ({"points": 0}, "points must be positive"),
        ({"sampling": 3}, "sampling is one of 2, 4, 8, 16"),
        ({"edges": -0.5}, "edges at least 0"),
        ({"fourier": 1.5}, "fourier must be between 0 and 1, not 1.5"),
        ({"mixstyle": -0.1}, "mixstyle must be between 0 and 1"),
        ({"average": 1.0}, "average must be below 1"),
        ({"universe_loss": "printed"}, "unknown universe_loss"),
        ({"class_matrix": "none"}, "class_matrix has no effect with the universe loss 'repaired'"),
        ({"universe_loss": "literal", "tau": 0.2}, "tau has no effect with the universe loss 'literal'"),
        ({"encoder_weights": "nowhere.safetensors"}, "no encoder weights at nowhere"),
    ],
)
def test_a_wrong_value_raises_before_training(values, message):
    with pytest.raises(UserError, match=message):
        Recipe(**values)


def test_the_stored_recipe_names_the_weights_not_their_folder(tmp_path):
    (tmp_path / "w.safetensors").touch()
    assert (
        Recipe(encoder_weights=str(tmp_path / "w.safetensors")).to_dict()["encoder_weights"]
        == "w.safetensors"
    )


@pytest.mark.parametrize(("points", "nodes"), [(20, 20), (40, 32), (80, 32)])
def test_the_prior_has_the_recipes_number_of_points_and_by_default_that_of_priorspec(points, nodes):
    network = Segmenter(NetworkSpec(2, "light"))
    prior = prior_for(level_channels(network), 2, **Recipe(points=points).prior_settings())
    assert (len(prior.universe), prior.spec.per_tissue) == (3 * points, nodes)
    widths = level_channels(network)
    assert prior_for(widths, 2, **Recipe().prior_settings()).spec == prior_for(widths, 2).spec


@pytest.mark.parametrize(("sampling", "edges", "tau"), [(8, 0.5, 0.1), (2, 0.0, 0.2)])
def test_sampling_edges_and_temperature_reach_the_prior(sampling, edges, tau):
    network = Segmenter(NetworkSpec(2, "light")).eval()
    prior = prior_for(
        level_channels(network), 2, **Recipe(sampling=sampling, edges=edges, tau=tau).prior_settings()
    )
    assert (prior.spec.stride, prior.spec.edge_weight, prior.spec.tau) == (sampling, edges, tau)
    labels = torch.zeros(2, 64, 64, dtype=torch.long)
    labels[:, 16:48, 16:48] = 1
    with torch.no_grad():
        projected = prior.project(feature_maps(network, torch.rand(2, 3, 64, 64))[1])
    assert projected.shape[2:] == (64 // sampling, 64 // sampling)
    nodes = prior.nodes(projected, labels)
    assert torch.allclose(prior.match(nodes).sum(2)[nodes.mask], torch.ones(()), atol=1e-2)


# --- the command


def mirrored() -> list[str]:
    options = inspect.signature(train_command).parameters
    return [field.name for field in fields(Recipe) if field.name in options]


def test_every_option_that_mirrors_a_field_has_its_default_and_help():
    options = inspect.signature(train_command).parameters
    assert len(mirrored()) >= 17
    assert set(OPTIONAL) <= set(mirrored())
    for field in fields(Recipe):
        assert field.metadata["help"].endswith("."), field.name
        if field.name in options:
            assert options[field.name].default == field.default, field.name
            assert options[field.name].annotation.__metadata__[0].help == field.metadata["help"]


def test_every_option_that_mirrors_a_field_reaches_the_recipe(discs, tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").touch()
    other = Recipe(
        "light", str(tmp_path / "w.safetensors"), "v1", 3, 4, "sgd", 0.5, loss="ce", augmentation="none",
        universe=0.3, precision="32", seed=7, deterministic=True, fourier=0.1, photometric=0.2, mixstyle=0.3,
        average=0.4, universe_loss="literal", class_matrix="none", points=12,
    )  # fmt: skip
    assert all(getattr(other, name) != getattr(Recipe, name) for name in mirrored())
    received = []

    def stop(recipe, *more):
        received.append(recipe)
        raise UserError("stop")

    monkeypatch.setattr(loop, "make_fabric", stop)
    options = [
        f"--{name.replace('_', '-')}={getattr(other, name)}" for name in mirrored() if name != "deterministic"
    ]
    command = ["train", "-d", str(discs), "-o", str(tmp_path / "m")]
    CliRunner().invoke(app, [*command, *options, "--deterministic"])
    CliRunner().invoke(app, command)
    assert received == [other, Recipe()]


def test_the_steps_of_the_commands_are_those_of_the_library():
    assert inspect.signature(train_command).parameters["part_steps"].default == parts.STEPS
    assert inspect.signature(fit_prior_command).parameters["steps"].default == prior_fit.STEPS


# --- choices and stored values


def test_the_choices_are_the_keys_of_the_tables():
    assert set(CHOICES["encoder"]) == set(ENCODERS)
    assert set(CHOICES["loss"]) == set(LOSSES)
    assert set(CHOICES["augmentation"]) == set(AUGMENTATIONS)
    assert set(CHOICES["class_matrix"]) == set(CLASS_MATRICES)


def test_a_recipe_is_made_without_torch():
    code = "import sys; from ttdg.training import Recipe; Recipe(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_optional_fields_are_stored_only_if_they_are_on():
    off = Recipe(**dict.fromkeys(OPTIONAL, 0.0)).to_dict()
    assert not set(OPTIONAL) & off.keys()
    assert len(off) == len(fields(Recipe)) - len(OPTIONAL) - len(LATER)
    for name in OPTIONAL:
        assert Recipe(**{name: 0.5}).to_dict()[name] == 0.5


@given(st.fixed_dictionaries({name: st.just(0.0) | st.floats(0, 0.999) for name in OPTIONAL}))
def test_a_stored_recipe_is_read_as_it_was_whatever_the_defaults_are(values):
    for recipe in (Recipe(), Recipe("light", augmentation="standard", steps=7, **values)):
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_the_literal_universe_is_stored_only_if_it_is_chosen():
    assert not set(LATER) & Recipe().to_dict().keys()
    for chosen in ({"universe_loss": "literal"}, {"universe_loss": "literal", "class_matrix": "masked"}):
        stored = Recipe(**chosen).to_dict()
        assert {name: stored[name] for name in LATER if name in stored} == chosen
        assert Recipe.from_dict(stored) == Recipe(**chosen)


@pytest.mark.parametrize("points", [7, 40])
def test_the_literal_prior_has_as_many_nodes_per_class_as_points(points):
    recipe = Recipe(universe_loss="literal", class_matrix="masked", points=points, sampling=8)
    prior = literal_prior_for(
        level_channels(Segmenter(NetworkSpec(3, "light"))), 3, **recipe.prior_settings()
    )
    spec = prior.spec
    assert (len(prior.universe), spec.per_tissue, spec.class_matrix, spec.stride) == (
        3 * points,
        points,
        "masked",
        8,
    )


def test_a_stored_recipe_gets_the_place_of_its_weights_from_the_reader(tmp_path):
    (tmp_path / "w.safetensors").touch()
    recipe = Recipe(encoder_weights=str(tmp_path / "w.safetensors"))
    assert Recipe.from_dict(recipe.to_dict(), recipe.encoder_weights) == recipe
    assert Recipe.from_dict(recipe.to_dict()).encoder_weights is None


def test_the_default_is_the_recipe_that_generalises_best_between_source_sites():
    scores = defaultdict(list)
    with (RECORDS.parent / "results" / "source-recipes.csv").open() as file:
        for row in csv.DictReader(file):
            scores[row["recipe"], int(row["steps"])].append(float(row["dice"]))
    complete = max(map(len, scores.values()))
    best = max((s for s in scores if len(scores[s]) == complete), key=lambda s: sum(scores[s]))
    default = Recipe()
    assert (f"{default.augmentation} average", default.steps) == best
    assert (default.average, default.fourier, default.photometric, default.mixstyle) == (0.999, 0, 0, 0)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*/run.json")), ids=lambda path: path.parent.name)
def test_recorded_training_jobs_keep_their_keys(path):
    jobs = json.loads(path.read_text())["jobs"]
    trainings = {key: from_dict(job) for key, job in jobs.items() if job["kind"] == "train"}
    assert trainings
    strong = dict.fromkeys(("learn", "longer", "strong", "prostate", "vessels", "gate"), ("strong", 0.999))
    others = {"pacs": ("strong", 0), "rivals": ("strong", 0.995), "methods": ("strong", 0.995)}
    recipe = {**strong, **others}.get(path.parent.name.split("-")[0], ("standard", 0))
    for key, job in trainings.items():
        weights = job.recipe["encoder_weights"]
        assert (job.recipe["augmentation"], Recipe.from_dict(job.recipe).average) == recipe
        stored = Recipe.from_dict(job.recipe).to_dict() | {"encoder_weights": weights}
        assert key_of(replace(job, recipe=stored)) == key
        assert key_of(replace(job, recipe=stored | {"fourier": 0.5})) != key


def test_a_text_instead_of_a_number_is_refused_by_name():
    code = (
        "from ttdg.training import Recipe; Recipe(steps='many')"  # in a process whose types are not checked
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "steps must be a number, not 'many'" in done.stderr
