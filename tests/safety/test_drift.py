import json
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn
from typer.testing import CliRunner

import ttdg
from ttdg.cli import app
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.safety import (
    CLASSES,
    NO_FINGERPRINT,
    Fingerprint,
    SourceShadow,
    drift,
    fit_fingerprint,
    measure_drift,
)
from ttdg.safety.descriptions import describe_shapes, described_layers
from ttdg.safety.drift import home_limit, two_sample_test
from ttdg.safety.fingerprint import WIDTH, make_group
from ttdg.types import Part


def test_a_source_hospital_is_like_home_and_the_unseen_one_is_not(fingerprint, embedded):
    home, away = (measure_drift(fingerprint, [embedded[name]]) for name in ("north", "summit"))
    assert home.verdict == "like home"
    assert home.nearest == "north"
    assert CLASSES.index(away.verdict) >= 1
    assert away.p_value < 0.05 < home.p_value
    assert min(away.by_group.values()) > max(home.by_group.values())


def test_a_site_that_the_two_sample_test_tells_from_home_is_shifted_however_near_it_is(
    fingerprint, embedded, monkeypatch
):
    monkeypatch.setattr(drift, "two_sample_test", lambda *_: 0.002)
    assert measure_drift(fingerprint, [embedded["north"]]).verdict == "shifted"
    monkeypatch.setattr(drift, "two_sample_test", lambda *_: 0.5)
    assert measure_drift(fingerprint, [embedded["north"]]).verdict == "like home"


def test_a_page_of_stripes_is_not_this_kind_of_image(demo, fingerprint):
    stripes = (torch.arange(128) // 5 % 2).float()[None, None, :, None].expand(8, 3, -1, 128)
    shadow = SourceShadow(demo.network, fingerprint.layers)
    found = measure_drift(fingerprint, [fingerprint.embed(shadow(stripes)[1])])
    assert found.verdict == "not this kind of image"
    assert found.foreign_images == 8
    assert "8 of these images are of another kind" in found.sentence()


def test_the_distance_does_not_depend_on_how_images_are_divided_into_batches(fingerprint, embedded):
    whole = measure_drift(fingerprint, [embedded["summit"]])
    assert measure_drift(fingerprint, embedded["summit"].split(3)) == whole


def test_no_images_have_no_drift(fingerprint):
    assert measure_drift(fingerprint, []) is None


def test_fewer_images_have_a_wider_limit(fingerprint):
    limits = [home_limit(fingerprint, n, Generator().manual_seed(0)) for n in (4, 16, 32)]
    assert limits[0] > limits[1] > limits[2]


def test_the_two_sample_test_rejects_one_sample_in_twenty_of_equal_samples():
    generator = Generator().manual_seed(0)
    p = [
        two_sample_test(*torch.randn(2, 12, 2, 3, generator=generator), generator, draws=99)
        for _ in range(200)
    ]
    assert 0.01 <= sum(value <= 0.05 for value in p) / len(p) <= 0.11


def test_the_two_sample_test_finds_a_shifted_sample():
    generator = Generator().manual_seed(0)
    a, b = torch.randn(2, 20, 2, 3, generator=generator)
    assert two_sample_test(a, b + 1, generator) < 0.01


def test_reduction_keeps_the_expected_squared_distance():
    generator = Generator().manual_seed(0)
    x = torch.randn(400, 500, generator=generator)
    group = make_group(x, torch.zeros(400).long(), generator)
    assert group.embed(x).shape == (400, WIDTH)
    assert group.embed(x).square().sum(1).mean().item() == pytest.approx(1, rel=0.1)


def test_a_fingerprint_is_the_same_after_it_was_saved(fingerprint, embedded):
    again = Fingerprint.from_part(fingerprint.to_part())
    assert measure_drift(again, [embedded["summit"]]) == measure_drift(fingerprint, [embedded["summit"]])


def test_the_shadow_changes_neither_the_network_nor_its_own_answers(demo, site_images):
    before = {name: value.clone() for name, value in demo.network.state_dict().items()}
    shadow, images = SourceShadow(demo.network), site_images["summit"][:2]
    with torch.no_grad():
        expected = demo.network(images)
    assert all(torch.equal(shadow(images)[0], expected) for _ in range(2))
    assert all(torch.equal(value, before[name]) for name, value in demo.network.state_dict().items())


def test_a_network_without_normalisation_is_described_by_its_convolutions():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert described_layers(network) == ["0", "2"]
    description = SourceShadow(network)(torch.rand(2, 3, 8, 8))[1]
    assert description["2"].shape == (2, 8)  # mean and spread of four channels


def test_an_empty_prediction_has_a_finite_description():
    logits = torch.zeros(2, 3, 8, 8)
    logits[:, 0] = 1e4
    assert describe_shapes(logits).isfinite().all()


def test_a_fit_on_tiny_sites_gives_a_usable_fingerprint():
    generator = Generator().manual_seed(0)
    images = (torch.rand(6, 3, 32, 32, generator=generator) * 255).to(torch.uint8)
    site = Arrays(images, None, tuple("abcdef"))
    benchmark = Benchmark("noise", ("background", "disc"), Exact({0: 0, 1: 1}), {"disc": (1,)}, "minmax", 32)
    done = []
    part = fit_fingerprint(
        nn.Conv2d(3, 2, 3, padding=1), {"a": site}, {}, benchmark, hospitals=4, progress=done.append
    )
    assert done == [1, 2, 3, 4, 5, 6]
    assert 0 < part.settings["far"] <= part.settings["foreign"] * 1.2


def test_the_manifest_and_the_command_state_the_verdict(demo, hospitals, tmp_path):
    images = hospitals / "summit" / "images"
    result = predict(demo, images, tmp_path / "out", method="source", overlays=False)
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())["drift"]
    printed = CliRunner().invoke(app, ["drift", "-m", "demo", "-i", str(images), "--json", "--device", "cpu"])
    assert json.loads(printed.output) == written == result.drift.to_dict()
    assert written["verdict"] in ("shifted", "far")


