import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ttdg.adaptation.memory import Bank
from ttdg.adaptation.methods.tegda import probability_agreement, symmetric_cross_entropy, vote_agreement


def some(seed: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_sure_and_equal_predictions_agree_wholly_and_disjoint_ones_not_at_all():
    left, right = torch.full((1, 1, 4, 4), -40.0), torch.full((1, 1, 4, 4), -40.0)
    left[..., :2], right[..., 2:] = 40.0, 40.0
    for samples, agreement in ((left, 1), (right, 0)):
        found = probability_agreement(left, samples.expand(3, 1, 1, 4, 4), "sigmoid")
        assert found.item() == pytest.approx(agreement, abs=1e-5)


def test_agreement_of_probabilities_is_the_dice_times_the_confidence_by_hand():
    generator = torch.Generator().manual_seed(0)
    logits, dropped = (
        torch.randn(2, 3, 6, 6, generator=generator),
        torch.randn(4, 2, 3, 6, 6, generator=generator),
    )
    expected = torch.zeros(2)
    for image in range(2):
        for label in (1, 2):
            mask, masks = logits[image].argmax(0) == label, dropped[:, image].argmax(1) == label
            dice = torch.stack([2 * (mask & m).sum() / (mask.sum() + m.sum()) for m in masks]).mean()
            p = dropped[:, image].softmax(1)[:, label].mean(0)
            uncertainty = -(p * p.log2() + (1 - p) * (1 - p).log2())
            expected[image] += dice * (1 - uncertainty[masks.any(0)].mean()) / 2
    ours = probability_agreement(logits, dropped, "softmax")
    assert torch.allclose(ours, expected, atol=1e-5)
    assert ((ours >= 0) & (ours <= 1)).all()


def test_a_structure_that_is_absent_everywhere_is_a_perfect_agreement():
    empty = torch.tensor([9.0, -9.0])[None, :, None, None].expand(1, 2, 4, 4)
    for agreement in (vote_agreement, probability_agreement):
        assert agreement(empty, empty.expand(5, 1, 2, 4, 4), "softmax").item() == pytest.approx(1)


@pytest.mark.parametrize("quality", [1.0, 0.0])
def test_the_teacher_stays_at_full_quality_and_becomes_the_student_at_none(quality, ready, monkeypatch):
    from ttdg.adaptation.methods import tegda

    monkeypatch.setitem(
        tegda.QUALITIES, "released", lambda logits, dropped, head: torch.full((len(logits),), quality)
    )
    source = ready("tegda")
    adapter = source.adapt("tegda", lr=1e-2)
    adapter(some(0))
    other = source.network if quality else adapter.network
    pairs = zip(adapter.teacher.parameters(), other.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, head: str) -> torch.Tensor:
    """Cross-entropy divided by log₂ of the number of classes; a sigmoid channel has two."""
    if head == "sigmoid":
        return F.binary_cross_entropy_with_logits(logits, target.sigmoid())
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1).mean() / math.log2(logits.shape[1])


def alike(ours: torch.nn.Module, expected: torch.nn.Module) -> bool:
    """Compare all weights except biases before BatchNorm, whose gradient is only rounding error."""
    pairs = zip(ours.named_parameters(), expected.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for (name, a), b in pairs if not name.endswith(".0.bias"))


def votes_in_numpy(labels: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Quality of the authors' 2-D code, in NumPy, for masks (b, r, h, w) of the prediction and (n, b, r, h, w)."""
    n, b, r = samples.shape[:3]
    dice = []
    for sample in samples:
        for own, other in zip(labels.any(1), sample.any(1), strict=True):
            dice.append((2 * (own & other).sum() + 1e-5) / (own.sum() + other.sum() + 1e-5))
    confidence = np.zeros((b, r))
    for structure in range(r):
        p = samples[:, :, structure].sum(0) / n
        H = -p * np.log(p + 1e-6) - (1 - p) * np.log(1 - p + 1e-6)
        H = (H - H.min() + 1e-6) / (H.max() - H.min() + 2e-6)
        for image in range(b):
            union = samples[:, image, structure].any(0)
            confidence[image, structure] = ((1 - H[image])[union].sum() + 1e-6) / (union.sum() + 1e-6)
    return np.mean(dice) * confidence.mean(1)


def masks(logits: torch.Tensor, head: str) -> np.ndarray:
    """Masks of the structures, behind all leading dimensions."""
    if head == "sigmoid":
        return (logits > 0).numpy()
    return np.stack([(logits.argmax(-3) == label).numpy() for label in range(1, logits.shape[-3])], -3)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_by_default_quality_is_that_of_the_authors_votes(head, ready):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, 4, 6, 6, generator=generator)
    dropped = logits + torch.randn(10, 3, 4, 6, 6, generator=generator)
    dropped[:, 0, 1] -= 9  # a structure that one image lacks
    expected = votes_in_numpy(masks(logits, head), masks(dropped, head))
    assert vote_agreement(logits, dropped, head).tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert (probability_agreement(logits, dropped, head).numpy() < expected - 0.05).all()
    assert ready("tegda").adapt("tegda").quality == "released"


def test_votes_that_agree_in_the_whole_batch_count_half():
    """Minimum and maximum of the entropy are then equal, and the authors' small constants make it ½."""
    logits = torch.full((1, 1, 4, 4), -40.0)
    logits[..., :2] = 40.0
    assert vote_agreement(logits, logits.expand(3, 1, 1, 4, 4), "sigmoid").item() == pytest.approx(
        0.5, abs=1e-5
    )


