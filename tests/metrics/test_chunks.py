"""Running metrics in one thread, from one thread or several."""

from concurrent.futures import ThreadPoolExecutor

import torch

from ttdg.metrics.chunks import one_thread


def test_the_number_of_threads_is_that_of_the_caller_after_calls_from_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(_enter_often, range(8)))
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _enter_often(_: int) -> None:
    for _ in range(50):
        with one_thread():
            assert torch.get_num_threads() == 1
