"""Checkpoints on disk: a network, its model card, and the parts that methods need besides the network.

* `Model`: a network with its card and parts; `load` reads one, `save` writes one.
* `ModelCard`: architecture, benchmark, training recipe and validation scores; `read_card` reads it without the weights.
* `EMBEDDED`: names of the models that are included in the package; `is_included` says whether a path means one.
* `load_parts`, `save_part`: read all parts of a checkpoint; write one part.
* `reading_part`: a context in which an adapter reads a part, so that damage is a `UserError`.
* `how_to_fit`, `how_to_make`, `COMMANDS`: how a part is fitted, and with which command.
* `FOREIGN`: names of the parts that `ttdg.fit` makes for a network from outside the project.
* `fit_description`: how a part was fitted, as text.
* `content_hash`, `file_hash`: hashes of tensors and of a file.
* `versions`: versions of Python and of the packages that affect results.
"""

from ttdg.checkpoints.model import (
    EMBEDDED,
    Model,
    ModelCard,
    file_hash,
    is_included,
    load,
    read_card,
    save,
    versions,
)
from ttdg.checkpoints.parts import (
    COMMANDS,
    FOREIGN,
    content_hash,
    fit_description,
    how_to_fit,
    how_to_make,
    load_parts,
    reading_part,
    save_part,
)

__all__ = [
    "COMMANDS", "EMBEDDED", "FOREIGN", "Model", "ModelCard", "content_hash", "file_hash", "fit_description",
    "how_to_fit", "how_to_make", "is_included", "load", "load_parts", "read_card", "reading_part", "save", "save_part",
    "versions",
]  # fmt: skip
