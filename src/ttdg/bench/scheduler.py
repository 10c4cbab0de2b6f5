"""The order of jobs. The schedule has no clock and starts no process, so tests can drive it directly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ttdg.bench.executors import MAX_TRIES, Outcome
from ttdg.bench.jobs import Job, Training, kind_of, model_of, required_jobs, without_views

LOOKAHEAD = (
    64  # ready jobs searched for one whose model a worker has in memory; more would leave the plan's order
)


@dataclass
class Schedule:
    """State of all jobs: waiting, running, done, failed, or blocked because a required job failed."""

    jobs: Mapping[str, Job]
    done: set[str]  # finished before the run or during it
    found: int = 0  # how many were finished before the run
    running: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # durations of the jobs done by this run
    fatal: str | None = None
    warm: list[str] = field(
        default_factory=list
    )  # models in the memory of idle workers, the longest idle first

    def __post_init__(self) -> None:
        self.found = len(self.done)
        # Scoring without views → scorings that also write its record.
        self.with_views: dict[str, list[str]] = {}
        for key, job in self.jobs.items():
            plain = without_views(job)
            if plain is not None and plain in self.jobs:
                self.with_views.setdefault(plain, []).append(key)

    def ready(self, room: int) -> list[str]:
        """Return up to `room` jobs that can start now, in plan order, but jobs with a loaded model first."""
        if self.fatal or room < 1:
            return []
        busy = self.done | self.running | self.failed.keys()
        waiting = (key for key in self.jobs if key not in busy)
        free = [key for key in waiting if self._can_start(key)]
        warm, in_use = Counter(self.warm), Counter(self._model(key) for key in self.running)
        chosen: list[str] = []
        while free and len(chosen) < room:
            key = self._pick(free, warm, in_use)
            free.remove(key)
            chosen.append(key)
            in_use[self._model(key)] += 1
            warm[self._model(key)] -= 1
        return chosen

    def _can_start(self, key: str) -> bool:
        """True if all that a job requires is done, and no job that is still to end writes its record."""
        return all(need in self.done for need in required_jobs(self.jobs[key])) and all(
            other in self.done or other in self.failed for other in self.with_views.get(key, ())
        )

    def _pick(self, free: Sequence[str], warm: Counter[str], in_use: Counter[str]) -> str:
        """Choose among jobs of the next kind: one with a loaded model, else one whose model the fewest jobs use."""
        kind = type(self.jobs[free[0]])
        if kind is Training:
            return free[0]
        alike = [key for key in free[:LOOKAHEAD] if type(self.jobs[key]) is kind]
        fits = (key for key in alike if warm[self._model(key)] > 0)
        return next(fits, None) or min(alike, key=lambda key: in_use[self._model(key)])

    def _model(self, key: str) -> str:
        return model_of(key, self.jobs[key])

    def start(self, key: str) -> None:
        """Mark a job as running."""
        self.running.add(key)
        if self.warm:  # the executor prefers a worker with this model, as here
            self.warm.remove(model if (model := self._model(key)) in self.warm else self.warm[0])
        self.tries[key] = self.tries.get(key, 0) + 1

    def end(self, outcome: Outcome, also: Iterable[str] = ()) -> None:
        """Record the outcome of a job; a job whose worker died runs again, up to `MAX_TRIES` times.

        `also` are other jobs whose results it wrote.
        """
        self.running.discard(outcome.key)
        self.done.update(also)
        if not outcome.lost:
            self.warm.append(self._model(outcome.key))
        if outcome.error is None:
            self.done.add(outcome.key)
            self.seconds[outcome.key] = outcome.seconds
        elif not outcome.lost or self.tries[outcome.key] >= MAX_TRIES:
            self.failed[outcome.key] = outcome.error
        if outcome.fatal:
            self.fatal = outcome.error

    def blocked(self) -> list[str]:
        """Return the jobs that cannot run because a job they require, directly or not, has failed."""
        broken = set(self.failed)
        for key, job in self.jobs.items():  # required jobs come first in the plan
            if broken.intersection(required_jobs(job)):
                broken.add(key)
        return [key for key in self.jobs if key in broken - self.failed.keys()]

    def over(self) -> bool:
        """True if no job is running and none can start."""
        return not self.running and not self.ready(1)

    def left(self) -> list[str]:
        """Return the jobs that are still to finish if no further job fails."""
        ended = self.done | self.failed.keys() | set(self.blocked())
        return [key for key in self.jobs if key not in ended]

    def eta(self, slots: int) -> float | None:
        """Estimate the seconds until the end from the mean duration of each kind; None before a job has ended."""
        if not self.seconds:
            return None
        by_kind: dict[str, list[float]] = {}
        for key, seconds in self.seconds.items():
            by_kind.setdefault(kind_of(self.jobs[key]), []).append(seconds)
        means = {kind: sum(values) / len(values) for kind, values in by_kind.items()}
        typical = sum(means.values()) / len(means)
        return sum(means.get(kind_of(self.jobs[key]), typical) for key in self.left()) / slots
