import copy
import math

import pytest
import torch
import torch.nn.functional as F

from ttdg.adaptation.methods.a3_tta import align_to_anchor, class_overlap_entropy


def some(seed: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_sure_predictions_have_a_lower_score_than_unsure_ones():
    logits = torch.randn(2, 3, 8, 8)
    assert (
        class_overlap_entropy(10 * logits, "softmax") < class_overlap_entropy(0.1 * logits, "softmax")
    ).all()
    assert (
        class_overlap_entropy(10 * logits, "sigmoid") < class_overlap_entropy(0.1 * logits, "sigmoid")
    ).all()


def test_the_score_is_the_class_compact_density_by_hand():
    logits = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    p = logits.softmax(1).flatten(2)
    for image in range(2):
        M = p[image] @ p[image].T / 25
        assert torch.allclose(class_overlap_entropy(logits, "softmax")[image], -(M * M.log()).mean())


def test_a_feature_is_blended_with_its_anchor_and_standardised_by_it():
    f, anchor, w = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4), torch.tensor([0.0, 0.25])
    out = align_to_anchor(f, anchor, w)
    for i in range(2):
        expected = ((1 - w[i]) * f[i] + w[i] * anchor[i] - anchor[i].mean()) / anchor[i].std()
        assert torch.allclose(out[i], expected, atol=1e-6)
    assert torch.allclose(align_to_anchor(f, f, w).mean((1, 2, 3)), torch.zeros(2), atol=1e-5)
    assert align_to_anchor(f, torch.ones_like(f), w).isfinite().all()


def test_the_teacher_follows_in_the_encoder_alone(ready):
    source = ready("a3-tta")
    adapter = source.adapt("a3-tta", lr=1e-2)
    for seed in range(2):
        adapter(some(seed))
    start = dict(source.network.named_parameters())
    moved = {name for name, p in adapter.teacher.named_parameters() if not torch.equal(p, start[name])}
    assert moved == {name for name in start if name.startswith("layer")}


def test_the_teacher_moves_by_the_given_share(ready):
    adapter = ready("a3-tta").adapt("a3-tta", lr=1e-2)
    adapter(some(0))
    slow, fast = ([pair[i].detach().clone() for pair in adapter.encoder] for i in (0, 1))
    adapter._update_teacher(torch.tensor(0.25))
    for after, a, b in zip((pair[0] for pair in adapter.encoder), slow, fast, strict=True):
        assert torch.allclose(after, 0.75 * a + 0.25 * b, atol=1e-6)


def entropy_of(logits: torch.Tensor, head: str) -> torch.Tensor:
    p = logits.softmax(1) if head == "softmax" else logits.sigmoid()
    return -(p * p.log()).sum(1) if head == "softmax" else -(p * p.log() + (1 - p) * (1 - p).log()).mean(1)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, head: str) -> torch.Tensor:
    """Cross-entropy divided by log₂ of the number of classes; a sigmoid channel has two."""
    if head == "sigmoid":
        return F.binary_cross_entropy_with_logits(logits, target.sigmoid())
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1).mean() / math.log2(logits.shape[1])


def alike(ours: torch.nn.Module, expected: torch.nn.Module) -> bool:
    """Compare all weights except biases before BatchNorm, whose gradient is only rounding error."""
    pairs = zip(ours.named_parameters(), expected.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for (name, a), b in pairs if not name.endswith(".0.bias"))


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_three_steps_by_hand(head, ready):
    source, lr = ready("a3-tta", 3, 3), 1e-3
    adapter = source.adapt("a3-tta", lr=lr, head=head)
    student = copy.deepcopy(source.network).train()  # training mode uses batch statistics
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimiser, bank = torch.optim.Adam(student.parameters(), lr=lr, betas=(0.5, 0.999)), torch.empty(0)
    for seed in range(3):
        images = some(seed)
        answer = adapter(images)

        taught, (*skips, deepest) = teacher(images), student.encode(images)
        logits = student.decode((*skips, deepest))
        bank = torch.cat([bank, deepest.detach()])
        cosine = F.cosine_similarity(deepest.detach().flatten(1)[:, None], bank.flatten(1)[None], dim=2)
        anchor = bank[cosine.argmax(1)]
        w = cosine.amax(1)[:, None, None, None]
        mean, std = anchor.mean((1, 2, 3), keepdim=True), anchor.std((1, 2, 3), keepdim=True)
        aligned = student.decode((*skips, ((1 - w) * deepest + w * anchor - mean) / std))
        apart = cross_entropy(logits, taught, head)
        shape = (entropy_of(aligned, head) - entropy_of(logits, head)).abs().mean()
        loss = cross_entropy(aligned, logits, head) + 5 * shape + apart
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for (name, slow), fast in zip(teacher.named_parameters(), student.parameters(), strict=True):
            if name.startswith("layer"):
                slow.copy_((1 - apart.detach()) * slow + apart.detach() * fast.detach())

        assert adapter.loss.item() == pytest.approx(loss.item(), abs=1e-5)
        assert torch.allclose(answer, student(images), atol=1e-4)
        assert alike(adapter.network, student)
        assert alike(adapter.teacher, teacher)


def test_all_weights_are_trained_the_last_layer_s_too(ready):
    source = ready("a3-tta", 3, 3)
    adapter = source.adapt("a3-tta", lr=1e-2)
    adapter(some(0))
    start, now = dict(source.network.named_parameters()), dict(adapter.network.named_parameters())
    assert {name for name, p in now.items() if not torch.equal(p, start[name])} == start.keys()
    assert "head.weight" in start


def test_the_bank_holds_the_forty_surest_maps(ready):
    adapter = ready("a3-tta").adapt("a3-tta", lr=0.0)
    for seed in range(6):
        adapter(some(seed, 8))
    assert len(adapter.bank) == 40
    assert adapter.bank.scores.amin() >= -1
    with torch.no_grad():
        scores = torch.cat(
            [-class_overlap_entropy(adapter.network(some(seed, 8)), "softmax") for seed in range(6)]
        )
    assert adapter.bank.scores.sort().values.tolist() == pytest.approx(
        scores.topk(40).values.sort().values.tolist(), abs=1e-5
    )
