"""What `ttdg.fit` cannot use is refused in a sentence, before anything is fitted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import ttdg
from ttdg.data import Arrays, Benchmark, Exact, Sources
from ttdg.errors import UserError
from ttdg.foreign import fit_parts, fit_to_sources

NAMES = ("background", "rim", "core")


@pytest.fixture(autouse=True)
def no_fit(monkeypatch):
    """A fit that begins is an error of its own kind."""

    def begun(*arguments, **named):
        raise AssertionError("the fit began")

    monkeypatch.setattr(fit_parts, "fit_prior", begun)


@pytest.fixture
def sources(labelled):
    """One source site of the three labels, and its benchmark."""
    images, masks = labelled
    site = Arrays((255 * images).to(torch.uint8), masks.to(torch.uint8), tuple("abcdefghij"))
    regions = {name: (k,) for k, name in enumerate(NAMES) if k}
    benchmark = Benchmark("rings", NAMES, Exact({k: k for k in range(3)}), regions, "minmax", 32)
    return Sources({"site": site}, {"site": site}, {}), benchmark


@pytest.mark.parametrize(
    ("change", "label"), [(lambda m: 0 * m, 1), (lambda m: m > 0, 2), (lambda m: 2 * (m > 1), 1)]
)
def test_label_maps_in_which_a_label_never_occurs_are_refused(change, label, small, labelled):
    images, masks = labelled
    with pytest.raises(UserError, match=rf"no mask holds label {label}, .*give images that show every label"):
        ttdg.fit(small(), images, change(masks), activation="softmax")


def test_label_maps_without_background_are_fitted(small, labelled):
    images, masks = labelled
    with pytest.raises(AssertionError, match="the fit began"):
        ttdg.fit(small(), images, masks.clamp(min=1), activation="softmax")


def test_label_maps_are_refused_for_several_independent_channels(small, labelled):
    images, masks = labelled
    with pytest.raises(UserError, match=r"2 independent output channels, .*0 and 1 for each of them"):
        ttdg.fit(small(outputs=2), images, masks, activation="sigmoid")


def test_label_maps_of_one_channel_are_fitted_if_they_hold_the_structure(small, labelled):
    images, masks = labelled
    with pytest.raises(AssertionError, match="the fit began"):
        ttdg.fit(small(outputs=1), images, masks > 0)
    with pytest.raises(UserError, match="no mask holds label 1"):
        ttdg.fit(small(outputs=1), images, 0 * masks)


def test_source_sites_in_which_a_label_never_occurs_are_refused_by_its_name(small, sources):
    given, benchmark = sources
    site = given.train["site"]
    without = replace(site, masks=site.masks.clamp(max=1))
    with pytest.raises(UserError, match="no mask of the source sites holds label 'core'"):
        fit_to_sources(
            small(), Sources({"site": without}, {"site": without}, {}), benchmark, activation="softmax"
        )
    with pytest.raises(AssertionError, match="the fit began"):
        fit_to_sources(
            small(), Sources({"site": without}, given.held_out, {}), benchmark, activation="softmax"
        )


class Probable(nn.Module):
    """Probabilities without a module that says so."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def forward(self, logits):
        return (
            logits.softmax(1) if self.activation == "softmax" else (50 * (logits - logits.mean())).sigmoid()
        )


@pytest.mark.parametrize(
    ("activation", "last", "message"),
    [
        ("softmax", nn.Softmax(1), "ends with Softmax, .* the values before Softmax"),
        ("sigmoid", nn.Sigmoid(), "ends with Sigmoid, .* the values before Sigmoid"),
        ("sigmoid", nn.Softmax(1), "ends with Softmax, .* the values before Softmax"),
        ("softmax", Probable("softmax"), r"sum to 1 over the channels\), .*the values before the softmax"),
        ("sigmoid", Probable("sigmoid"), r"look like probabilities .*the values before the sigmoid"),
    ],
)
def test_a_network_that_returns_probabilities_is_refused(activation, last, message, small, labelled):
    images, masks = labelled
    if activation == "sigmoid":
        masks = torch.stack([masks > 0, masks > 1, masks > 1], 1)
    with pytest.raises(UserError, match=message):
        ttdg.fit(small(last=last), images, masks, activation=activation)


