import shutil

import pytest
import torch

from ttdg.checkpoints import Model, load
from ttdg.data import find_sites, load_arrays, load_benchmark, normalise
from ttdg.data.synthetic import write_benchmark
from ttdg.newsite import predict
from ttdg.safety import Fingerprint, SourceShadow


@pytest.fixture(scope="session")
def demo() -> Model:
    """The embedded model, with all of its parts."""
    return load("demo")


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory):
    """Five drawn hospitals with 8 images each, of a seed that the demo model never saw."""
    return write_benchmark(tmp_path_factory.mktemp("hospitals"), "fundus", 8, seed=11)


@pytest.fixture(scope="session")
def site_images(demo, hospitals):
    """Normalised images by site."""
    sites = find_sites(hospitals)
    arrays = {name: load_arrays(sites[name].cases, demo.card.benchmark) for name in ("north", "summit")}
    how = load_benchmark(None, hospitals).normalisation
    return {name: normalise(a.images.float() / 255, how) for name, a in arrays.items()}


@pytest.fixture(scope="session")
def fingerprint(demo) -> Fingerprint:
    return Fingerprint.from_part(demo.parts["fingerprint"])


@pytest.fixture(scope="session")
def embedded(demo, fingerprint, site_images):
    shadow = SourceShadow(demo.network, fingerprint.layers)
    with torch.no_grad():
        return {name: fingerprint.embed(shadow(x)[1]) for name, x in site_images.items()}


@pytest.fixture(scope="session")
def answered(tmp_path_factory, disc_model, discs):
    """A folder of ten answers in five batches, made by a method that adapts. Not to be changed."""
    out = tmp_path_factory.mktemp("answered") / "out"
    predict(disc_model, discs / "west" / "images", out, method="tent", batch=2, options={"lr": 1e-2})
    return out


@pytest.fixture
def out(answered, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(answered, tmp_path / "out")


@pytest.fixture
def answer_again(disc_model, discs):
    """`answer_again(out)` gives the prediction of that folder once more."""

    def run(out, **more):
        images = discs / "west" / "images"
        return predict(disc_model, images, out, method="tent", batch=2, options={"lr": 1e-2}, **more)

    return run


@pytest.fixture
def images_of_discs(discs):
    return discs / "west" / "images"
