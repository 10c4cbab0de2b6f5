"""The parts that can be fitted to a trained network, by name."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ttdg.data import Arrays, Benchmark
from ttdg.errors import UserError, suggestion
from ttdg.networks import EncoderNetwork
from ttdg.training.parts.deynet import fit_deynet
from ttdg.training.parts.fitting import STEPS, PartFit, Report
from ttdg.training.parts.itta import fit_itta
from ttdg.training.parts.nc_ttt import fit_nc_ttt
from ttdg.training.parts.tasd_r import fit_tasd_r
from ttdg.types import Part

EXTRAS: dict[str, Callable[[PartFit], Part]] = {
    "deynet": fit_deynet,
    "nc-ttt": fit_nc_ttt,
    "tasd-r": fit_tasd_r,
    "itta": fit_itta,
}


def fit_part(
    name: str,
    network: EncoderNetwork,
    sources: Mapping[str, Arrays],
    benchmark: Benchmark,
    device: torch.device,
    *,
    seed: int = 0,
    steps: int = STEPS,
    progress: Report = lambda done: None,
) -> Part:
    """Fit the part `name` of `EXTRAS` to a network, on source images only; the network does not change."""
    if name not in EXTRAS:
        raise UserError(f"no part {name!r} is fitted to a trained network{suggestion(name, EXTRAS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the part's initial weights
        frozen: Any = copy.deepcopy(network).to(device).eval().requires_grad_(False)
        part = EXTRAS[name](PartFit(frozen, sources, benchmark, device, seed, steps, progress))
    return replace(part, fitted={"steps": steps, "seed": seed})
