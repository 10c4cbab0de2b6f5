"""Drawn sites of shapes, and classifiers trained on them for a few steps, shared by all tests of classification."""

from dataclasses import replace
from pathlib import Path

import pytest

from ttdg.bench.fitting import FitSource, fit_from_yaml
from ttdg.checkpoints import Model, load
from ttdg.data import Sources, find_sites, load_benchmark, load_sources
from ttdg.data.synthetic import write_benchmark
from ttdg.training import Recipe, make_fabric, train

RECIPE = {
    "encoder": "light", "optimiser": "adamw", "steps": 2, "batch": 4, "loss": "ce", "augmentation": "standard",
    "average": 0.0,
}  # fmt: skip
LITERAL = {"universe": 1.0, "universe_loss": "literal", "class_matrix": "none", "points": 12}
FITS = {"nc-ttt": {"steps": 1}, "itta": {"steps": 1}, "judge": {"draws": 1, "mixing_steps": 1}}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("shapes") / "data", "shapes", count=8, size=32)


@pytest.fixture(scope="session")
def sources(shapes) -> Sources:
    return load_sources(find_sites(shapes, ["north", "harbour"]), load_benchmark(None, shapes))


def trained(sources: Sources, shapes: Path, out: Path, **fields) -> Model:
    recipe = Recipe(**RECIPE, **fields)
    train(
        sources.train, sources.held_out, load_benchmark(None, shapes), recipe, out,
        fabric=make_fabric(recipe, "cpu"), provenance=sources.provenance,
    )  # fmt: skip
    return load(out)


@pytest.fixture(scope="session")
def model(sources, shapes, tmp_path_factory) -> Model:
    """A classifier with the universe of this project."""
    return trained(sources, shapes, tmp_path_factory.mktemp("own") / "model", universe=0.1)


@pytest.fixture(scope="session")
def fitted(model, sources) -> Model:
    """The same with all parts that methods for classifiers need."""
    parts = {
        name: fit_from_yaml(name, FitSource(model, sources, 0), settings) for name, settings in FITS.items()
    }
    return replace(model, parts={**model.parts, **parts})


@pytest.fixture(scope="session")
def literal(sources, shapes, tmp_path_factory) -> Model:
    """A classifier with the universe of the paper's Algorithm 1."""
    return trained(sources, shapes, tmp_path_factory.mktemp("literal") / "model", **LITERAL)
