"""A parallel map that keeps order and bounds memory. It uses threads because decoding releases the GIL."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import TypeVar

from ttdg.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], workers: int | None = None, ahead: int | None = None
) -> Iterator[tuple[T, Future[R]]]:
    """Yield each item with the future of `function(item)`, in the order of `items`.

    Args:
        function: Called in worker threads.
        items: Consumed only as far as needed.
        workers: Number of threads; None is one per core.
        ahead: Largest number of items that are in progress, or finished but not yet yielded. Memory
            therefore does not grow with the number of items. Never less than `workers`.
    """
    if workers is not None and workers < 0:
        raise UserError(f"the number of worker threads is {workers}; give at least 1")
    workers = workers or available_cores()
    ahead = max(workers, ahead or 2 * workers)
    pending: deque[tuple[T, Future[R]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ttdg-data")
    try:
        for item in items:
            if len(pending) >= ahead:
                yield pending.popleft()
            pending.append((item, pool.submit(function, item)))
        while pending:
            yield pending.popleft()
    finally:  # if the caller stops early, cancel what has not started
        for _, future in pending:
            future.cancel()
        pool.shutdown()


class Budget:
    """A number of units that threads share. A thread that asks for more than is free waits.

    Args:
        units: The number of all units; a thread that asks for more gets all of them.
    """

    def __init__(self, units: int) -> None:
        self.units = self._free = units
        self._changed = Condition()

    @contextmanager
    def hold(self, units: int) -> Iterator[None]:
        """Hold some units inside the block."""
        units = min(units, self.units)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= units)
            self._free -= units
        try:
            yield
        finally:
            with self._changed:
                self._free += units
                self._changed.notify_all()


def available_cores() -> int:
    """Return the number of cores this process may use. A container or a SLURM job can limit them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
