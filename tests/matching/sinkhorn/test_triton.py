"""The Triton kernel gives the plan of the reference. Runs on CUDA, or anywhere with TRITON_INTERPRET=1."""

import os

import pytest
import torch

from ttdg.matching import FORBIDDEN
from ttdg.matching.sinkhorn import sinkhorn, sinkhorn_log

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs CUDA, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cuda" if CUDA else "cpu"


def problem(n: int, d: int):
    draw = torch.Generator().manual_seed(n + d)
    a = torch.ones(2, n)
    a[1, n // 2 :] = 0
    return [x.to(DEVICE) for x in (torch.rand(2, n, d, generator=draw), a, torch.ones(2, d))]


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.005])
@pytest.mark.parametrize("shape", [(1, 1), (20, 30), (30, 30), (40, 30), (100, 120), (128, 128)])
def test_the_fused_plan_is_that_of_the_log_form(shape, tau):
    from ttdg.matching.sinkhorn import triton

    S, a, b = problem(*shape)
    P, _ = triton.fused_sinkhorn(S, a, b, tau, 0.0, 10)
    assert (P - sinkhorn_log(S.double(), a.double(), b.double(), tau, sweeps=10)).abs().max() < 5e-6


def test_absent_forbidden_and_empty_rows_are_zero():
    from ttdg.matching.sinkhorn import triton

    S, a, b = problem(6, 8)
    S[0, 0, :4], S[0, 1], S[0, 5] = FORBIDDEN, FORBIDDEN, torch.nan
    a[0, 5], b[1] = 0, 0
    P, _ = triton.fused_sinkhorn(S, a, b, 0.05, 0.0, 10)
    assert P.isfinite().all()
    assert (P[0, 0, :4] == 0).all()
    assert (P[0, [1, 5]] == 0).all()
    assert (P[1] == 0).all()


def test_sweeps_end_when_the_tolerance_is_met():
    from ttdg.matching.sinkhorn import triton

    S, a, b = problem(20, 30)
    P, error = triton.fused_sinkhorn(S, a, b, 0.05, 1e-3, 500)
    assert (error <= 1e-3).all()
    assert torch.allclose(P.sum(2), a, atol=1e-5)
    assert (P.sum(1) <= 1 + 1e-3).all()


@pytest.mark.skipif(not CUDA, reason="sinkhorn uses the fused kernel on CUDA only")
def test_on_cuda_the_implicit_gradient_is_that_of_the_cpu():
    grads = []
    for device in ("cpu", "cuda"):
        S, a, b = (x.to(device) for x in problem(20, 30))
        S.requires_grad_()
        P = sinkhorn(S, a, b, 0.05, tolerance=1e-4, max_sweeps=1000)
        grads.append(torch.autograd.grad(P.square().sum(), S)[0].cpu())
    assert torch.allclose(grads[0], grads[1], atol=1e-2 * float(grads[0].abs().max()))
