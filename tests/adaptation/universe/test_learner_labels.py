"""The labels from which the learner of method "universe" learns."""

import pytest
import torch

from ttdg.adaptation.site_learning.soft_labels import sharpen
from ttdg.adaptation.universe import kept_readings


def test_the_students_first_labels_are_the_judges(source, away, quick):
    adapter = source.adapt("universe", carried=0.0, weigh="uniform", first=0.5, **quick)
    images = away(0, 3)
    adapter._remember(images)
    rows = torch.tensor([2, 0])
    p = source.adapt("judge")(images).softmax(1)[rows]
    expected = sharpen(p, 2.0, "softmax", keep_areas=True)
    for step in range(4):
        adapter.steps_taken[0] = step
        labels, share, image_weights = adapter._guide(rows)
        if step < 2:  # half of the folder steps
            assert torch.allclose(labels, expected, atol=0.02)
            assert torch.equal(share, torch.ones(2, 1, 1, 1))
        else:
            assert torch.equal(share, torch.zeros(2, 1, 1, 1))
        assert torch.equal(image_weights, torch.ones(2, 1, 32, 32))


def test_carried_labels_have_the_largest_share_in_the_least_sure_image(source, away, quick, judged):
    adapter = source.adapt("universe", carried=0.6, first=0.25, **quick)
    adapter._remember(away(0, 3))
    for column in ("expected", "value"):
        adapter.memory.columns[column][:3] = torch.tensor([0.9, 0.1, 0.5])
    adapter.memory.columns["judged"][:3] = torch.tensor([255, 0]).view(2, 1, 1)  # background
    adapter.memory.columns["carried"][:3] = torch.tensor([0, 255]).view(2, 1, 1)  # structure
    rows = torch.arange(3)
    labels, share, image_weights = adapter._guide(rows)
    assert torch.allclose(labels[:, 1].mean((1, 2)), torch.tensor([0.0, 0.6, 0.3]), atol=1e-3)
    assert torch.equal(share, torch.ones(3, 1, 1, 1))
    squares = torch.tensor([0.9, 0.1, 0.5]) ** 2
    assert torch.allclose(image_weights[:, 0, 0, 0], squares / squares.mean(), rtol=1e-4)
    adapter.steps_taken[0] = 1  # the first quarter is over
    labels, share, _ = adapter._guide(rows)
    assert torch.allclose(share.flatten(), torch.tensor([0.0, 0.6, 0.3]))
    assert (labels[:, 1] > 0.99).all()


def test_learning_with_all_labels_from_the_judge_brings_the_student_to_them(source, away, quick, judged):
    """The judge's labels are replaced by the structure everywhere."""
    adapter = source.adapt("universe", carried=0.0, first=1.0, **{**quick, "rate": 100.0, "folder_steps": 12})
    remember = adapter._remember

    def store_structures(images):
        remember(images)
        adapter.memory.columns["judged"][: len(adapter.memory)] = torch.tensor([0, 255]).view(2, 1, 1).byte()

    adapter._remember = store_structures
    adapter.learn([away(0)])
    after, before = (
        network(away(0)).softmax(1)[:, 1].mean() for network in (adapter.network, source.network)
    )
    assert after > 0.9
    assert before < 0.8


@pytest.mark.parametrize("variant", ["full", "random-universe", "no-universe"])
def test_every_variant_learns_and_answers(source, variant, away, quick):
    adapter = source.adapt("universe", variant=variant, **quick)
    adapter.learn([away(0), away(1)])
    assert adapter(away(2)).isfinite().all()
    moved = not torch.equal(adapter.carrier.site.points, adapter.carrier.source.points)
    assert moved is (variant != "no-universe")
    learned = source.adapt("universe", **quick).prior.universe
    assert torch.equal(adapter.prior.universe, learned) is (variant != "random-universe")
    names = [*adapter.site_judge.names, *adapter.reader.judge.signal_names]
    assert any(name.startswith("universe") for name in names) is (variant == "full")


@pytest.mark.parametrize("carrier", ["universe", "neighbours", "pairwise"])
def test_every_carrier_learns_from_its_own_carried_labels(source, carrier, away, quick):
    adapter = source.adapt("universe", carrier=carrier, **quick)
    adapter.learn([away(0), away(1)])
    assert adapter(away(2)).isfinite().all()
    features = adapter.reader.features(adapter._stored_images(torch.arange(4)))
    carried = adapter.carrier.carry(features).mul(255).round().byte()
    assert torch.equal(adapter.memory.note("carried", torch.arange(4)), carried)
    assert not torch.allclose(adapter.carrier.carry(features), adapter.prior.posterior(features), atol=1e-3)


