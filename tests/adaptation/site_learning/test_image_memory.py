import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.site_learning.image_memory import ImageMemory, recognise
from ttdg.data.transforms import normalise


def unit_images(count: int, size: int = 8, seed: int = 0, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


def test_each_normalisation_is_recognised_and_undone_to_a_grey_level():
    raw = (unit_images(4) * 255).round() / 255
    for how in ("minmax", "imagenet"):
        normalised = normalise(raw, how)
        assert recognise(normalised) == how
        memory = ImageMemory(8, 0)
        memory.add(normalised)
        rows = torch.arange(4)
        back = memory.network_input(memory.unit_images(rows), rows)
        assert (back - normalised).abs().max() < 3 / 255 / 0.2


def test_other_images_keep_their_own_range():
    images = 5 * unit_images(3) - 7
    memory = ImageMemory(8, 0)
    memory.add(images)
    rows = torch.arange(3)
    assert memory.normalised == "affine"
    assert torch.allclose(memory.network_input(memory.unit_images(rows), rows), images, atol=5 / 255)


@given(capacity=st.integers(1, 6), batches=st.lists(st.integers(1, 5), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_the_memory_never_exceeds_its_capacity_and_fills_before_it_replaces(capacity, batches):
    memory = ImageMemory(capacity, 0)
    for number, count in enumerate(batches):
        memory.add(unit_images(count, seed=number))
        assert len(memory) == min(capacity, sum(batches[: number + 1]))
        assert len(memory.pixels) <= capacity


def test_a_full_memory_is_a_uniform_sample_of_the_stream():
    kept = torch.zeros(12)
    for seed in range(300):
        memory = ImageMemory(3, seed)
        for value in range(12):
            memory.add(torch.full((1, 1, 2, 2), float(value)) + torch.tensor([0.0, 0.5]).view(1, 1, 1, 2))
        kept[memory.columns["low"][: len(memory)].long()] += 1
    assert (kept / 300 - 3 / 12).abs().max() < 0.1


def test_images_of_another_size_empty_the_memory():
    memory = ImageMemory(8, 0)
    memory.add(unit_images(3))
    memory.add(unit_images(2, size=16))
    assert len(memory) == 2
    assert memory.unit_images(torch.arange(2)).shape[-1] == 16


def test_draws_repeat_images_only_if_there_are_too_few():
    memory = ImageMemory(8, 0)
    memory.add(unit_images(3))
    assert sorted(memory.draw(3).tolist()) == [0, 1, 2]
    assert sorted(set(memory.draw(7).tolist())) == [0, 1, 2]


def test_a_cleared_memory_repeats_its_random_numbers():
    memory = ImageMemory(4, 3)
    memory.add(unit_images(8))
    first = memory.draw(4)
    memory.clear()
    memory.add(unit_images(8))
    assert torch.equal(memory.draw(4), first)


@given(
    capacity=st.none() | st.integers(1, 6),
    batches=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_notes_stay_with_their_images_and_leave_with_them(capacity, batches, seed):
    """Image number i spans [i, i + 1], so that its stored minimum tells its number."""
    memory, number = ImageMemory(capacity, seed), 0
    for size in batches:
        numbers = torch.arange(number, number + size)
        images = numbers[:, None, None, None] + torch.tensor([0.0, 1.0]).expand(size, 1, 2, 2)
        memory.add(images, number=numbers, square=torch.stack([numbers, numbers**2], 1).to(torch.uint8))
        number += size
    assert len(memory) == min(number, capacity or number)
    rows = torch.arange(len(memory)).flip(0)
    kept = memory.note("low", rows).long()
    assert torch.equal(memory.note("number", rows), kept)
    assert torch.equal(memory.note("square", rows), torch.stack([kept, kept**2], 1).to(torch.uint8))
    assert len(set(kept.tolist())) == len(memory)


def test_notes_of_images_of_another_size_replace_the_old_notes():
    memory = ImageMemory(8, 0)
    memory.add(unit_images(3), number=torch.arange(3))
    memory.add(unit_images(2, size=16), number=torch.tensor([7, 8]))
    assert memory.note("number", torch.arange(2)).tolist() == [7, 8]


def test_a_loaded_memory_keeps_its_notes():
    memory, other = ImageMemory(4, 0), ImageMemory(4, 0)
    memory.add(unit_images(6), number=torch.arange(6))
    other.load_state(memory.state(), torch.device("cpu"))
    rows = torch.arange(4)
    assert torch.equal(other.note("number", rows), memory.note("number", rows))
    for each in (memory, other):
        each.add(unit_images(5, seed=1), number=torch.arange(10, 15))
    assert torch.equal(other.note("number", rows), memory.note("number", rows))
