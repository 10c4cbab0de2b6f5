import copy
from functools import partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation.methods import grata
from ttdg.adaptation.views import photometric_view
from ttdg.errors import UserError

adapt = partial(adapt, activation="softmax")

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))


def test_the_rate_is_zero_where_gradients_oppose_and_full_where_they_agree():
    assert grata.aligned_rate(1e-4, -1.0) == 0
    assert grata.aligned_rate(1e-4, 1.0) == 1e-4
    assert grata.aligned_rate(1e-4, 0.0) == pytest.approx(2.5e-5)


def test_the_cosine_is_taken_over_all_parameters_together():
    a, b = [torch.tensor([1.0, 0.0]), torch.tensor([2.0])], [torch.tensor([0.0, 3.0]), torch.tensor([4.0])]
    assert grata.gradient_cosine(a, b).item() == pytest.approx(8 / (5**0.5 * 5))
    assert grata.gradient_cosine(a, [-x for x in a]).item() == pytest.approx(-1)
    assert grata.gradient_cosine(a, [torch.zeros(2), torch.zeros(1)]).item() == 0


def test_opposed_gradients_change_nothing(monkeypatch):
    monkeypatch.setattr(grata, "gradient_cosine", lambda a, b: torch.tensor(-1.0))
    network = a_network()
    adapter = adapt(network, "grata", lr=0.1)
    adapter(X)
    assert all(
        torch.equal(value, network.state_dict()[key]) for key, value in adapter.network.state_dict().items()
    )


@pytest.mark.parametrize(
    ("head", "form", "noise"),
    [
        ("softmax", "full", "released"),
        ("sigmoid", "full", "released"),
        ("sigmoid", "half", "released"),
        ("softmax", "full", "strong"),
    ],
)
def test_one_step_by_hand(head, form, noise):
    network, lr = a_network(), 1e-2
    other = {} if noise == "released" else {"noise": noise}
    adapter = adapt(network, "grata", lr=lr, head=head, entropy_form=form, seed=7, **other)
    adapter(X)

    model = copy.deepcopy(network).train()
    norm, theta = model[1], [model[1].weight, model[1].bias]
    squash = (lambda z: z.softmax(1)) if head == "softmax" else torch.sigmoid
    p = squash(model(X))
    terms = p * p.log()  # summed over channels in the half form, averaged in the full form
    if (head, form) == ("sigmoid", "full"):
        terms = (terms + (1 - p) * (1 - p).log()) / 3
    entropy = -terms.sum(1).mean()
    auxiliary = torch.autograd.grad(entropy, theta)
    start = [t.detach().clone() for t in theta]
    with torch.no_grad():
        for t, g in zip(theta, auxiliary, strict=True):
            t.sub_(g)
        teacher = [squash(model(X)), squash(model(X.flip(3))).flip(3), squash(model(X.flip(2))).flip(2)]
        teacher += [squash(model(X.rot90(k, (2, 3)))).rot90(-k, (2, 3)) for k in (1, 2, 3)]
        q = torch.stack(teacher).mean(0)
    z = model(photometric_view(X, torch.Generator().manual_seed(7), noise))
    if head == "softmax":
        loss = -(q * z.log_softmax(1)).sum(1).mean()
    else:
        loss = nn.functional.binary_cross_entropy_with_logits(z, q)
    assert adapter.loss.item() == pytest.approx(loss.item(), abs=1e-6)  # the loss at the virtual step
    pseudo = torch.autograd.grad(loss, theta)
    a, b = (torch.cat([g.flatten() for g in grads]) for grads in (auxiliary, pseudo))
    cos = (a @ b / (a.norm() * b.norm())).item()
    assert adapter.cos == pytest.approx(cos, abs=1e-4)
    for moved, begin, g in zip(adapter.parameters, start, pseudo, strict=True):
        assert torch.allclose(moved, begin - lr * (cos + 1) ** 2 / 4 * g / (g.abs() + 1e-8), atol=1e-5)
    assert norm is model[1]


def test_half_the_entropy_of_a_softmax_is_a_mistake():
    with pytest.raises(UserError, match="sigmoid"):
        adapt(a_network(), "grata", entropy_form="half")


def test_consistency_falls_for_a_fixed_view_and_teacher(monkeypatch):
    teacher = 3 * adapt(a_network(), "norm")(X)
    monkeypatch.setattr(grata.views, "average_over_views", lambda *_: teacher)
    monkeypatch.setattr(grata.views, "photometric_view", lambda images, *_: images)
    adapter, losses = adapt(a_network(), "grata", lr=1e-2), []
    for _ in range(20):
        adapter(X)
        losses.append(adapter.loss.item())
    assert losses[-1] < losses[0] - 1e-3
