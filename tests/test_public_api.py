"""The public interface: the names of `ttdg`, the README's example under a strict type checker, and the demo model."""

import importlib
import importlib.util
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest
import torch

import ttdg

ROOT = Path(__file__).parents[1]
# The two checks that pyproject.toml switches off for the package.
STRICT = "# mypy: disallow-untyped-calls, enable-error-code=no-any-return\n"
SET_UP = """\
import torch

first, norm = torch.nn.Conv2d(3, 8, 1), torch.nn.BatchNorm2d(8)
network: torch.nn.Module = torch.nn.Sequential(first, norm, torch.nn.Conv2d(8, 2, 1))
source_images: torch.Tensor = torch.rand(20, 3, 32, 32)
source_masks: torch.Tensor = (source_images[:, 0] > 0.5).long()
images: torch.Tensor = torch.rand(4, 3, 32, 32) ** 2
"""
USE = """
result: torch.Tensor = logits
"""


def readme_example() -> str:
    (code, *_) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return code


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_example_of_the_readme_passes_a_strict_type_checker(tmp_path):
    """With the options and the cache of `make types`, so that torch and the package are analysed once for both."""
    (tmp_path / "example.py").write_text(STRICT + SET_UP + readme_example() + USE)
    command = [sys.executable, "-m", "mypy", "src", str(tmp_path / "example.py")]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def run_readme_example():
    """Run the example, which adapts a user's own network by `universe`."""
    values: dict[str, object] = {}
    exec(SET_UP + readme_example() + USE, values)  # the example is part of this repository
    assert '"universe"' in readme_example()
    assert not hasattr(values["network"], "encode")
    assert isinstance(values["result"], torch.Tensor)
    assert values["result"].isfinite().all()


def test_the_example_of_the_readme_runs_with_a_short_fit(monkeypatch):
    short = {
        "steps": 1,
        "hospitals": 1,
        "draws": 1,
        "mixing_steps": 1,
        "learning_steps": 1,
        "learning_draw": 2,
    }
    monkeypatch.setattr(importlib.import_module("ttdg.foreign"), "fit", partial(ttdg.fit, **short))
    run_readme_example()


@pytest.mark.slow
def test_the_example_of_the_readme_runs():
    run_readme_example()


@pytest.mark.parametrize(
    "name",
    ["adapt", "fit", "export", "load", "predict_site", "METHODS", "Segmenter", "Classifier", "NetworkSpec"],
)
def test_a_public_name_resolves(name):
    assert getattr(ttdg, name) is not None
    assert name in ttdg.__all__


def test_adapt_is_a_function():
    assert isinstance(ttdg.adapt, FunctionType)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        ttdg.nothing  # noqa: B018


@pytest.mark.parametrize("method", ["universe-choice", "judge"])
def test_the_demo_model_has_the_parts_of_the_methods_with_a_prior(method):
    model = ttdg.load("demo")
    adapter = ttdg.adapt(model, method)
    images = torch.randn(2, model.card.network.channels, 64, 64)
    logits = adapter(images)
    assert logits.shape == (2, model.card.network.labels, 64, 64)
    assert logits.isfinite().all()
    adapter.reset()
