"""The matching view against the functions that draw the figures of the report."""

import numpy as np
import pytest
import torch

from ttdg.checkpoints import load
from ttdg.data import to_batch
from ttdg.data.synthetic.write import write_benchmark
from ttdg.data.unlabelled import InputFile
from ttdg.errors import UserError
from ttdg.page.matching import carried_labels, match_images, read_images
from ttdg.prior import prior_from_part
from ttdg.report.figures.explanations import matched_pairs


@pytest.fixture(scope="module")
def demo():
    return load("demo", "cpu")


@pytest.fixture(scope="module")
def arrays(demo, tmp_path_factory):
    data = write_benchmark(tmp_path_factory.mktemp("data"), "fundus", 3, seed=7)
    paths = sorted((data / "summit" / "images").iterdir())
    return read_images(demo, [InputFile(path.name, path) for path in paths], 10**6)


@pytest.fixture(scope="module")
def found(demo, arrays):
    return match_images(demo, arrays)


def test_two_images_are_matched_as_in_the_figure_of_the_report(demo, arrays, found):
    images = to_batch(arrays, demo.card.benchmark.normalisation, torch.device("cpu")).images[:2]
    expected = matched_pairs(demo.network, prior_from_part(demo.parts["prior"]), images)
    first, second = (found["images"][i]["nodes"] for i in (0, 1))
    pairs = {
        (first[n]["y"], first[n]["x"], second[k]["y"], second[k]["x"])
        for n, k in enumerate(found["ways"]["prior"]["matches"][0][1])
        if k >= 0
    }
    theirs = np.concatenate([expected.first, expected.second], 1).round(4).tolist()
    assert len(theirs) > 10
    assert {tuple(round(float(v), 4) for v in row) for row in theirs} == pairs


def test_through_the_universe_no_cycle_is_broken_and_by_features_some_are(found):
    assert found["ways"]["prior"]["broken_cycles"] == 0
    assert found["ways"]["features"]["broken_cycles"] > 0


def test_nodes_that_share_a_point_are_partners_in_both_directions(found):
    matches = found["ways"]["prior"]["matches"]
    for n, node in enumerate(found["images"][0]["nodes"]):
        k = matches[0][2][n]
        if node and k >= 0:
            assert found["images"][2]["nodes"][k]["point"] == node["point"]
            assert matches[2][0][k] == n


@pytest.mark.slow
def test_half_of_the_images_are_sure_and_carry_labels_to_all(demo, arrays):
    carried = carried_labels(demo, arrays)
    assert carried.keys() == {"prior", "features"}
    for images in carried.values():
        assert len(images) == 3
        assert 0 < sum(image["sure"] for image in images) < 3
        assert all(set(image["contours"]) == set(demo.card.benchmark.regions) for image in images)
    contours = [[image["contours"] for image in images] for images in carried.values()]
    assert contours[0] != contours[1]


def test_a_model_without_a_prior_says_what_is_missing(disc_model, arrays):
    with pytest.raises(UserError, match="prior"):
        match_images(disc_model, arrays)
    assert carried_labels(disc_model, arrays) == {}


def test_the_page_asks_for_a_site_first(browser):
    assert "Learn a site first" in browser.get("/matching").text


def test_the_page_says_that_a_model_has_no_prior_and_refuses_unknown_images(browser, site):
    assert "no prior" in browser.get(f"/matching?site={site}").text
    keys = browser.keys(site)[-2:]
    assert browser.get(f"/matching/{site}/data", params={"image": keys}).status_code == 400
    assert browser.get(f"/matching/{site}/data", params={"image": ["x", "y"]}).status_code == 400
