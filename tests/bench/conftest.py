"""Runs that are killed while they write."""

import multiprocessing
import os
import random
import signal
import tempfile

import pytest

FORK = multiprocessing.get_context("fork")
LONGEST = 6  # operations on files before a kill


@pytest.fixture
def killed_at_random_writes():
    """`killed_at_random_writes(work, most)` repeats `work` until it ends, and returns how often it was killed.

    Each forked process gets SIGKILL at one of its first operations on files, drawn at random: when it has made a
    temporary file or folder, or before it moves one to its place. So a faster machine sees the same kills. After `most`
    of them no process is killed.
    """

    def run(work, most):
        dice, kills = random.Random(0), 0
        while True:
            left = dice.randint(1, LONGEST) if kills < most else None
            child = FORK.Process(target=_run_until_killed, args=(work, left))
            child.start()
            child.join()
            if child.exitcode != -signal.SIGKILL:
                assert child.exitcode == 0

                return kills
            kills += 1

    return run


def _run_until_killed(work, left):
    move = os.replace

    def count():
        nonlocal left
        if left is not None:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def then_count(make):
        def make_then_count(*arguments, **named):
            made = make(*arguments, **named)
            count()
            return made

        return make_then_count

    def count_then_move(*arguments, **named):
        count()
        move(*arguments, **named)

    # this process ends soon, so nothing is put back
    tempfile.mkstemp, tempfile.mkdtemp = then_count(tempfile.mkstemp), then_count(tempfile.mkdtemp)
    os.replace = count_then_move
    work()