def test_a_model_without_a_fingerprint_says_so(disc_model, images_of_discs, tmp_path):
    assert predict(disc_model, images_of_discs, tmp_path / "out", overlays=False).drift is None
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert written["drift"]["verdict"] == NO_FINGERPRINT


@pytest.mark.parametrize(
    "odd",
    [
        {"far": "x"},
        {"foreign": None},
        {"sites": 3},
        {"groups": []},
        {"groups": [1]},
        {"layers": None},
        {"sites": ["a"] * 9},
    ],
)
def test_a_fingerprint_with_odd_settings_is_refused_in_a_sentence(odd):
    part = ttdg.load("demo").parts["fingerprint"]
    with pytest.raises(UserError, match="fit the part 'fingerprint' again"):
        Fingerprint.from_part(Part(part.tensors, {**part.settings, **odd}))


def test_a_grey_image_is_foreign_to_sources_in_colour_and_a_colour_image_to_grey_ones(
    demo, fingerprint, site_images
):
    shadow, colour = SourceShadow(demo.network, fingerprint.layers), site_images["summit"]
    grey = colour.mean(1, keepdim=True).expand_as(colour)

    def found(kind, images):
        return kind.is_foreign(shadow(images)[1]).tolist()

    assert found(fingerprint, colour) == [False] * len(colour)
    assert found(fingerprint, grey) == [True] * len(grey)
    of_grey = fit_fingerprint_of(demo, shadow, grey)
    assert found(of_grey, grey) == [False] * len(grey)
    assert found(of_grey, colour) == [True] * len(colour)


def fit_fingerprint_of(demo, shadow, images):
    """A fingerprint of one site, without limits of the distance."""
    described = shadow(images)[1]
    site = torch.zeros(len(images), dtype=torch.long)
    groups = {name: make_group(x, site, Generator().manual_seed(0)) for name, x in described.items()}
    embedded = torch.stack([group.embed(described[name]) for name, group in groups.items()], 1)
    return Fingerprint(
        groups, shadow.layers, ["only"], embedded.mean(0, keepdim=True), embedded, site, torch.ones(len(groups)), 1.0,
        1.0, float("inf"),
    )  # fmt: skip


def test_a_fingerprint_of_another_network_is_refused_in_a_sentence(demo, fingerprint):
    images = torch.rand(1, 3, 32, 32)
    described = SourceShadow(demo.network, fingerprint.layers)(images)[1]
    renamed = {f"x{number}": group for number, group in enumerate(fingerprint.groups.values())}
    first = next(iter(fingerprint.layers))
    for groups, description in (
        (renamed, described),
        (fingerprint.groups, {**described, first: described[first][:, 1:]}),
    ):
        with pytest.raises(UserError, match="fit the part 'fingerprint' again"):
            replace(fingerprint, groups=groups).embed(description)
    with pytest.raises(UserError, match="'nan', which this network does not have"):
        SourceShadow(demo.network, ["nan"])
