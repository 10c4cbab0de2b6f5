"""No loop reads a value from a GPU, which would block the host.

The tests need no GPU: the code runs on `meta` tensors, which have a shape but no values. Reading a value, or the number
of non-zeros, raises.
"""

import sys
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ttdg.matching import (
    assign,
    matching_loss,
    qap_direction,
    soft_affinity,
    solve,
    spectral_scores,
    stacked,
    universe_loss,
)
from ttdg.matching.nonblocking import NonBlockingAll
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.prior import Affinity, Edges, MLPAffinity, sample_nodes

aten = torch.ops.aten


class Launches(TorchDispatchMode):
    """Counts operations that launch a kernel. A copy from the host raises, because it blocks too."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is aten._to_copy.default and args[0].is_cpu and not out.is_cpu:
            raise AssertionError("a copy from the host to the device")
        free = func._schema.name.split("::")[1].startswith(("empty", "new_empty", "_unsafe_view"))
        self.count += not (func.is_view or free)
        return out


@pytest.fixture
def launches(monkeypatch):
    """Runs the test on `meta` tensors, with convergence tests that never succeed; yields the launch counter."""
    monkeypatch.setattr(torch, "autocast", lambda *options, **more: nullcontext())  # not supported on `meta`
    monkeypatch.setattr(sys.modules["ttdg.matching.nonblocking"], "_sent", lambda question: (question, None))
    monkeypatch.setattr(sys.modules["ttdg.matching.nonblocking"], "_arrived", lambda answer, event: False)
    with torch.device("meta"), Launches() as counter:
        yield counter


@pytest.fixture
def fused(monkeypatch, launches):
    """The same with Sinkhorn as a fused kernel, which is one launch."""

    def plan(scores, *options):
        return torch.zeros_like(scores), None

    monkeypatch.setattr(sys.modules["ttdg.matching.sinkhorn.api"], "_plan", plan)
    return launches


def test_reading_a_value_raises_on_the_device_of_these_tests(launches):
    x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="meta"):
        bool(x.sum() > 0)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        x[x > 0]
    with pytest.raises(AssertionError, match="from the host"):
        torch.zeros(3, device="cpu").to("meta")


@pytest.mark.parametrize("shape", [(5, 7), (7, 7), (9, 7)])
@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_sinkhorn_and_its_unrolled_gradient_do_not_block(launches, shape, tolerance):
    n, d = shape
    S = torch.rand(2, n, d).requires_grad_()
    P = sinkhorn(
        S, torch.ones(2, n), torch.ones(2, d), 0.05, tolerance=tolerance, max_sweeps=10, backward="unrolled"
    )
    assert torch.autograd.grad(P.sum(), S)[0].shape == S.shape


def test_the_solver_its_parts_and_its_losses_do_not_block(launches):
    nodes, mask, universe = torch.rand(3, 5, 8).requires_grad_(), torch.ones(3, 5).bool(), torch.rand(6, 8)
    edges = Edges(8)(nodes, mask, torch.rand(3, 5, 2))
    for affinity in (Affinity(8), MLPAffinity(8)):
        M = affinity(nodes, mask)
        soft = soft_affinity(M.detach(), mask)
        start = assign(spectral_scores(soft, mask, 6), mask)
        U = solve(
            lambda U, soft=soft: qap_direction(edges.detach(), soft, U),
            start,
            mask,
            tau=(0.1, 0.05),
            tolerance=1e-3,
            max_iterations=6,
        ).matching
        loss = matching_loss(M, U, mask) + universe_loss(nodes, universe, U, mask)
        torch.autograd.grad(loss, [nodes, *affinity.parameters()])


def test_sampling_nodes_does_not_block(launches):
    order = torch.arange(64)
    sampling = sys.modules["ttdg.prior.sampling"]
    with pytest.MonkeyPatch.context() as patch:  # the real `z_order` copies to the device once, then caches
        patch.setattr(sampling, "z_order", lambda height, width, device: order[: height * width])
        nodes = sample_nodes(
            [torch.rand(2, 4, 8, 8)], torch.zeros(2, 32, 32).long(), classes=(1, 2), per_class=5
        )
    assert nodes.mask.shape == (2, 10)


def test_one_adaptation_step_is_fewer_than_three_hundred_launches(fused):
    nodes, mask = torch.rand(4, 100, 256).requires_grad_(), torch.ones(4, 100).bool()
    edges, universe, affinity = torch.rand(4, 100, 100), torch.rand(120, 256), Affinity(256)
    fused.count = 0
    M, E = affinity(nodes, mask), nodes.detach() @ universe.T
    soft = soft_affinity(M.detach(), mask)
    direction = lambda U: qap_direction(edges, soft, U, unary=E)  # noqa: E731
    U = solve(direction, assign(E, mask), mask, tolerance=0.0, max_iterations=10).matching
    torch.autograd.grad(matching_loss(M, U, mask), [nodes, *affinity.parameters()])
    assert fused.count < 300


def test_a_solver_iteration_is_five_launches_and_a_convergence_test_three_more(fused):
    edges, affinity, mask = torch.rand(4, 9, 9), torch.rand(4, 4, 9, 9), torch.ones(4, 9).bool()
    rows, columns, start = torch.ones(4, 9), torch.ones(4, 12), torch.rand(4, 9, 12)
    M = stacked(affinity)

    def launched(iterations, tolerance):
        before = fused.count
        solve(
            lambda U: qap_direction(edges, M, U, edge_weight=0.3),
            start,
            mask,
            tolerance=tolerance,
            max_iterations=iterations,
            project=lambda V, mask, /, *, tau: sinkhorn(V, rows, columns, tau, tolerance=0.0, max_sweeps=10),
        )
        return fused.count - before

    assert launched(20, 0.0) == 20 * 5
    assert launched(20, 1e-5) - launched(10, 1e-5) == 10 * 5 + 2 * 3


def test_several_conditions_are_met_if_all_are():
    done = NonBlockingAll()
    assert done(torch.tensor([True, True]))
    assert not done(torch.tensor([True, False]))


def test_on_a_cpu_the_result_is_that_of_the_current_call():
    done = NonBlockingAll()
    assert [done(torch.tensor(x)) for x in (False, True, False)] == [False, True, False]


def test_on_a_gpu_the_result_is_that_of_the_previous_call(monkeypatch):
    module, truths = sys.modules["ttdg.matching.nonblocking"], iter([True, False, True, True])
    monkeypatch.setattr(module, "_sent", lambda question: (next(truths), None))
    monkeypatch.setattr(module, "_arrived", lambda answer, event: answer)
    done, question = NonBlockingAll(), torch.zeros((), dtype=torch.bool, device="meta")
    assert [done(question) for _ in range(4)] == [False, True, False, True]
