"""Inspection of a prior: measures distinguish a learned from a random universe; the command writes its files."""

import json
import re
from itertools import pairwise

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.data import Arrays
from ttdg.networks import level_channels
from ttdg.prior import MorphologyPrior, Nodes, PriorSpec, inspection, literal_prior_for, prior_for
from ttdg.report.figures import atlas

LABELS, PER_TISSUE = 3, 6


@pytest.fixture(scope="module")
def prior() -> MorphologyPrior:
    torch.manual_seed(0)
    return MorphologyPrior(PriorSpec(LABELS, (4,), ("e0",), 24, points=8, per_tissue=PER_TISSUE))


def planted(prior: MorphologyPrior, noise: float, images: int = 5) -> inspection.ImageNodes:
    """Images with the same universe points at the same positions; raw features are noise."""
    torch.manual_seed(1)
    points = (
        prior.universe_points().detach().unflatten(0, (prior.spec.tissues, -1))[:, :PER_TISSUE].flatten(0, 1)
    )
    features = points + noise * torch.randn(images, *points.shape)
    labels = torch.arange(1, prior.spec.tissues + 1).repeat_interleave(PER_TISSUE).expand(images, -1)
    coordinates = torch.rand(len(points), 2).expand(images, -1, -1)
    nodes = Nodes(torch.nn.functional.normalize(features, dim=2), labels, labels > 0, coordinates)
    sites = tuple("aabbb"[:images])
    pixels = torch.randint(256, (images, 3, 16, 16)).to(torch.uint8)
    return inspection.ImageNodes(sites, pixels, nodes, torch.randn(images, len(points), 8), coordinates)


def test_a_planted_universe_scores_perfectly_and_its_controls_do_not(prior):
    found = inspection.compare_universes(planted(prior, 0.05), prior)
    learned, random, raw = found["universe"], found["random universe"], found["raw features"]
    assert learned.purity == 1.0
    assert learned.pair_purity == 1.0
    assert learned.points_in_use == pytest.approx(prior.spec.tissues * PER_TISSUE)
    assert learned.within_sites == learned.across_sites == 0
    assert random.purity < 0.6
    assert learned.cycle_violations == random.cycle_violations == 0
    assert raw.purity is None
    assert raw.pair_purity < 0.6
    assert raw.cycle_violations > 0.5
    assert raw.across_sites > 0.5
    assert found["any two nodes"].pair_purity == pytest.approx((1 / 2) ** 2 + 2 * (1 / 4) ** 2)


def test_purity_decreases_with_noise_at_every_site(prior):
    clear, noisy = (inspection.purity_by_site(planted(prior, noise), prior) for noise in (0.01, 1.0))
    assert list(clear) == ["a", "b"]
    assert all(clear[site] == 1.0 > noisy[site] for site in clear)


def test_the_ring_belongs_to_the_background_and_padding_to_no_class(prior):
    assert inspection.class_of_tissue(prior, torch.arange(5)).tolist() == [0, 1, 2, 3, 1]


def test_each_point_is_used_at_most_once_per_image_and_padding_has_none(prior):
    inspected = planted(prior, 0.5)
    mask = inspected.nodes.mask.clone()
    mask[:, :3] = False
    nodes = Nodes(inspected.nodes.features, inspected.nodes.labels * mask, mask, inspected.nodes.coordinates)
    points = inspection.match_ignoring_labels(prior, nodes)
    assert (points[:, :3] == -1).all()
    assert all(len(set(row[3:].tolist())) == len(row) - 3 for row in points)


def test_common_points_are_those_used_in_many_images():
    points = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 4, 5], [0, 1, -1]])
    inside = torch.ones_like(points)
    assert atlas.common_points(points, inside, 6) == [0, 1]
    inside[:, 0] = 0
    assert atlas.common_points(points, inside, 6) == [1]
    assert atlas.common_points(torch.full((2, 2), -1), inside[:2, :2], 6) == []


def test_no_two_marked_points_have_the_same_colour_and_shape():
    marks = [atlas.point_mark(number) for number in range(atlas.MARKED)]
    assert len(set(marks)) == atlas.MARKED
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in pairwise(marks))


def test_the_picture_has_a_row_for_every_site(prior, tmp_path):
    inspected = planted(prior, 0.05)
    points = inspection.match_ignoring_labels(prior, inspected.nodes)
    one = atlas.draw_atlas(
        tmp_path / "a.png",
        inspected,
        points,
        inspection.class_of_tissue(prior, inspected.nodes.labels) - 1,
        32,
    )
    height, width = Image.open(one).size[::-1]
    assert height > 100
    assert width > height


@torch.no_grad()
def test_nodes_have_the_true_labels(disc_model):
    masks = torch.zeros(3, 32, 32, dtype=torch.uint8)
    masks[:2, 8:20, 8:20] = 1
    images = torch.randint(256, (3, 3, 32, 32)).to(torch.uint8)
    prior = prior_for(level_channels(disc_model.network), 2, points=8, per_tissue=6)
    inspected = inspection.collect_nodes(
        disc_model.network, prior, {"s": Arrays(images, masks, tuple("abc"))}, "minmax"
    )
    assert inspected.sites == ("s",) * 3
    assert (inspected.nodes.labels == 2).any(1).tolist() == [True, True, False]
    assert torch.allclose(inspected.raw.norm(dim=2)[inspected.nodes.mask], torch.ones(()), atol=1e-4)
    assert (inspected.relative[inspected.nodes.labels == 2].abs() <= 0.5).all()


def test_the_command_prints_a_table_and_writes_picture_and_json(disc_model, discs, tmp_path):
    prior = prior_for(level_channels(disc_model.network), 2, points=8, per_tissue=6)
    save(tmp_path / "m", disc_model.network, disc_model.card, {"prior": prior.to_part()})
    arguments = [
        "prior",
        "inspect",
        tmp_path / "m",
        discs,
        "--images",
        2,
        "-o",
        tmp_path / "out",
        "--workers",
        1,
    ]
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160", "TERM": "dumb"})
    assert result.exit_code == 0, result.exception
    assert "random universe" in result.output
    assert "west (not a source)" in result.output
    found = json.loads((tmp_path / "out" / "prior.json").read_text())
    assert set(found["findings"]) == {"universe", "random universe", "raw features", "any two nodes"}
    assert found["images"] == 6
    assert (tmp_path / "out" / "prior.png").stat().st_size > 1000


def test_the_universe_of_algorithm_1_is_measured_against_the_best_one(disc_model, discs, tmp_path):
    prior = literal_prior_for(level_channels(disc_model.network), 2, node_dim=16, points=8, per_tissue=6)
    save(tmp_path / "m", disc_model.network, disc_model.card, {"prior": prior.to_part()})
    arguments = ["prior", "inspect", str(tmp_path / "m"), str(discs), "--images", "2", "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    start, trained, best = map(
        float, re.findall(r"([\d.e+-]+) (?:at the start|trained|at best)", result.output)
    )
    assert start == pytest.approx(trained, rel=0.2)  # it is not trained
    assert best < trained
    assert "largest column sum" in result.output


def test_for_a_model_without_a_prior_the_message_names_the_command(disc_model, discs, tmp_path):
    save(tmp_path / "m", disc_model.network, disc_model.card)
    result = CliRunner().invoke(app, ["prior", "inspect", str(tmp_path / "m"), str(discs)])
    assert "ttdg fit-prior" in str(result.exception)
