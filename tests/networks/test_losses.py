import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DiceLoss

from ttdg.networks.losses import LOSSES, cross_entropy, dice_cross_entropy, soft_dice_loss


def some(seed=0, b=3, c=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(b, c, 8, 8, generator=g), torch.randint(0, c, (b, 8, 8), generator=g)


def test_soft_dice_agrees_with_monai():
    logits, labels = some()
    theirs = DiceLoss(include_background=False, to_onehot_y=True, softmax=True, smooth_nr=1, smooth_dr=1)
    assert torch.allclose(soft_dice_loss(logits, labels), theirs(logits, labels[:, None]))


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_losses_are_means_over_images_so_they_split_over_processes(seed):
    logits, labels = some(seed, b=4)
    for loss in LOSSES.values():
        halves = (loss(logits[:2], labels[:2]) + loss(logits[2:], labels[2:])) / 2
        assert torch.allclose(loss(logits, labels), halves, atol=1e-6)


def test_a_perfect_answer_costs_nothing_and_an_absent_label_little():
    labels = torch.zeros(2, 8, 8, dtype=torch.long)
    labels[:, 2:5, 2:5] = 1  # label 2 is absent
    perfect = 100.0 * torch.nn.functional.one_hot(labels, 3).movedim(-1, 1)
    assert dice_cross_entropy(perfect, labels).item() < 1e-5
    assert soft_dice_loss(-perfect, labels) > 0.4


def test_cross_entropy_agrees_with_torch():
    logits, labels = some()
    assert torch.allclose(cross_entropy(logits, labels), torch.nn.functional.cross_entropy(logits, labels))


def test_cross_entropy_of_a_uniform_answer_is_the_log_of_the_labels():
    assert torch.isclose(
        cross_entropy(torch.zeros(1, 3, 4, 4), some(b=1)[1][:, :4, :4]), torch.tensor(3.0).log()
    )
