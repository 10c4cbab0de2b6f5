"""A map over threads that keeps order and looks only so far ahead. Threads do: decoding releases the GIL."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], workers: int | None = None, ahead: int | None = None
) -> Iterator[tuple[T, Future[R]]]:
    """Each item with the future of `function(item)`, in the order of `items`.

    At most `ahead` are under way or done but unclaimed, so memory does not grow with the number of items.
    """
    workers = workers or cpus()
    ahead = max(workers, ahead or 2 * workers)
    waiting: deque[tuple[T, Future[R]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ttdg-data")
    try:
        for item in items:
            if len(waiting) >= ahead:
                yield waiting.popleft()
            waiting.append((item, pool.submit(function, item)))
        while waiting:
            yield waiting.popleft()
    finally:  # where the reader stopped early, what it left is not begun
        for _, future in waiting:
            future.cancel()
        pool.shutdown()


def cpus() -> int:
    """Those this process may use, which in a container or a SLURM job are not all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
