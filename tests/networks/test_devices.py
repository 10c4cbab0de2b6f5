import pytest
import torch

from ttdg.errors import UserError
from ttdg.networks.devices import resolve_device


@pytest.fixture(params=[0, 2])
def gpus(request, monkeypatch):
    """A machine with this number of GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)
    return request.param


def test_auto_prefers_a_gpu(gpus):
    assert resolve_device("auto") == ("cuda" if gpus else "cpu")
    assert resolve_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_a_gpu_can_be_named_where_there_is_one(gpus, name):
    if gpus:
        assert resolve_device(name) == name
    else:
        with pytest.raises(UserError, match="use 'cpu'"):
            resolve_device(name)


@pytest.mark.parametrize("name", ["banana", "", "cuda:", "cuda:-1", "cuda:x", "cudax", "CPU"])
def test_other_names_are_refused_in_words(gpus, name):
    with pytest.raises(UserError, match=r"unknown device .* use 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        resolve_device(name)


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_a_gpu_number_beyond_the_last_is_refused(gpus):
    with pytest.raises(UserError, match="finds 2 GPU"):
        resolve_device("cuda:2")
