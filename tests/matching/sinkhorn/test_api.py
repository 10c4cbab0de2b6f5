"""Sinkhorn with masses: the optimum of its problem for any masses and temperatures, and its gradient."""

import numpy as np
import pygmtools
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ttdg.matching import FORBIDDEN
from ttdg.matching.sinkhorn import sinkhorn, sinkhorn_log

CONVERGED = {"tolerance": 1e-11, "max_sweeps": 2_000}


@st.composite
def problems(draw: st.DrawFn, least_spare: int = -6) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scores, row and column masses with absent rows, and a temperature."""
    d = draw(st.integers(1, 7))
    n = draw(st.integers(0, max(d - least_spare, 0)).filter(lambda n: n <= 7))
    scores = torch.rand(2, n, d, generator=torch.Generator().manual_seed(draw(st.integers(0, 999)))).double()
    rows = torch.arange(n) < torch.tensor([[n], [draw(st.integers(0, n))]])
    return scores, rows.double(), torch.ones(2, d).double(), draw(st.sampled_from([1.0, 0.2]))


def full(m: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.rand(m, n, d, generator=torch.Generator().manual_seed(n + d), dtype=torch.float64)
    return scores.to(dtype), torch.ones(m, n, dtype=dtype), torch.ones(m, d, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(problems(least_spare=0))
def test_with_fewer_rows_than_columns_rows_are_matched_completely_and_columns_at_most(problem):
    scores, a, b, tau = problem
    P = sinkhorn(scores, a, b, tau, **CONVERGED)
    assert torch.allclose(P.sum(2), a, atol=1e-10)
    assert (P.sum(1) <= b + 1e-10).all()
    assert (P[a == 0] == 0).all()


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_side_with_less_mass_is_matched_completely_and_the_other_at_most(problem):
    scores, a, b, tau = problem
    P = sinkhorn(scores, a, b, tau, **CONVERGED)
    assert (P.sum(2) <= a + 1e-9).all()
    assert (P.sum(1) <= b + 1e-9).all()
    assert torch.allclose(P.sum((1, 2)), torch.minimum(a.sum(1), b.sum(1)), atol=1e-9)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_the_plan_is_the_optimum_since_it_has_potentials_that_slack_shares(n):
    scores, a, b = full(2, n, 5)
    P = sinkhorn(scores, a, b, 0.2, **CONVERGED)
    L = P.log() - scores / 0.2
    interaction = L - L.mean(1, keepdim=True) - L.mean(2, keepdim=True) + L.mean((1, 2), keepdim=True)
    assert interaction.abs().max() < 1e-9
    if n < 5:
        slack = (b - P.sum(1)).log()[:, None] - L
        assert (slack - slack.mean(2, keepdim=True)).abs().max() < 1e-8
    if n > 5:
        slack = (a - P.sum(2)).log()[:, :, None] - L
        assert (slack - slack.mean(1, keepdim=True)).abs().max() < 1e-8


@settings(max_examples=25, deadline=None)
@given(problems(), st.floats(-3, 3))
def test_a_constant_on_a_row_and_a_common_factor_of_scores_and_temperature_change_nothing(problem, shift):
    scores, a, b, tau = problem
    if a.sum(1).gt(b.sum(1)).any():
        return
    P = sinkhorn(scores, a, b, tau, **CONVERGED)
    shifted = scores + shift * torch.arange(scores.shape[1]).double()[:, None]
    assert torch.allclose(P, sinkhorn(shifted, a, b, tau, **CONVERGED), atol=1e-9)
    assert torch.allclose(P, sinkhorn(3 * scores, a, b, 3 * tau, **CONVERGED), atol=1e-9)


def test_a_constant_on_a_column_does_matter_where_there_is_slack():
    scores, a, b = full(1, 3, 5)
    raised = scores + torch.tensor([1.0, 0, 0, 0, 0])
    assert sinkhorn(raised, a, b, 0.2)[0, :, 0].sum() > sinkhorn(scores, a, b, 0.2)[0, :, 0].sum() + 0.01


@settings(max_examples=25, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_permuting_rows_and_columns_permutes_the_plan(problem, random):
    scores, a, b, tau = problem
    rows, cols = list(range(scores.shape[1])), list(range(scores.shape[2]))
    random.shuffle(rows)
    random.shuffle(cols)
    P = sinkhorn(scores, a, b, tau, tolerance=0.0, max_sweeps=7)
    Q = sinkhorn(scores[:, rows][:, :, cols], a[:, rows], b[:, cols], tau, tolerance=0.0, max_sweeps=7)
    assert torch.allclose(P[:, rows][:, :, cols], Q, atol=1e-12)


@pytest.mark.parametrize("backward", ["unrolled", "implicit"])
def test_padding_changes_neither_plan_nor_gradient_even_when_it_is_nan(backward):
    scores, _a, _b = full(1, 4, 6)
    padded = torch.full((1, 7, 9), torch.nan, dtype=torch.float64)
    padded[:, :4, :6] = scores
    weights = torch.randn(1, 7, 9, generator=torch.Generator().manual_seed(0)).double()
    grads = []
    for s, rows, cols in ((scores, 4, 6), (padded, 7, 9)):
        s.requires_grad_()
        row_mass = torch.arange(rows).lt(4).double()[None]
        col_mass = torch.arange(cols).lt(6).double()[None]
        P = sinkhorn(s, row_mass, col_mass, 0.1, tolerance=1e-10, max_sweeps=500, backward=backward)
        grads.append(torch.autograd.grad((P * weights[:, :rows, :cols]).sum(), s)[0])
        assert (P[:, 4:] == 0).all()
        assert (P[:, :, 6:] == 0).all()
    assert torch.allclose(grads[0], grads[1][:, :4, :6], atol=1e-12)
    assert (grads[1][:, 4:] == 0).all()
    assert (grads[1][:, :, 6:] == 0).all()


@pytest.mark.parametrize("tau", [0.5, 0.05, 0.005])
def test_the_cost_is_within_tau_d_log_d_of_the_best_assignment(tau):
    scores, a, b = full(1, 6, 8)
    best = scores[0].numpy()[linear_sum_assignment(scores[0].numpy(), maximize=True)].sum()
    gap = best - float((sinkhorn(scores, a, b, tau, tolerance=1e-6, max_sweeps=5_000) * scores).sum())
    assert -1e-4 <= gap <= tau * 8 * np.log(8)


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.005])
@pytest.mark.parametrize("n", [20, 30])
def test_iterates_equal_pygmtools_at_equal_half_steps(n, tau):
    scores, a, b = full(3, n, 30)
    sizes = torch.full((3,), n), torch.full((3,), 30)
    # pygmtools counts half steps from the rows; odd counts end on rows as ours do.
    theirs = pygmtools.sinkhorn(scores, *sizes, dummy_row=True, max_iter=21, tau=tau, backend="pytorch")
    ours = sinkhorn(scores, a, b, tau, tolerance=0.0, max_sweeps=10)
    assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.005, 0.0005])
@pytest.mark.parametrize("n", [5, 30, 40])
def test_the_scaling_form_equals_the_log_form(n, tau):
    scores, a, b = full(3, n, 30)
    a[1, n // 2 :] = 0
    ours = sinkhorn(scores, a, b, tau, tolerance=0.0, max_sweeps=40)
    assert torch.allclose(ours, sinkhorn_log(scores, a, b, tau, sweeps=40), atol=1e-9)


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.005])
def test_single_precision_costs_at_most_two_millionths(tau):
    scores, a, b = full(8, 100, 120, torch.float32)
    P = sinkhorn(scores, a, b, tau, tolerance=0.0, max_sweeps=10)
    reference = sinkhorn_log(scores.double(), a.double(), b.double(), tau, sweeps=10)
    assert (P - reference).abs().max() < 2e-6


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.005])
def test_under_bfloat16_autocast_rows_still_sum_to_one_and_gradients_are_finite(tau):
    nodes = torch.randn(2, 10, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = nodes @ nodes[0].T
        assert scores.dtype == torch.bfloat16
        P = sinkhorn(scores, torch.ones(2, 10), torch.ones(2, 10), tau, max_sweeps=30)
    assert P.dtype == torch.float32
    assert torch.allclose(P.sum(2), torch.ones(2, 10), atol=1e-5)
    assert torch.autograd.grad(P.square().sum(), nodes)[0].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (6, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {"backward": "implicit", **CONVERGED},
        {"backward": "unrolled", "tolerance": 0.0, "max_sweeps": 5},
    ],
    ids=["implicit", "unrolled"],
)
def test_gradients_pass_gradcheck(shape, options):
    scores, a, b = full(2, *shape)
    a[1, -1] = 0
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: sinkhorn(s, a, b, 0.3, **options), scores)


def test_unrolling_across_an_absorption_passes_gradcheck():
    scores = 40 * torch.rand(1, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores.requires_grad_()
    one = torch.ones(1, 3, dtype=torch.float64)
    run = lambda s: sinkhorn(s, one, one, 0.05, tolerance=0.0, max_sweeps=30, backward="unrolled")  # noqa: E731
    assert torch.autograd.gradcheck(run, scores, eps=1e-7, atol=1e-4)


def gradient(scores: Tensor, a: Tensor, b: Tensor, **options: object) -> Tensor:
    scores = scores.detach().requires_grad_()
    P = sinkhorn(scores, a, b, 0.05, **options)  # type: ignore[arg-type]
    return torch.autograd.grad(P.square().sum(), scores)[0]


def test_the_implicit_gradient_is_the_gradient_of_very_many_sweeps():
    problem = full(2, 10, 12)
    unrolled = gradient(*problem, backward="unrolled", tolerance=0.0, max_sweeps=2_000)
    implicit = gradient(*problem, backward="implicit", tolerance=1e-9, max_sweeps=2_000)
    assert torch.allclose(implicit, unrolled, atol=1e-6 * float(unrolled.abs().max()))


def test_where_the_tolerance_was_not_met_the_gradient_is_that_of_the_sweeps():
    problem = full(2, 10, 12)
    unrolled = gradient(*problem, backward="unrolled", tolerance=0.0, max_sweeps=3)
    refused = gradient(*problem, backward="implicit", tolerance=1e-9, max_sweeps=3)
    assert torch.allclose(refused, unrolled, rtol=1e-10)
    assert not torch.allclose(refused, gradient(*problem, backward="implicit"), rtol=1e-3)


def test_the_implicit_gradient_keeps_the_same_memory_however_many_sweeps():
    scores, a, b = full(1, 12, 12)
    kept = []
    for tolerance in (1e-2, 1e-10):
        tensors: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: tensors.append(t.numel()) or t, lambda t: t):  # noqa: B023
            sinkhorn(scores.requires_grad_(), a, b, 0.05, tolerance=tolerance, max_sweeps=5_000)
        kept.append(sum(tensors))
    assert kept[0] == kept[1]


def test_an_empty_graph_gives_zeros_and_no_gradient():
    for n in (0, 4):
        scores = torch.randn(1, n, 5, requires_grad=True)
        P = sinkhorn(scores, torch.zeros(1, n), torch.ones(1, 5), 0.05)
        assert (P == 0).all()
        assert (torch.autograd.grad(P.sum(), scores)[0] == 0).all()


def test_forbidden_pairs_receive_exactly_nothing_and_a_row_of_them_stays_empty():
    scores, a, b = full(1, 4, 6, torch.float32)
    scores[0, 0, :4] = FORBIDDEN
    scores[0, 1] = FORBIDDEN
    P = sinkhorn(scores, a, b, 0.05)
    assert (P[0, 0, :4] == 0).all()
    assert (P[0, 1] == 0).all()
    assert torch.allclose(P.sum(2)[0, [0, 2, 3]], torch.ones(3), atol=1e-5)


def test_leading_dimensions_are_a_batch_of_separate_problems():
    scores = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    P = sinkhorn(scores, torch.ones(2, 3, 4), torch.ones(2, 3, 5), 0.1, tolerance=0.0, max_sweeps=9)
    one = sinkhorn(scores[1, 2], torch.ones(4), torch.ones(5), 0.1, tolerance=0.0, max_sweeps=9)
    assert torch.allclose(P[1, 2], one, atol=1e-6)
