"""The context of repeatable gradients: what it sets, and that everything is restored."""

import os

import pytest
import torch
from torch.utils import deterministic

from ttdg.networks.determinism import FIXED_WORKSPACE, WORKSPACE, deterministic_algorithms


def settings():
    return (
        torch.get_deterministic_debug_mode(),
        deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


@pytest.fixture
def elsewhere(monkeypatch):
    """Settings that the context must not leave: cuDNN searches for algorithms, and cuBLAS is not set up."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv(WORKSPACE, raising=False)


def test_inside_everything_is_deterministic_where_possible_and_outside_nothing_changed(elsewhere):
    before = settings()
    with deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert settings()[1:] == (False, True, False, FIXED_WORKSPACE)
    assert settings() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_error_inside_restores_the_settings_too(elsewhere):
    before = settings()
    with pytest.raises(KeyError), deterministic_algorithms():
        raise KeyError
    assert settings() == before


def test_a_workspace_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with deterministic_algorithms():
        assert os.environ[WORKSPACE] == ":16:8"
    assert os.environ[WORKSPACE] == ":16:8"


def test_strict_settings_of_the_user_come_back():
    torch.use_deterministic_algorithms(True)
    try:
        with deterministic_algorithms():
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
