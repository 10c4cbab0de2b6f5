"""Cutting the files of a folder into shards, between batches and between volumes."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ttdg.data.unlabelled import InputFile
from ttdg.newsite.journal import answer_key


@dataclass(frozen=True)
class Shard:
    """A slice of the files, in groups of which no batch has images of two."""

    groups: tuple[tuple[InputFile, ...], ...]

    @property
    def files(self) -> list[str]:
        """The names of its images."""
        return [image.file for group in self.groups for image in group]

    def key(self, *parts: str) -> str:
        """Return a short hash of the names of its images and of other texts."""
        return answer_key(*parts, *self.files)[:16]


def cut_into_shards(
    groups: Sequence[Sequence[InputFile]], batch: int, count: int, unusable: Collection[str]
) -> list[Shard]:
    """Cut the images into at most `count` slices of about equal size.

    Every batch is inside one slice, and has the images that it has without shards. So is every volume.

    Args:
        groups: The images, in groups of which no batch has images of two.
        batch: Images per batch.
        count: Number of slices.
        unusable: Images that no batch counts: unreadable files, constant frames and noise.
    """
    blocks = [
        (number, block) for number, group in enumerate(groups) for block in _batches(group, batch, unusable)
    ]
    total, before = sum(len(block) for _, block in blocks), 0
    slices: list[dict[int, list[InputFile]]] = [{} for _ in range(count)]
    for number, block in blocks:
        slices[before * count // total].setdefault(number, []).extend(block)
        before += len(block)
    return [Shard(tuple(map(tuple, part.values()))) for part in slices if part]


def _batches(
    group: Sequence[InputFile], batch: int, unusable: Collection[str]
) -> Iterator[Sequence[InputFile]]:
    """Yield the images of a group batch by batch; a volume is yielded whole."""
    stack = group[0].stack
    if stack is not None and stack.depth > 1:
        yield group
        return
    start = counted = 0
    for end, image in enumerate(group, 1):
        counted += image.file not in unusable
        if counted == batch:
            yield group[start:end]
            start, counted = end, 0
    if start < len(group):
        yield group[start:]
