from ttdg.bench.executors import MAX_TRIES, Outcome
from ttdg.bench.jobs import Training, model_of, required_jobs
from ttdg.bench.scheduler import Schedule


def drive(schedule, outcome=lambda key: Outcome(key, seconds=1.0), room=2):
    """Run everything; returns the order in which jobs started."""
    order = []
    while not schedule.over():
        for key in schedule.ready(room - len(schedule.running)):
            schedule.start(key)
            order.append(key)
        schedule.end(outcome(next(iter(schedule.running))))
    return order


def test_every_job_runs_once_and_after_what_it_needs(planned):
    jobs = planned(seeds=[0, 1]).jobs
    order = drive(Schedule(jobs, set()))
    assert sorted(order) == sorted(jobs)
    assert all(order.index(need) < order.index(key) for key in jobs for need in required_jobs(jobs[key]))


def test_what_is_done_is_not_done_again(planned):
    jobs = planned().jobs
    done = set(list(jobs)[:4])
    assert set(drive(Schedule(jobs, set(done)))) == jobs.keys() - done


def test_a_failure_blocks_what_needs_it_and_nothing_else(planned):
    jobs = planned().jobs
    broken = next(key for key, job in jobs.items() if isinstance(job, Training))
    schedule = Schedule(jobs, set())
    drive(schedule, lambda key: Outcome(key, "no" if key == broken else None, 1.0))
    assert set(schedule.failed) == {broken}
    assert {jobs[key].training for key in schedule.blocked()} == {broken}
    assert len(schedule.done) + 1 + len(schedule.blocked()) == len(jobs)


def test_a_lost_job_is_tried_again_a_few_times(planned):
    jobs = planned().jobs
    unlucky, lost = next(iter(jobs)), []

    def outcome(key, times):
        if key == unlucky and lost.count(key) < times:
            lost.append(key)
            return Outcome(key, "killed", 1.0, lost=True)
        return Outcome(key, None, 1.0)

    schedule = Schedule(jobs, set())
    drive(schedule, lambda key: outcome(key, MAX_TRIES - 1))
    assert len(schedule.done) == len(jobs)
    lost.clear()
    schedule = Schedule(jobs, set())
    drive(schedule, lambda key: outcome(key, MAX_TRIES))
    assert schedule.failed == {unlucky: "killed"}


def test_a_worker_goes_on_with_the_model_it_has(planned):
    """Two workers, three models: each model is opened once by a worker, and a second time only to help at the end."""
    methods = ["source", "norm", "tent", "alpha-bn", "dua", "sar"]
    jobs = planned({"name": "m", "protocol": "leave-one-out", "methods": methods}).jobs
    schedule, workers, opened = Schedule(jobs, set()), [None, None], 0
    held: list[str | None] = [None, None]
    while not schedule.over():
        for key in schedule.ready(workers.count(None)):
            schedule.start(key)
            idle = [number for number, at in enumerate(workers) if at is None]
            model = model_of(key, jobs[key])
            number = next((n for n in idle if held[n] == model), idle[0])
            opened += held[number] != model
            workers[number], held[number] = key, model
        number = next(n for n, at in enumerate(workers) if at is not None)
        schedule.end(Outcome(workers[number], seconds=1.0))
        workers[number] = None
    assert len(schedule.done) == len(jobs)
    assert opened <= 2 * 3 + 1  # 18 scorings in the plan's order on any worker would be up to 18


def test_free_workers_are_spread_over_the_models(planned):
    jobs = planned(seeds=[0, 1]).jobs
    models = {key for key, job in jobs.items() if isinstance(job, Training)}
    schedule = Schedule(jobs, set(models))
    assert {model_of(key, jobs[key]) for key in schedule.ready(6)} == models


def test_a_full_disk_stops_the_run(planned):
    schedule = Schedule(planned().jobs, set())
    order = drive(schedule, lambda key: Outcome(key, "full", fatal=True), room=1)
    assert len(order) == 1
    assert schedule.fatal == "full"


def test_the_time_left_falls_to_zero(planned):
    schedule = Schedule(planned().jobs, set())
    assert schedule.eta(1) is None
    drive(schedule)
    assert schedule.eta(1) == 0
