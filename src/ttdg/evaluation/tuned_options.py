"""Files with tuned options: one per search of a run, all searches of a run packed, or the file of one tuning."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ttdg.errors import UserError
from ttdg.fields import wrong_field
from ttdg.files import write_text

PACKED = "tuned.yaml"  # all searches of a run in one file


def read_search(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Read the methods tuned so far. A file of another search raises instead of being overwritten."""
    if not path.exists():
        return {}
    try:
        found = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        methods = dict(found.pop("methods"))
    except (OSError, yaml.YAMLError, RecursionError, TypeError, ValueError, KeyError):
        raise UserError(f"{path} holds no search; choose another file or remove it") from None
    if other := {name: found.get(name) for name in {**found, **about} if found.get(name) != about.get(name)}:
        said = ", ".join(f"{name} {value}" for name, value in other.items())
        raise UserError(f"{path} holds another search ({said}); choose another file or remove it")
    return methods


def write_search(path: Path, about: Mapping[str, Any], methods: Mapping[str, Any]) -> None:
    """Write the search, and for each method the choice and every trial."""
    content = {**about, "methods": dict(methods)}
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_tuned(path: Path, about: Mapping[str, Any]) -> None:
    """Write one search as yaml."""
    write_text(path, yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=True))


def pack_tuned(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Write all searches of runs, or of packed records, with all trials into one file; return the files written.

    Of several runs with the same search the first counts.
    """
    found = {key: search for run in reversed(runs) for key, search in searches(run).items()}
    if not found:
        return []
    in_order = dict(sorted(found.items(), key=lambda item: (item[1]["method"], item[1]["sources"], item[0])))
    text = yaml.safe_dump(in_order, sort_keys=False, allow_unicode=True, width=200, default_flow_style=None)
    write_text(folder / PACKED, text)
    return [folder / PACKED]


def searches(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return key → search, of a run or of packed records."""
    found, damaged = readable_searches(folder)
    for error in damaged.values():
        raise error
    return found


def readable_searches(folder: Path) -> tuple[dict[str, Mapping[str, Any]], dict[str, UserError]]:
    """Return key → search, of a run or of packed records, and key → error of the damaged ones."""
    if (packed := folder / PACKED).is_file():
        readers = {key: partial(_complete, search, packed) for key, search in _read(packed).items()}
    else:
        paths = [path for path in folder.glob("tuned/*.yaml") if not path.name.startswith(".")]  # temporary
        readers = {path.stem: partial(_read_complete, path) for path in paths}
    found, damaged = dict[str, Mapping[str, Any]](), dict[str, UserError]()
    for key, read in readers.items():
        try:
            found[key] = read()
        except UserError as error:
            damaged[key] = error
    return found, damaged


def _read_complete(path: Path) -> Mapping[str, Any]:
    return _complete(_read(path), path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, RecursionError, TypeError, ValueError):
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} does not hold a complete search; remove it and run the same benchmark again, which repeats this "
        "search only"
    )


def _complete(search: Any, path: Path) -> Mapping[str, Any]:
    """Return the search if it has all required fields; raise otherwise."""
    if (
        not isinstance(search, Mapping)
        or not {"method", "sources", "chosen", "dice", "trials"} <= search.keys()
        or not isinstance(search["chosen"], Mapping)
        or not _numbers(search["trials"])
        or not isinstance(search.get("error", 0.0), int | float)
    ):
        raise _damaged(path)
    return search


def _numbers(trials: Any) -> bool:
    """Return whether each trial has options and a Dice."""
    return isinstance(trials, list) and all(
        isinstance(trial, Mapping) and "options" in trial and isinstance(trial.get("dice"), int | float)
        for trial in trials
    )


def chose_best(search: Mapping[str, Any]) -> bool:
    """True if a search chose its best trial, and states the Dice of that trial."""
    scores = {json.dumps(trial["options"], sort_keys=True): trial["dice"] for trial in search["trials"]}
    chosen = scores.get(json.dumps(search["chosen"], sort_keys=True), math.inf)
    best = not any(score > chosen for score in scores.values())
    return best and (search["dice"] == chosen or math.isnan(chosen))


