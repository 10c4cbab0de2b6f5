"""Label encodings, and error messages about badly written descriptions."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import Benchmark, builtin_benchmarks, load_benchmark
from ttdg.errors import UserError

GREYS = np.arange(256, dtype=np.uint8)[None]


def test_the_built_in_benchmarks_are_the_documented_ones():
    assert builtin_benchmarks() == (
        "fundus", "pacs", "polyp", "prostate", "prostate-nifti", "synthetic-fundus", "synthetic-polyp",
        "synthetic-prostate", "synthetic-shapes", "vessels", "vlcs",
    )  # fmt: skip
    fundus, polyp = load_benchmark("fundus"), load_benchmark("polyp")
    assert fundus.labels == ("background", "rim", "cup")
    assert fundus.regions == {"disc": (1, 2), "cup": (2,)}
    assert (fundus.normalisation, fundus.size) == ("minmax", 256)
    assert polyp.regions == {"polyp": (1,)}
    assert (polyp.normalisation, polyp.size) == ("imagenet", 256)
    assert load_benchmark("synthetic-fundus").size == load_benchmark("synthetic-polyp").size == 128


@pytest.mark.parametrize("name", builtin_benchmarks())
def test_a_benchmark_survives_json_and_yaml(name: str, tmp_path: Path):
    benchmark = load_benchmark(name)
    assert Benchmark.from_dict(json.loads(json.dumps(benchmark.to_dict()))) == benchmark
    (tmp_path / "benchmark.yaml").write_text(yaml.safe_dump(benchmark.to_dict()))
    assert load_benchmark(None, tmp_path) == benchmark
    assert load_benchmark(tmp_path / "benchmark.yaml") == benchmark


def test_a_benchmark_of_images_is_described_as_before_there_were_volumes():
    """The description is part of the keys of all trainings."""
    for name in builtin_benchmarks():
        assert ("volumes" in load_benchmark(name).to_dict()) == load_benchmark(name).volumes
    assert load_benchmark("prostate").volumes
    assert not load_benchmark("polyp").volumes


def test_a_threshold_separates_the_grey_values():
    np.testing.assert_array_equal(load_benchmark("polyp").encode(GREYS), GREYS > 127)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(256)), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_exact_values_are_decoded_to_their_labels(greys: list[int], n: int, seed: int):
    names = [f"label{i}" for i in range(n)]
    fields = load_benchmark("fundus").to_dict() | {
        "labels": names,
        "mask": dict(zip(greys, names, strict=False)),
        "regions": {"all": names[1:]},
    }
    labels = np.random.default_rng(seed).integers(0, n, (5, 7), dtype=np.uint8)
    raw = np.array(greys, np.uint8)[labels]
    np.testing.assert_array_equal(Benchmark.from_dict(fields).encode(raw), labels)


def test_unknown_grey_values_are_named_with_the_known_ones(fundus: Benchmark):
    with pytest.raises(
        UserError, match=r"does not know: 7, 200 \(it knows 255 = background, 128 = rim, 0 = cup"
    ):
        fundus.encode(np.array([[255, 200], [0, 7]], np.uint8))
    with pytest.raises(UserError, match="8, …"):
        fundus.encode(GREYS)


MISTAKES = {
    "a key close to a known one": ({"normalization": "minmax"}, "did you mean 'normalisation'"),
    "a threshold misspelt": (
        {"mask": {"thresold": 127, "above": "cup", "below": "rim"}},
        "mask: unknown key 'thresold'; did you mean 'threshold'",
    ),
    "a grey beyond a byte": ({"mask": {300: "rim", 0: "cup"}}, "mask: 300: .*255"),
    "a threshold beyond a byte": (
        {"mask": {"threshold": 255, "above": "cup", "below": "rim"}},
        "mask: threshold: .*254",
    ),
    "a mask of another kind": ({"mask": 5}, "mask: Input should be a valid dictionary"),
    "a label unknown to the mask": ({"mask": {0: "cupp", 1: "rim"}}, "'cupp'; did you mean 'cup'"),
    "a label unknown to a region": ({"regions": {"disc": ["rm"]}}, "region 'disc'.*did you mean 'rim'"),
    "a label no grey stands for": ({"mask": {0: "cup", 1: "rim"}}, "stands for background"),
    "a label named twice": ({"labels": ["rim", "rim", "cup"]}, "named only once"),
    "an unknown normalisation": (
        {"normalisation": "z"},
        "'minmax', 'imagenet', 'zscore' or 'clipped-zscore'",
    ),
    "a size in words": ({"size": "large"}, "size: .*integer"),
    "no region": ({"regions": {}}, "regions: .*at least 1"),
}


@pytest.mark.parametrize(("change", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_a_benchmark_is_named(fundus: Benchmark, change: dict, words: str):
    with pytest.raises(UserError, match=f"mine.yaml: .*{words}"):
        Benchmark.from_dict(fundus.to_dict() | change, "mine.yaml")


def test_all_mistakes_are_reported_at_once(fundus: Benchmark):
    with pytest.raises(UserError, match=r"size: .*; unknown key 'nam'"):
        Benchmark.from_dict(fundus.to_dict() | {"size": 0, "nam": "x"})


def test_an_unknown_benchmark_is_answered_with_the_known_ones(tmp_path: Path):
    with pytest.raises(UserError, match="unknown benchmark 'polyps'; did you mean 'polyp'"):
        load_benchmark("polyps")
    with pytest.raises(
        UserError, match=r"cannot read .*benchmark\.yaml .*a built-in benchmark: fundus, pacs, polyp"
    ):
        load_benchmark(None, tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*mine\.yaml"):
        load_benchmark(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("text", "words"), [("a: [", "not a yaml file"), ("- 1", "must hold the fields name")]
)
def test_a_file_that_describes_no_benchmark_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "benchmark.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        load_benchmark(None, tmp_path)


@pytest.mark.parametrize("name", ["fundus", "polyp", "synthetic-polyp"])
def test_labels_are_written_as_they_are_read(name: str):
    benchmark = load_benchmark(name)
    labels = np.random.default_rng(0).integers(0, len(benchmark.labels), (9, 5), dtype=np.uint8)
    np.testing.assert_array_equal(benchmark.encode(benchmark.decode(labels)), labels)
