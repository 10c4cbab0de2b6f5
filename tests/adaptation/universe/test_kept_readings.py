"""The judge reads the images of a folder once, and answers are those of a second reading, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.adapter import Assessment
from ttdg.adaptation.universe import kept_readings
from ttdg.adaptation.universe.kept_readings import KeptReadings
from ttdg.adaptation.universe.source_reading import SourceReading


def reading(value: float = 0.0, count: int = 2) -> SourceReading:
    each = torch.full((count,), float(value))
    assessment = Assessment(("",) * count, each, each, each)
    return SourceReading(torch.zeros(count, 2, 8, 8), assessment, torch.zeros(count, 1, 2, 2).half())


def batch(seed: int, count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True))
@settings(max_examples=20, deadline=None)
def test_a_batch_finds_its_own_reading_once(seeds):
    kept, readings = KeptReadings(), {seed: reading(seed) for seed in seeds}
    for seed, each in readings.items():
        assert kept.add(batch(seed), each)
    for seed in reversed(seeds):
        assert kept.take(batch(seed)) is readings[seed]
        assert kept.take(batch(seed)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.flip(0),
        lambda x: x.flip(3),
        lambda x: x[:1],
        lambda x: torch.cat([x, x]),
        lambda x: x + 1e-6,
        lambda x: x.transpose(2, 3),
        lambda x: torch.full_like(x, torch.nan),
    ],
)
def test_another_batch_finds_nothing(change):
    kept = KeptReadings()
    kept.add(batch(0), reading())
    assert kept.take(change(batch(0)).contiguous()) is None
    assert kept.take(batch(0)) is not None


def test_no_more_images_are_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(kept_readings, "KEPT", 5)
    kept = KeptReadings()
    assert [kept.add(batch(seed), reading()) for seed in range(3)] == [True, True, False]
    assert kept.take(batch(2)) is None
    kept.clear()
    assert kept.take(batch(0)) is None
    assert kept.add(batch(2), reading())


@pytest.mark.parametrize("home", [False, True])
def test_the_judge_reads_each_batch_of_a_folder_once_and_a_second_reading_answers_the_same(
    source, away, at_home, quick, monkeypatch, home
):
    batches = [(at_home if home else away)(seed, 4) for seed in range(3)]
    adapter, read = source.adapt("universe", **quick), []
    judge_reads = adapter.reader.judge.read
    monkeypatch.setattr(adapter.reader.judge, "read", lambda x: read.append(len(x)) or judge_reads(x))
    adapter.learn(batches)
    first = [(adapter.predict_frozen(x), adapter.assessment()) for x in batches]
    assert read == [4, 4, 4]
    second = [(adapter.predict_frozen(x), adapter.assessment()) for x in batches]
    assert read == [4] * 6
    for (one, assessed), (other, again) in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert assessed.choices == again.choices
        assert torch.equal(assessed.dice, again.dice)


def test_a_reset_and_another_folder_forget_the_readings(source, away, quick):
    adapter = source.adapt("universe", **quick)
    adapter.learn([away(0)])
    adapter.reset()
    assert adapter._kept.take(away(0)) is None
    adapter.learn([away(0)])
    adapter.learn([away(1)])
    assert adapter._kept.take(away(0)) is None
    assert adapter._kept.take(away(1)) is not None
