"""Whether a network may be averaged over several sizes is measured on held-out source images."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ttdg.adaptation.size_tolerance import IMAGES, size_gain, tolerates_sizes
from ttdg.adaptation.views import VIEW_SETS
from ttdg.cli.models.fit import ONE_SIZE, summary_of
from ttdg.data import Arrays, Benchmark, Exact

SIDE = 32
BENCHMARK = Benchmark(
    "squares", ("background", "square"), Exact({0: 0, 1: 1}), {"square": (1,)}, "minmax", SIDE
)


def a_site(count: int) -> Arrays:
    masks = torch.zeros(count, SIDE, SIDE, dtype=torch.uint8)
    masks[:, 8:24, 8:24] = 1
    return Arrays(255 * masks[:, None].repeat(1, 3, 1, 1), masks, tuple(map(str, range(count))))


class Bright(nn.Module):
    """Calls bright pixels the square; at other sizes than that of the images it answers as `elsewhere` says."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__()
        self.elsewhere, self.weight = elsewhere, nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        right = 20 * self.weight * (images[:, :1] - 0.5)
        if images.shape[-1] != SIDE and self.elsewhere != "right":
            if self.elsewhere == "refuses":
                raise RuntimeError("this network takes images of 32 pixels")
            right = -right if self.elsewhere == "inverts" else torch.full_like(right, -20.0)
        return torch.cat([torch.zeros_like(right), right], 1)


def test_a_network_that_is_right_at_every_size_loses_nothing():
    gain = size_gain(Bright("right"), {"a": a_site(3)}, BENCHMARK)
    assert gain == pytest.approx(0, abs=1.0)
    assert tolerates_sizes(gain)


@pytest.mark.parametrize("elsewhere", ["inverts", "sees nothing"])
def test_a_network_that_fails_at_other_sizes_loses_all_by_them(elsewhere):
    """Two of three sizes outvote the right one: nothing or the inverse is left, and Dice falls from 1 to 0."""
    gain = size_gain(Bright(elsewhere), {"a": a_site(3)}, BENCHMARK)
    assert gain == pytest.approx(-100, abs=1.0)
    assert not tolerates_sizes(gain)


def test_a_network_that_takes_one_size_only_is_not_shown_others():
    assert size_gain(Bright("refuses"), {"a": a_site(2)}, BENCHMARK) == -math.inf
    assert not tolerates_sizes(-math.inf)


def test_sites_count_alike_and_empty_ones_not_at_all():
    network = Bright("sees nothing")
    alone = size_gain(network, {"a": a_site(3)}, BENCHMARK)
    assert size_gain(network, {"a": a_site(9), "none": a_site(0)}, BENCHMARK) == pytest.approx(alone)


def test_the_cost_is_bounded_and_the_network_stays_as_it_is(monkeypatch):
    network = Bright("right").train()
    calls = []
    monkeypatch.setattr(Bright, "forward", lambda self, x: calls.append(len(x)) or x[:, :2])
    size_gain(network, {"a": a_site(IMAGES + 50)}, BENCHMARK)
    assert sum(calls) == IMAGES * len(VIEW_SETS["scales"])
    assert network.training


@pytest.fixture
def fitted_with(ready):
    """The source model with a judge whose fit found this of sizes; None for a judge of an earlier version."""
    source = ready("universe")

    def make(sizes):
        judge = source.parts["judge"]
        learning = {name: value for name, value in judge.settings["learning"].items() if name != "sizes"}
        learning |= {} if sizes is None else {"sizes": sizes}
        part = replace(judge, settings={**judge.settings, "learning": learning})
        return replace(source, parts={**source.parts, "judge": part})

    return make


@pytest.mark.parametrize(("sizes", "views"), [(True, "scales"), (False, "flips"), (None, "scales")])
def test_universe_answers_at_one_size_where_the_fit_found_a_loss(fitted_with, sizes, views):
    assert fitted_with(sizes).adapt("universe").answer_views == VIEW_SETS[views]
    assert fitted_with(sizes).adapt("universe", scales=False).answer_views == VIEW_SETS["flips"]


def test_the_fit_says_so_where_sizes_lose(fitted_with):
    found = {sizes: summary_of(fitted_with(sizes).parts["judge"], 4) for sizes in (True, False, None)}
    assert found[False].endswith(ONE_SIZE)
    assert found[True] == found[None] == found[False].removesuffix("\n" + ONE_SIZE)


def test_of_a_classifier_the_fit_says_nothing_about_structures(fitted_with):
    said = summary_of(fitted_with(False).parts["judge"], 4, "classification")
    assert "universe" not in said
    assert "structures" not in said
