"""Reuse of searches: options that another run has chosen for the same job are not searched again.

The key of a search contains everything it depends on: data, training, parts, candidate options and simulated hospitals.
What the stored search says of these must agree with its key, and its weights with those of the source model, if that is
here already.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job, Scoring, Training, Tuning, key_fields, to_dict
from ttdg.bench.run_file import read_run
from ttdg.checkpoints import read_card
from ttdg.errors import UserError
from ttdg.evaluation.tuned_options import chose_best, readable_searches, write_tuned

WORDS = {  # field of a tuning → what a sentence calls it
    "training": "source model", "search": "simulated hospitals", "configurations": "candidate options",
    "defaults": "default options", "fittings": "parts", "statistics": "BatchNorm statistics",
}  # fmt: skip


@dataclass(frozen=True)
class _Stored:
    """The searches of another run."""

    folder: Path
    jobs: Mapping[str, Job]
    finished: Mapping[str, Mapping[str, Any]]
    damaged: Mapping[str, UserError]


def reuse_searches(others: Sequence[Path], jobs: Mapping[str, Job], folder: RunFolder) -> tuple[str, ...]:
    """Write the planned searches that other runs have finished into the run's folder.

    Searches that the folder already has are kept.

    Args:
        others: Packed records, or folders of runs. The first that has a search counts.
        jobs: The plan.
        folder: The folder of this run.

    Returns:
        A sentence about the searches of each other run that this run needs and has to make again.
    """
    planned = {key: job for key, job in jobs.items() if isinstance(job, Tuning) and not folder.done(job)}
    stored = [_read(other) for other in others] if planned else []
    refused: dict[tuple[Path, str], list[str]] = {}
    for key, job in planned.items():
        reasons = {}
        for other in stored:
            reason = _difference(other, key, job, jobs, folder)
            if reason is None:
                write_tuned(folder.tuned(key), other.finished[key])
                break
            reasons[other.folder] = reason
        else:
            if _is_needed(key, jobs, folder):
                for path, reason in reasons.items():
                    if reason:
                        refused.setdefault((path, reason), []).append(job.method)
    return tuple(_remark(path, methods, reason) for (path, reason), methods in refused.items())


def _remark(path: Path, methods: Sequence[str], reason: str) -> str:
    number = "1 search" if len(methods) == 1 else f"{len(methods)} searches"
    return f"{path}: {number} of options ({', '.join(dict.fromkeys(methods))}) cannot be taken over, because {reason}"


def _read(other: Path) -> _Stored:
    finished, damaged = readable_searches(other)
    return _Stored(other, read_run(other).jobs, finished, damaged)


def _is_needed(key: str, jobs: Mapping[str, Job], folder: RunFolder) -> bool:
    scorings = [job for job in jobs.values() if isinstance(job, Scoring) and job.tuning == key]
    return not all(folder.done(job) for job in scorings)


def _difference(
    other: _Stored, key: str, job: Tuning, jobs: Mapping[str, Job], folder: RunFolder
) -> str | None:
    """Return why the search of another run is not that of a job; None if it is, empty if it has no such search."""
    if key in other.damaged:
        return "the stored search is damaged"
    if key in other.finished:
        return _contradiction(other.finished[key], job, _training(job, jobs), _weights(job, folder))
    closest = min(_differing(other, job, _training(job, jobs)), key=len, default=None)
    if closest is None:
        return ""
    if not closest:  # only what the keys leave out
        return "the stored ones have other keys"
    return f"the stored ones differ in: {', '.join(WORDS.get(name, name) for name in closest)}"


def _differing(other: _Stored, job: Tuning, training: Training) -> Iterator[list[str]]:
    """Yield what each finished search of the same method on the same sites has another value of."""
    planned = key_fields(job)
    for key in other.finished:
        theirs = other.jobs.get(key)
        if not isinstance(theirs, Tuning) or theirs.method != job.method:
            continue
        model = other.jobs.get(theirs.training)
        if isinstance(model, Training) and model.sources.keys() == training.sources.keys():
            fields = key_fields(theirs)
            yield [name for name in {**planned, **fields} if _plain(planned, name) != _plain(fields, name)]


def _plain(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    return list(value) if isinstance(value, tuple) else value


def _contradiction(
    search: Mapping[str, Any], job: Tuning, training: Training, weights: str | None
) -> str | None:
    """Return what a stored search says against being that of the job; None if nothing."""
    planned = to_dict(job)
    said = {
        "method": search["method"],
        "search": search.get("search"),
        "statistics": search.get("statistics", "own"),
        "configurations": [trial.get("options") for trial in search["trials"] if not trial.get("added")],
    }
    wrong = [WORDS.get(name, name) for name, value in said.items() if value != planned[name]]
    if sorted(search["sources"]) != sorted(training.sources):
        wrong.append("source sites")
    if wrong:
        return f"the stored search was changed: it states other values than its key for {', '.join(wrong)}"
    if not chose_best(search):
        return "the stored search was changed: it did not choose its best trial"
    if weights is not None and search.get("model") != weights:
        return "the stored search was made with other weights of the same training than those of this run"
    return None


def _training(job: Tuning, jobs: Mapping[str, Job]) -> Training:
    training = jobs[job.training]
    assert isinstance(training, Training)
    return training


def _weights(job: Tuning, folder: RunFolder) -> str | None:
    """Return the hash of the weights of the source model, if it was trained already."""
    with suppress(UserError):
        return read_card(folder.model(job.training)).sha256
    return None
