"""What may be in the folder that a prediction writes, before the first prediction writes it."""

from collections.abc import Sequence
from pathlib import Path

from ttdg.errors import UserError
from ttdg.newsite.audit_checks import files_below
from ttdg.newsite.inputs import is_output
from ttdg.newsite.journal import PARTS, SHARDS
from ttdg.newsite.revert import REVERTED

FOLDERS = ("masks", "overlays", "probabilities", PARTS, "state", SHARDS, REVERTED)
FILES = ("manifest.csv", "manifest.json", "review.csv", "report.html", "audit.jsonl")


def check_output_folder(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse a folder in which a prediction would replace or delete files that no prediction wrote.

    Args:
        out: The output folder.
        inputs: The files or folders with the images.
    """
    for path in inputs:
        for name in FOLDERS:
            if path.resolve().is_relative_to((out / name).resolve()):
                raise UserError(
                    f"{path} is in {out / name}, where answers are written; choose another output folder"
                )
    if is_output(out):
        return
    for name in FOLDERS:
        if any(files_below(out / name)):
            raise UserError(
                f"{out / name} holds files that no prediction wrote; choose another output folder"
            )
    for name in FILES:
        if (out / name).exists():
            raise UserError(f"no prediction wrote {out / name}; choose another output folder")
