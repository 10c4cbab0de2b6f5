"""Which job next. A value that changes only by what is told to it, so that it can be tested without a clock."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttdg.bench.executors import Outcome
from ttdg.bench.jobs import Job, Training, kind_of, model_of, required_jobs

TRIES = 3  # for a job whose worker died
AHEAD = 256  # ready jobs among which one is looked for that fits a worker


@dataclass
class Schedule:
    """Jobs wait for what they need, run, and end done, failed, or blocked by a failure before them."""

    jobs: Mapping[str, Job]
    done: set[str]  # found done when the run began, and since
    found: int = 0
    running: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by kind of job
    fatal: str | None = None
    warm: list[str] = field(default_factory=list)  # models that idle workers had last, the longest idle first

    def __post_init__(self) -> None:
        self.found = len(self.done)

    def ready(self, room: int) -> list[str]:
        """Up to `room` jobs that can start now: in the plan's order, but sooner those whose model a worker holds."""
        if self.fatal or room < 1:
            return []
        busy = self.done | self.running | self.failed.keys()
        waiting = (key for key in self.jobs if key not in busy)
        free = [key for key in waiting if all(need in self.done for need in required_jobs(self.jobs[key]))]
        warm, met = Counter(self.warm), Counter(self._model(key) for key in self.running)
        chosen: list[str] = []
        while free and len(chosen) < room:
            key = self._pick(free, warm, met)
            free.remove(key)
            chosen.append(key)
            met[self._model(key)] += 1
            warm[self._model(key)] -= 1
        return chosen

    def _pick(self, free: Sequence[str], warm: Counter[str], met: Counter[str]) -> str:
        """Of the next kind of job, one for a worker that has its model; else one whose model fewest work with."""
        kind = type(self.jobs[free[0]])
        if kind is Training:
            return free[0]
        alike = [key for key in free[:AHEAD] if type(self.jobs[key]) is kind]
        fits = (key for key in alike if warm[self._model(key)] > 0)
        return next(fits, None) or min(alike, key=lambda key: met[self._model(key)])

    def _model(self, key: str) -> str:
        return model_of(key, self.jobs[key])

    def start(self, key: str) -> None:
        self.running.add(key)
        if self.warm:  # a worker that has the model takes it, or else one that has another
            self.warm.remove(model if (model := self._model(key)) in self.warm else self.warm[0])
        self.tries[key] = self.tries.get(key, 0) + 1

    def end(self, outcome: Outcome) -> None:
        """A lost job may be tried again; any other failure is one."""
        self.running.discard(outcome.key)
        if not outcome.lost:
            self.warm.append(self._model(outcome.key))
        if outcome.error is None:
            self.done.add(outcome.key)
            self.seconds.setdefault(kind_of(self.jobs[outcome.key]), []).append(outcome.seconds)
        elif not outcome.lost or self.tries[outcome.key] >= TRIES:
            self.failed[outcome.key] = outcome.error
        if outcome.fatal:
            self.fatal = outcome.error

    def blocked(self) -> list[str]:
        """Jobs that cannot run because one they need has failed."""
        bad = set(self.failed)
        for key, job in self.jobs.items():  # what a job needs stands before it in the plan
            if bad.intersection(required_jobs(job)):
                bad.add(key)
        return [key for key in self.jobs if key in bad - self.failed.keys()]

    def over(self) -> bool:
        return not self.running and not self.ready(1)

    def left(self) -> list[str]:
        """Jobs that will still be done, if none fails."""
        gone = self.done | self.failed.keys() | set(self.blocked())
        return [key for key in self.jobs if key not in gone]

    def eta(self, slots: int) -> float | None:
        """Seconds until the end, from the mean of each kind so far; None before the first job has ended."""
        if not self.seconds:
            return None
        means = {kind: sum(values) / len(values) for kind, values in self.seconds.items()}
        typical = sum(means.values()) / len(means)
        return sum(means.get(kind_of(self.jobs[key]), typical) for key in self.left()) / slots
