import pytest

from ttdg.data.lookup import find_benchmark_folder
from ttdg.errors import UserError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of benchmarks that holds `polyp`."""
    monkeypatch.delenv("TTDG_DATA", raising=False)
    (tmp_path / "polyp").mkdir()
    return tmp_path


def test_a_benchmark_is_found_by_name_in_a_folder_of_benchmarks(root):
    assert find_benchmark_folder(root, "polyp") == root / "polyp"


@pytest.mark.parametrize("benchmark", [None, "fundus", "some/file.yaml"])
def test_a_folder_without_a_subfolder_of_that_name_is_the_benchmark_folder(root, benchmark):
    assert find_benchmark_folder(root, benchmark) == root


def test_a_folder_with_a_benchmark_file_is_the_benchmark_folder(root):
    (root / "benchmark.yaml").touch()
    assert find_benchmark_folder(root, "polyp") == root


def test_the_environment_names_the_default_folder(root, monkeypatch):
    monkeypatch.setenv("TTDG_DATA", str(root))
    assert find_benchmark_folder(None, "polyp") == root / "polyp"
    assert find_benchmark_folder(root / "polyp", None) == root / "polyp"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_folder_the_remedy_is_given(root, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("TTDG_DATA", value)
    with pytest.raises(UserError, match="set TTDG_DATA"):
        find_benchmark_folder(None, "polyp")


def test_a_missing_folder_is_named(root):
    with pytest.raises(UserError, match=r"no folder at .*nowhere"):
        find_benchmark_folder(root / "nowhere", None)