def agreed(logits: torch.Tensor, dropped: torch.Tensor, head: str) -> torch.Tensor:
    """Quality of one image from probabilities: the mean over structures of Dice times confidence."""
    p = (dropped.softmax(1) if head == "softmax" else dropped.sigmoid()).mean(0)
    scores = []
    for label in range(1 if head == "softmax" else 0, len(logits)):
        mask, masks = (
            z.argmax(-3) == label if head == "softmax" else z.select(-3, label) > 0 for z in (logits, dropped)
        )
        dice = [(2 * (mask & m).sum() + 1e-6) / (mask.sum() + m.sum() + 1e-6) for m in masks]
        H = -(p[label] * p[label].log2() + (1 - p[label]) * (1 - p[label]).log2())[masks.any(0)]
        scores.append(torch.stack(dice).mean() * (1 - (H.mean() if len(H) else 0)))
    return torch.stack(scores).mean()


@pytest.mark.parametrize("by_votes", [True, False], ids=["released", "probabilities"])
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_three_steps_by_hand(head, by_votes, ready):
    source, lr = ready("tegda", 3, 3), 1e-3
    other = {} if by_votes else {"quality": "probabilities"}
    adapter = source.adapt("tegda", lr=lr, head=head, seed=7, **other)
    student = copy.deepcopy(source.network).train()  # training mode uses batch statistics
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimiser, bank = torch.optim.Adam(student.parameters(), lr=lr, betas=(0.5, 0.999)), torch.empty(0)
    draw = torch.Generator().manual_seed(7)

    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (cross_entropy(a, b, head) + cross_entropy(b, a, head)) / 2

    for seed in range(3):
        images = some(seed, 3)  # the bank has six maps in the end, of which five are used
        answer = adapter(images)

        taught, (*skips, deepest) = teacher(images), student.encode(images)
        logits, refined = student.decode((*skips, deepest)), deepest
        kept = [deepest.detach() * (torch.rand(deepest.shape, generator=draw) >= 0.5) * 2 for _ in range(10)]
        with torch.no_grad():
            dropped = torch.stack([student.decode((*skips, deep)) for deep in kept], 1)
            if by_votes:
                quality = (
                    votes_in_numpy(masks(logits, head), masks(dropped.movedim(1, 0), head)).mean().item()
                )
            else:
                pairs = zip(logits, dropped, strict=True)
                quality = torch.stack([agreed(z, d, head) for z, d in pairs]).mean()
        if len(bank):
            cosine = F.cosine_similarity(deepest.detach().flatten(1)[:, None], bank.flatten(1)[None], dim=2)
            nearest, rows = (
                cosine.sort(1, descending=True)[0][:, :5],
                cosine.argsort(1, descending=True)[:, :5],
            )
            target = (nearest.softmax(1)[..., None, None, None] * bank[rows]).sum(1)
            r = nearest.mean(1)[:, None, None, None]
            refined = (1 - r) * deepest + r * target
        loss = apart(logits, taught) + quality * apart(logits, student.decode((*skips, refined)))
        bank = torch.cat([bank, deepest.detach()])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.copy_(quality * slow + (1 - quality) * fast.detach())

        assert adapter.loss.item() == pytest.approx(loss.item(), abs=1e-5)
        assert torch.allclose(answer, student(images), atol=1e-4)
        assert alike(adapter.network, student)
        assert alike(adapter.teacher, teacher)


def test_all_weights_are_trained_the_last_layer_s_too(ready):
    source = ready("tegda", 3, 3)
    adapter = source.adapt("tegda", lr=1e-2)
    for seed in range(2):
        adapter(some(seed))
    start, now = dict(source.network.named_parameters()), dict(adapter.network.named_parameters())
    assert {name for name, p in now.items() if not torch.equal(p, start[name])} == start.keys()
    assert "head.weight" in start


def test_features_are_blended_with_similar_ones_and_an_equal_one_changes_nothing(ready):
    adapter = ready("tegda").adapt("tegda")
    f = torch.rand(2, 12, 4, 4)
    assert torch.equal(adapter._refined(f), f)
    adapter.bank.push(f, torch.ones(2))
    adapter.bank.maps = adapter.bank.maps[:1]
    adapter.bank.scores = adapter.bank.scores[:1]
    refined = adapter._refined(f)
    assert torch.allclose(refined[0], f[0], atol=1e-5)
    cosine = torch.nn.functional.cosine_similarity(f[0].flatten(), f[1].flatten(), 0)
    assert torch.allclose(refined[1], (1 - cosine) * f[1] + cosine * f[0], atol=1e-5)


def test_the_symmetric_loss_is_symmetric_and_least_where_predictions_agree():
    a, b = torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4)
    assert torch.allclose(symmetric_cross_entropy(a, b, "softmax"), symmetric_cross_entropy(b, a, "softmax"))
    sure = torch.tensor([30.0, 0.0, 0.0])[None, :, None, None].expand(1, 3, 4, 4)
    assert symmetric_cross_entropy(sure, sure, "softmax") < 1e-6 < symmetric_cross_entropy(a, b, "softmax")


def test_the_bank_keeps_the_best_and_gives_way_to_better_ones():
    bank = Bank(3)
    for score in (0.1, 0.9, 0.5, 0.2, 0.7):
        bank.push(torch.full((1, 1, 2, 2), score), torch.tensor([score]))
    assert sorted(bank.scores.tolist()) == pytest.approx([0.5, 0.7, 0.9])
    assert torch.equal(bank.maps.mean((1, 2, 3)), bank.scores)
    cosines, maps = bank.nearest(torch.ones(2, 1, 2, 2), 5)
    assert cosines.shape == (2, 3)
    assert maps.shape == (2, 3, 1, 2, 2)
    bank.push(torch.ones(1, 1, 4, 4), torch.tensor([0.0]))  # another size of image
    assert len(bank) == 1
