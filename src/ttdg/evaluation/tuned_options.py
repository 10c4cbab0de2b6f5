"""What a tuning chose, as the file that says so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ttdg.errors import UserError
from ttdg.files import write_text

TOGETHER = "tuned.yaml"


def write_tuned(path: Path, about: Mapping[str, Any]) -> None:
    write_text(path, yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=True))


def pack_tuned(run: Path, folder: Path) -> list[Path]:
    """All searches of a run, or of packed records, with all they tried, as one file to publish; none where nothing was
    tuned."""
    if (run / TOGETHER).is_file():
        write_text(folder / TOGETHER, (run / TOGETHER).read_text(encoding="utf-8"))
        return [folder / TOGETHER]
    if not (found := searches(run)):
        return []
    in_order = dict(sorted(found.items(), key=lambda item: (item[1]["method"], item[1]["sources"])))
    text = yaml.safe_dump(in_order, sort_keys=False, allow_unicode=True, width=200, default_flow_style=None)
    write_text(folder / TOGETHER, text)
    return [folder / TOGETHER]


def searches(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Key → what a search says of itself, of a run or of packed records."""
    if (together := folder / TOGETHER).is_file():
        found = _read(together)
        return {key: _whole(search, together) for key, search in found.items()}
    paths = [path for path in folder.glob("tuned/*.yaml") if not path.name.startswith(".")]  # half-written
    return {path.stem: _whole(_read(path), path) for path in paths}


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, TypeError, ValueError):
        raise _torn(path) from None


def _torn(path: Path) -> UserError:
    return UserError(
        f"{path} does not say what was chosen; remove it and give the same `ttdg bench` command again: only what it "
        "held is made anew"
    )


def _whole(search: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """A search with all it must say."""
    if (
        not isinstance(search, Mapping)
        or not {"method", "sources", "chosen", "dice", "trials"} <= search.keys()
    ):
        raise _torn(path)
    return search


@dataclass(frozen=True)
class Choice:
    """What a search chose for a method, the sha256 of the model it ran with, the sites it saw, and the size of its
    batches if the file says it."""

    method: str
    options: Mapping[str, Any]
    model: str
    sources: tuple[str, ...]
    batch: int | None = None


def choices_for(path: Path, model: str, sites: Iterable[str], methods: Iterable[str]) -> dict[str, Choice]:
    """Method → what was chosen for the model of that sha256; methods that were not searched are not in it.

    A search for other weights says nothing of these, and one that saw a site to be scored has chosen on a target.
    """
    found = read_choices(path)
    mine = [choice for choice in found if choice.model == model]
    if not mine:
        others = ", ".join(sorted({choice.model[:12] for choice in found}))
        raise UserError(
            f"{path} was tuned for another model (sha256 {others}; this one is {model[:12]}); "
            "give that model, or run `ttdg tune` for this one"
        )
    if seen := sorted({site for choice in mine for site in choice.sources} & set(sites)):
        raise UserError(
            f"{path} was tuned on {', '.join(seen)}, and settings are never chosen on a site that is scored; "
            "score other sites, or leave --tuned out"
        )
    choices: dict[str, Choice] = {}
    for choice in mine:
        if choice.method in methods and choices.setdefault(choice.method, choice).options != choice.options:
            raise UserError(f"{path} holds several searches of {choice.method!r} for this model; use --set")
    return choices


def read_choices(path: Path) -> list[Choice]:
    """From the file of one `ttdg tune`, or from all searches of a run as `pack_tuned` writes them."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; `ttdg tune --out {path}` writes it")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        searches = (
            [{**found, **about, "method": name} for name, about in found["methods"].items()]
            if "methods" in found
            else found.values()
        )
        return [
            Choice(
                about["method"],
                dict(about["chosen"]),
                str(about["model"]),
                tuple(about["sources"]),
                _batch(about.get("search", about)),
            )
            for about in searches
        ]
    except (OSError, yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is not what `ttdg tune` writes ({error!r}); run it, or mend the path"
        ) from None


def _batch(search: Mapping[str, Any]) -> int | None:
    return None if search.get("batch") is None else int(search["batch"])


def chosen(path: Path) -> dict[str, Any]:
    """The options that `write_tuned` was told of."""
    try:
        return dict(_read(path)["chosen"])
    except (TypeError, ValueError, KeyError):
        raise _torn(path) from None
