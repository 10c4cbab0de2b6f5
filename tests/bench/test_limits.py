"""A call may do a part of a run; a later call does the rest."""

import time

import pytest

from ttdg.bench.jobs import KINDS, kind_of, required_jobs
from ttdg.bench.run import jobs_until, run_jobs
from ttdg.errors import UserError


def test_jobs_that_the_time_did_not_suffice_for_are_left_to_the_next_call(started, place, inline):
    run = started()
    over = run_jobs(dict(run.jobs), place, lambda: inline, end=time.monotonic())
    assert (over.done, over.left, over.failed) == (0, len(run.jobs), {})
    ended = run_jobs(dict(run.jobs), place, lambda: inline, end=time.monotonic() + 600)
    assert (ended.done, ended.left) == (len(run.jobs), 0)


@pytest.mark.parametrize("last", KINDS)
def test_jobs_up_to_a_kind_need_no_job_of_a_later_kind(planned, last):
    run = planned(
        {"name": "parts", "protocol": "leave-one-out", "methods": ["source", "nc-ttt"]},
        parts={"nc-ttt": {"steps": 1}},
    )
    kept = jobs_until(run.jobs, last)
    assert {kind_of(job) for job in kept.values()} <= set(list(KINDS)[: list(KINDS).index(last) + 1])
    assert all(required in kept for job in kept.values() for required in required_jobs(job))
    assert (last == "score") == (len(kept) == len(run.jobs))


def test_a_wrong_kind_of_job_is_one_sentence(planned):
    with pytest.raises(UserError, match="unknown kind of job 'training'"):
        jobs_until(planned().jobs, "training")
