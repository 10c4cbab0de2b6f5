"""Checkpoints on disk: the network with its card, and the parts that methods need beside it."""

from ttdg.checkpoints.model import EMBEDDED, Model, ModelCard, file_hash, load, read_card, save, versions
from ttdg.checkpoints.parts import (
    COMMANDS,
    content_hash,
    fit_text,
    how_to_make,
    load_parts,
    part_digest,
    required_parts,
    save_part,
)

__all__ = [
    "COMMANDS", "EMBEDDED", "Model", "ModelCard", "content_hash", "file_hash", "fit_text", "how_to_make", "load",
    "load_parts", "part_digest", "read_card", "required_parts", "save", "save_part", "versions",
]  # fmt: skip
