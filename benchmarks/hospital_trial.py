"""What trials at simulated hospitals share: their command line, the model with its judge, and the hospitals."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ttdg.adaptation import seed_all
from ttdg.adaptation.universe.fit import simulated_hospitals
from ttdg.checkpoints import Model, load, load_parts
from ttdg.data import find_sites, load_sources, normalise

SEED = 1  # of the hospitals; judges are fitted with 0


def trial_parser(description: str, hospitals: int) -> argparse.ArgumentParser:
    """A command line with the model, its sites, its judge and the number of hospitals."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--judge", type=Path, help="folder with the part, such as one of RUN/parts")
    parser.add_argument("--hospitals", type=int, default=hospitals)
    return parser


def load_model(arguments: argparse.Namespace) -> Model:
    """The model with its judge."""
    torch.set_num_threads(1)
    model = load(arguments.model)
    if arguments.judge:
        parts = load_parts(arguments.judge, model.card.sha256)
        model = replace(model, parts={**model.parts, **parts})
    return model


def hospitals(model: Model, arguments: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images and labels of each hospital, made of held-out source images; all seeds are set for each."""
    benchmark = model.card.benchmark
    held_out = load_sources(find_sites(arguments.data, list(model.card.sources)), benchmark).held_out
    for images, labels in simulated_hospitals(held_out, arguments.hospitals, SEED, torch.device("cpu")):
        seed_all(0)
        yield normalise(images, benchmark.normalisation), labels
