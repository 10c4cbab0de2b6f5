"""The parallel map keeps order and bounds the work in progress."""

import threading
import time
from concurrent.futures import Future

import pytest

from ttdg.data.threads import available_cores, ordered_map
from ttdg.errors import UserError


def test_results_come_in_the_order_of_the_items():
    def slow_for_some(n: int) -> int:
        time.sleep(0.005 * (n % 3 == 0))
        return n * n

    results = [(n, future.result()) for n, future in ordered_map(slow_for_some, range(30), workers=4)]
    assert results == [(n, n * n) for n in range(30)]


@pytest.mark.parametrize(("workers", "ahead"), [(1, 3), (3, 3), (2, 8)])
def test_no_more_than_ahead_are_started_and_unclaimed(workers: int, ahead: int):
    started = claimed = 0
    lock = threading.Lock()

    def start(n: int) -> int:
        nonlocal started
        with lock:
            started += 1
        return n

    for _, future in ordered_map(start, range(40), workers, ahead):
        future.result()
        claimed += 1
        assert started - claimed <= ahead
    assert claimed == 40


def test_an_exception_belongs_to_its_item():
    def fail_on_two(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n

    futures = [future for _, future in ordered_map(fail_on_two, range(5), workers=2)]
    assert [type(future.exception()) for future in futures] == [type(None)] * 2 + [ValueError] + [
        type(None)
    ] * 2


def test_stopping_early_ends_the_threads():
    before = threading.active_count()
    items = ordered_map(lambda n: n, range(1000), workers=3)
    _, first = next(items)
    assert isinstance(first, Future)
    items.close()
    assert threading.active_count() == before


def test_there_is_at_least_one_worker_by_default():
    assert available_cores() >= 1


def test_a_negative_number_of_workers_is_refused():
    with pytest.raises(UserError, match="at least 1"):
        next(ordered_map(str, range(3), workers=-3))
