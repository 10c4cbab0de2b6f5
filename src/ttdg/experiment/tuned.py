"""What a tuning chose, as the file that says so."""

from collections.abc import Mapping
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
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in run.glob("tuned/*.yaml")}
    if not found:
        return []
    in_order = dict(sorted(found.items(), key=lambda item: (item[1]["method"], item[1]["sources"])))
    text = yaml.safe_dump(in_order, sort_keys=False, allow_unicode=True, width=200, default_flow_style=None)
    write_text(folder / TOGETHER, text)
    return [folder / TOGETHER]


def chosen(path: Path) -> dict[str, Any]:
    """The options that `write_tuned` was told of."""
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["chosen"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} does not say what was chosen ({error.__class__.__name__}); remove it and give the same "
            "`ttdg bench` command again: only what it held is made anew"
        ) from None