def recorded_spread(search: Mapping[str, Any]) -> float:
    """Return the largest minus the smallest Dice of the trials of a search, in percent."""
    scores = [trial["dice"] for trial in search["trials"] if not math.isnan(trial["dice"])]
    return float(max(scores, default=0.0) - min(scores, default=0.0))


def indistinguishable(search: Mapping[str, Any]) -> bool:
    """True if the trials differ by no more than a standard error, so that the choice between them is chance.

    Searches that were recorded without the error are never said to be indistinguishable.
    """
    return len(search["trials"]) > 1 and recorded_spread(search) <= search.get("error", -1.0)


@dataclass(frozen=True)
class Choice:
    """The options that a search chose for one method."""

    method: str
    options: Mapping[str, Any]
    model: str  # sha256 of the weights it was tuned for
    sources: tuple[str, ...]  # the sites it was tuned on
    batch: int | None = None  # the batch size it was tuned at; None in old files
    stream: str = "online"  # the kind of stream it was tuned on
    statistics: str = "own"  # the BatchNorm statistics it was tuned with


def choices_for(
    path: Path,
    model: str,
    sites: Iterable[str],
    methods: Iterable[str],
    batch: int | None = None,
    stream: str | None = None,
    statistics: Mapping[str, str] | None = None,
) -> dict[str, Choice]:
    """Return method → choice for the model with this sha256; methods that were not tuned are absent.

    Of several searches of a method, those at this batch size count if there are any, and of these those on this stream.
    `statistics` maps methods to the BatchNorm statistics that they will run with; searches with others do not count.

    Raises:
        UserError: If the file was tuned for other weights, or on a site that is to be scored.
    """
    found = read_choices(path)
    mine = [choice for choice in found if choice.model == model]
    if not mine:
        others = ", ".join(sorted({choice.model[:12] for choice in found}))
        raise UserError(
            f"{path} was tuned for another model (sha256 {others}; this one is {model[:12]}); "
            "use that model, or tune this one"
        )
    if seen := sorted({site for choice in mine for site in choice.sources} & set(sites)):
        raise UserError(
            f"{path} was tuned on {', '.join(seen)}, and settings are never chosen on a site that is scored; "
            "score other sites, or use no tuned options"
        )
    choices: dict[str, Choice] = {}
    for method in methods:
        base = (statistics or {}).get(method, "own")
        own = [choice for choice in mine if (choice.method, choice.statistics) == (method, base)]
        own = [choice for choice in own if choice.batch == batch] or own
        own = [choice for choice in own if choice.stream == stream] or own
        if any(choice.options != own[0].options for choice in own):
            raise UserError(f"{path} holds several searches of {method!r}; give the options by hand")
        choices |= {method: own[0]} if own else {}
    return choices


def read_choices(path: Path) -> list[Choice]:
    """Read the choices from the file of one tuning, or from the packed searches of a run."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; tune the methods first, which writes it")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        searches = (
            [{**found, **about, "method": name} for name, about in found["methods"].items()]
            if "methods" in found
            else found.values()
        )
        choices = [
            Choice(
                about["method"],
                dict(about["chosen"]),
                str(about["model"]),
                tuple(about["sources"]),
                _batch(about.get("search", about)),
                str(about.get("search", about).get("stream", "online")),
                str(about.get("statistics", "own")),
            )
            for about in searches
        ]
        if wrong := next(filter(None, map(wrong_field, choices)), None):
            raise ValueError(f"{wrong} of another kind")
        return choices
    except (
        OSError,
        yaml.YAMLError,
        RecursionError,
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ArithmeticError,
    ) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{path} is not a file of tuned options ({why}); tune the methods again, or correct the path"
        ) from None


def _batch(search: Mapping[str, Any]) -> int | None:
    return None if search.get("batch") is None else int(search["batch"])


def chosen(path: Path) -> dict[str, Any]:
    """Return the chosen options of a file that `write_tuned` wrote."""
    try:
        return dict(_read(path)["chosen"])
    except (TypeError, ValueError, KeyError):
        raise _damaged(path) from None
