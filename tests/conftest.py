"""Shared fixtures: a benchmark of bright discs on noise, small enough to train on in a second, and tiny runs of it."""

import os

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from ttdg.bench.config import parse_config
from ttdg.bench.folder import RunFolder
from ttdg.bench.plan import plan_jobs
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import RunPlan, write_run
from ttdg.bench.worker import run_job
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import find_sites, load_benchmark, summarise_data
from ttdg.networks import NetworkSpec, Segmenter

torch.set_num_threads(1)
THOROUGH = os.environ.get("TTDG_TESTS") == "thorough"
settings.register_profile("no deadline", deadline=None)  # no test is timed
settings.load_profile("no deadline")
settings.register_profile("costly", max_examples=25 if THOROUGH else 5)  # seconds for an example

YAML = """\
name: discs
labels: [background, disc]
mask: {threshold: 127, above: disc, below: background}
regions: {disc: [disc]}
normalisation: minmax
size: 32
"""


def draw_disc(seed: int, height: int, width: int, tint: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    cy, cx = rng.uniform(0.35, 0.65, 2) * (height, width)
    inside = (y - cy) ** 2 + (x - cx) ** 2 < (rng.uniform(0.2, 0.3) * min(height, width)) ** 2
    image = rng.normal(60 * tint, 15, (height, width, 3)) + inside[..., None] * (120, 90, 40)
    return image.clip(0, 255).astype(np.uint8), (inside * 255).astype(np.uint8)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def thorough():
    """True in `make test-thorough`: statistical tests take all their seeds."""
    return THOROUGH


@pytest.fixture(scope="session")
def discs(tmp_path_factory):
    """A benchmark folder with three sites of ten images."""
    root = tmp_path_factory.mktemp("discs")
    (root / "benchmark.yaml").write_text(YAML)
    for number, site in enumerate(("east", "south", "west")):
        for part in ("images", "masks"):
            (root / site / part).mkdir(parents=True)
        for case in range(10):
            image, mask = draw_disc(100 * number + case, 40, 48, 0.5 + number)
            Image.fromarray(image).save(root / site / "images" / f"{case:02}.png")
            Image.fromarray(mask).save(root / site / "masks" / f"{case:02}.png")
    return root


@pytest.fixture(scope="session")
def disc_model(discs):
    """An untrained network with its card: enough for everything but good scores."""
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).eval()
    return Model(
        network, ModelCard(network.spec, load_benchmark(None, discs), {"east": {"cases": 10}}, sha256="0")
    )


# A benchmark run small enough for a second: discs, a light network, one step of training.

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
EXPERIMENT = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "norm"]}


@pytest.fixture(scope="session")
def world(discs):
    return summarise_data(load_benchmark(None, discs), find_sites(discs))


@pytest.fixture
def planned(world):
    """`planned(**fields)` is the run of a config with one small experiment unless others are given."""

    def make(*experiments, **fields):
        wanted = {"name": "t", "recipe": RECIPE, "experiments": list(experiments) or [EXPERIMENT], **fields}
        config = parse_config(wanted, "t.yaml")
        jobs = plan_jobs(config, world)
        return RunPlan(
            config.name, config.baseline, config.harm, config.model_dump(), jobs.jobs, jobs.entries
        )

    return make


@pytest.fixture
def place(tmp_path, discs):
    return RunFolder(tmp_path / "run", discs, tmp_path / "run" / "models")


@pytest.fixture
def started(planned, place):
    """A run with its `run.json`, ready for `run_jobs`."""

    def make(*experiments, **fields):
        run = planned(*experiments, **fields)
        write_run(place.run, run)
        return run

    return make


class Inline:
    """An executor in this very process, for tests: a job runs when its end is waited for."""

    def __init__(self, place, slots=1):
        self.place, self.slots, self.queue, self.order = place, slots, [], []

    def submit(self, key, spec):
        self.queue.append((key, spec))

    def wait(self, seconds):
        key, spec = self.queue.pop(0)
        self.order.append(key)
        return [run_job(key, spec, self.place)]

    def close(self):
        self.queue.clear()


@pytest.fixture(scope="session")
def here():
    """The class, for tests that need more than one."""
    return Inline


@pytest.fixture
def inline(place):
    return Inline(place)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, discs, world):
    """A run of two methods and two seeds at every site, done: (folder, run). Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = EXPERIMENT | {"instances": True, "surfaces": True}
    fields = {"name": "t", "recipe": RECIPE, "seeds": [0, 1], "experiments": [experiment]}
    config = parse_config(fields, "t.yaml")
    jobs = plan_jobs(config, world)
    run = RunPlan(config.name, config.baseline, config.harm, config.model_dump(), jobs.jobs, jobs.entries,
              str(discs), str(folder / "models"))  # fmt: skip
    write_run(folder, run)
    place = RunFolder(folder, discs, folder / "models")
    ended = run_jobs(dict(run.jobs), place, lambda: Inline(place))
    assert not ended.failed, ended.failed
    return folder, run


PHOTOGRAPH, CAPTURE, MR = (
    "1.2.840.10008.5.1.4.1.1.77.1.5.1", "1.2.840.10008.5.1.4.1.1.7", "1.2.840.10008.5.1.4.1.1.4",
)  # fmt: skip


@pytest.fixture(scope="session")
def write_dicom():
    """`write_dicom(path, pixels, kind, **tags)` writes an image file; `compress` names a transfer syntax."""
    from pydicom import uid
    from pydicom.dataset import FileDataset, FileMetaDataset

    def write(path, pixels, kind=CAPTURE, *, compress=None, colour=False, name="", **tags):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = kind, uid.generate_uid()
        meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
        data = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
        data.SOPClassUID, data.SOPInstanceUID = kind, meta.MediaStorageSOPInstanceUID
        data.StudyInstanceUID, data.SeriesInstanceUID = "1.2.3.4", tags.pop("series", uid.generate_uid())
        for tag in (
            "PatientName",
            "PatientID",
            "StudyDate",
            "AccessionNumber",
            "ReferringPhysicianName",
            "StudyID",
        ):
            setattr(data, tag, "20200102" if tag == "StudyDate" else name)
        for tag in ("PatientBirthDate", "PatientSex", "StudyTime"):
            setattr(data, tag, "")
        data.Modality, data.SamplesPerPixel = tags.pop("modality", "OP"), 3 if colour else 1
        data.PhotometricInterpretation = tags.pop("photometric", "RGB" if colour else "MONOCHROME2")
        if colour:
            data.PlanarConfiguration = 0
        frames = pixels if pixels.ndim == (4 if colour else 3) else pixels[None]
        data.Rows, data.Columns = frames.shape[1:3]
        if len(frames) > 1:
            data.NumberOfFrames = len(frames)
        data.BitsAllocated = 8 * pixels.itemsize
        data.BitsStored = tags.pop("bits", data.BitsAllocated)
        data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(pixels.dtype.kind == "i")
        for tag, value in tags.items():
            setattr(data, tag, value)
        data.PixelData = pixels.tobytes()
        if compress is not None:
            data.compress(compress, generate_instance_uid=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        data.save_as(path)
        return data

    return write
