import pytest
import torch

from ttdg.adaptation import adapt
from ttdg.networks import cuda_graph
from ttdg.networks.passes import counted_passes


class Silent:
    def replay(self):
        """As a CUDA graph: no Python runs."""


@pytest.mark.parametrize(("method", "backwards"), [("norm", 0), ("tent", 9)])
def test_replayed_passes_are_counted(disc_model, monkeypatch, method, backwards):
    monkeypatch.setattr(cuda_graph, "_can_capture", lambda inputs: True)
    monkeypatch.setattr(cuda_graph, "_run_on_side_stream", lambda work, inputs: work(*inputs))
    monkeypatch.setattr(cuda_graph, "_capture", lambda work, inputs: (Silent(), work(*inputs)))
    adapter = adapt(disc_model.network, method)
    adapter._replay.state.possible = True  # as on a GPU, for a fused optimiser
    for _ in range(6):
        adapter(
            torch.randn(2, 3, 32, 32)
        )  # a recording that nobody counted is not used where somebody counts
    with counted_passes() as passes:
        for _ in range(9):
            adapter(torch.randn(2, 3, 32, 32))
    assert (passes.forwards, passes.backwards) == (9, backwards)