@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.ReLU(), nn.Softplus()])
def test_logits_that_are_no_probabilities_are_fitted(last, small, labelled):
    with pytest.raises(AssertionError, match="the fit began"):
        ttdg.fit(small(last=last), *labelled, activation="softmax")


def test_a_misspelt_keyword_is_refused_with_the_closest_one(small, labelled, sources):
    with pytest.raises(UserError, match=r"no argument 'hosptals'; did you mean 'hospitals'\?"):
        ttdg.fit(small(), *labelled, activation="softmax", hosptals=1)
    with pytest.raises(UserError, match=r"no argument 'activaton'; did you mean 'activation'\?"):
        ttdg.fit(small(), *labelled, activaton="softmax")
    with pytest.raises(UserError, match=r"no argument 'keep'"):
        ttdg.fit(small(), *labelled, activation="softmax", keep=lambda name, make: make())
    with pytest.raises(
        UserError, match=r"fit_to_sources has no argument 'chanels'; did you mean 'channels'\?"
    ):
        fit_to_sources(small(), *sources, activation="softmax", chanels=1)


def test_images_that_the_network_cannot_take_are_refused_with_its_reason(small, labelled, sources):
    images, masks = labelled
    with pytest.raises(
        UserError, match=r"fails on images of shape \(3, 32, 32\) \(.*to have 1 channels.*\); give"
    ):
        ttdg.fit(small(channels=1), images, masks, activation="softmax")
    with pytest.raises(
        UserError, match=r"images of shape \(3, 2, 2\) \(.*\); give images of the channels, and"
    ):
        ttdg.fit(small(), images[..., :2, :2], masks[..., :2, :2], activation="softmax")
    with pytest.raises(
        UserError, match=r"to have 1 channels.*; try --channels 1 .*or a benchmark with images of"
    ):
        fit_to_sources(small(channels=1), *sources, activation="softmax")
    with pytest.raises(UserError, match=r"to have 3 channels.*; try --channels 3"):
        fit_to_sources(small(), *sources, channels=1, activation="softmax")


def test_a_network_without_finite_answers_or_without_weights_is_refused(small, labelled):
    class Broken(nn.Module):
        def forward(self, logits):
            return logits / 0

    with pytest.raises(UserError, match="values that are not finite"):
        ttdg.fit(small(last=Broken()), *labelled, activation="softmax")
    with pytest.raises(UserError, match="no parameters"):
        ttdg.fit(nn.Identity(), *labelled, activation="softmax")


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.tolist])
def test_arrays_and_lists_are_refused_in_a_sentence(convert, small, labelled, unchecked):
    images, masks = labelled
    adapter = ttdg.adapt(small(), "self-training", activation="softmax", draw=2)
    with pytest.raises(UserError, match=r"torch\.stack\(images\) makes one"):
        adapter(list(images))
    with pytest.raises(UserError, match="give torch tensors as masks"):
        ttdg.fit(small(), images, convert(masks), activation="softmax")
    for use in (
        lambda given: ttdg.fit(small(), given, masks, activation="softmax"),
        adapter,
        adapter.predict_frozen,
        lambda given: ttdg.predict_site(adapter, given),
        lambda given: ttdg.export(small(), "network.pt2", given, format="torch"),
        lambda given: adapter.learn([given]),
    ):
        with pytest.raises(
            UserError, match=r"give torch tensors as images, not a value of type (ndarray|list)"
        ):
            use(convert(images))
    assert isinstance(torch.Tensor.numpy(images), np.ndarray)
