import pytest
import torch

from ttdg.adapt.a3_tta import anchored, doubt


def some(seed: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_sure_predictions_are_less_doubted_than_unsure_ones():
    logits = torch.randn(2, 3, 8, 8)
    assert (doubt(10 * logits, "softmax") < doubt(0.1 * logits, "softmax")).all()
    assert (doubt(10 * logits, "sigmoid") < doubt(0.1 * logits, "sigmoid")).all()


def test_doubt_is_the_class_compact_density_by_hand():
    logits = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    p = logits.softmax(1).flatten(2)
    for image in range(2):
        M = p[image] @ p[image].T / 25
        assert torch.allclose(doubt(logits, "softmax")[image], -(M * M.log()).mean())


def test_a_feature_is_blended_with_its_anchor_and_standardised_by_it():
    f, anchor, w = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4), torch.tensor([0.0, 0.25])
    out = anchored(f, anchor, w)
    for i in range(2):
        expected = ((1 - w[i]) * f[i] + w[i] * anchor[i] - anchor[i].mean()) / anchor[i].std()
        assert torch.allclose(out[i], expected, atol=1e-6)
    assert torch.allclose(anchored(f, f, w).mean((1, 2, 3)), torch.zeros(2), atol=1e-5)
    assert anchored(f, torch.ones_like(f), w).isfinite().all()


def test_the_teacher_follows_in_the_encoder_alone(ready):
    source = ready("a3-tta")
    adapter = source.adapt("a3-tta", lr=1e-2)
    for seed in range(2):
        adapter(some(seed))
    start = dict(source.network.named_parameters())
    moved = {name for name, p in adapter.teacher.named_parameters() if not torch.equal(p, start[name])}
    assert moved == {name for name in start if name.startswith("layer")}


def test_the_teacher_moves_by_the_share_it_lies_apart(ready):
    adapter = ready("a3-tta").adapt("a3-tta", lr=1e-2)
    adapter(some(0))
    slow, fast = ([pair[i].detach().clone() for pair in adapter.encoder] for i in (0, 1))
    adapter._follow(torch.tensor(0.25))
    for after, a, b in zip((pair[0] for pair in adapter.encoder), slow, fast, strict=True):
        assert torch.allclose(after, 0.75 * a + 0.25 * b, atol=1e-6)


def test_the_bank_holds_the_least_doubted_and_no_more_than_forty(ready):
    adapter = ready("a3-tta").adapt("a3-tta", lr=0.0)
    for seed in range(6):
        adapter(some(seed, 8))
    assert len(adapter.bank) == 40
    assert adapter.bank.scores.amin() >= -1
    with torch.no_grad():
        scores = torch.cat([-doubt(adapter.network(some(seed, 8)), "softmax") for seed in range(6)])
    assert adapter.bank.scores.sort().values.tolist() == pytest.approx(
        scores.topk(40).values.sort().values.tolist(), abs=1e-5
    )