def test_labels_can_be_carried_without_learning(source, away, quick, weights):
    adapter, learner = (source.adapt("universe", **quick) for _ in range(2))
    stored = adapter.carry_labels([away(0), away(1)])
    assert adapter.steps_taken.tolist() == [0, 0]
    assert torch.equal(weights(adapter.network), weights(source.network))
    for images in (away(0), away(1)):
        learner._remember(images)
    learner._learn()  # its first step carries labels first
    rows = torch.arange(4)
    found, expected = (memory.note("carried", rows).int() for memory in (stored.memory, learner.memory))
    assert (found - expected).abs().max() <= 2  # of 255: features of the images, and of their bytes


def test_features_of_a_folder_are_kept_while_it_is_learned_and_computed_again_beyond_a_number_of_images(
    source, away, quick, monkeypatch
):
    adapters, again = [source.adapt("universe", **quick) for _ in range(2)], []
    for kept, adapter in zip((512, 3), adapters, strict=True):
        monkeypatch.setattr(kept_readings, "KEPT", kept)
        features = adapter.reader.features
        monkeypatch.setattr(adapter.reader, "features", lambda x, f=features: again.append(len(x)) or f(x))
        adapter.carry_labels([away(0), away(1)])
        assert bool(again) is (kept == 3)
    carried = [adapter.memory.note("carried", torch.arange(4)).int() for adapter in adapters]
    assert (carried[0] - carried[1]).abs().max() <= 2
    adapters[0].learn([away(0), away(1)])
    assert not adapters[0]._features


def test_the_features_of_a_reading_are_those_of_the_source_network(source, away, quick):
    reader = source.adapt("universe", **quick).reader
    features = reader.read(away(0)).features
    torch.testing.assert_close(features, reader.features(away(0)).half(), rtol=1e-3, atol=1e-4)


def squares_at(*columns: int) -> torch.Tensor:
    """Certain labels of images that show a square at a column."""
    labels = torch.zeros(len(columns), 2, 32, 32)
    for label, column in zip(labels, columns, strict=True):
        label[1, 8:20, column : column + 12] = 1.0
    labels[:, 0] = 1 - labels[:, 1]
    return labels


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_labels_are_anchored_in_images_in_which_teacher_and_judge_show_the_same_structure(source, share):
    adapter = source.adapt("universe", anatomy="varied", anchored=share)
    teacher, judged = squares_at(2, 2, 2), squares_at(2, 3, 18)  # the same, a pixel aside, and elsewhere
    anchored = adapter._anchor(teacher, judged)
    assert torch.equal(anchored[0], teacher[0])
    assert torch.allclose(anchored[1], teacher[1].lerp(judged[1], share))
    assert torch.equal(anchored[2], teacher[2])
    unsure = [0.4 * x + 0.3 for x in (teacher, judged)]  # the same masks
    assert torch.allclose(adapter._anchor(*unsure), 0.4 * anchored + 0.3)


@pytest.mark.parametrize(("anatomy", "anchored"), [("steady", 0.0), ("varied", 0.5), ("absent", 0.5)])
def test_labels_are_anchored_unless_structures_are_steady(source, anatomy, anchored):
    assert source.adapt("universe", anatomy=anatomy).anchored == anchored


@pytest.mark.parametrize("places", ["equal", "confidence", "universe"])
def test_anchored_labels_reach_the_student_at_every_step(source, away, quick, places, judged, monkeypatch):
    adapter = source.adapt("universe", anatomy="varied", places=places, **quick)
    seen, anchor = [], adapter._anchor
    monkeypatch.setattr(
        adapter, "_anchor", lambda labels, judged: seen.append(judged) or anchor(labels, judged)
    )
    adapter._remember(away(0, 3))
    adapter.memory.columns["judged"][:3] = squares_at(2, 9, 18).mul(255).byte()
    for _ in range(3):
        adapter._learn()
    assert len(seen) == 3
    squares = squares_at(2, 9, 18)
    for labels in torch.cat(seen):  # each is one of the stored labels, whichever image was drawn
        assert min(float((labels - square).abs().max()) for square in squares) < 0.02
