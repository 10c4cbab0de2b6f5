"""The settings of source training, stored with the model. Importing them does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ttdg.arguments import checked_seed, whole_number
from ttdg.errors import UserError, suggestion

CHOICES: Mapping[str, Sequence[Any]] = {
    "encoder": ("light", "resnet18", "resnet34", "resnet50"),
    "strides": ("v1", "v1.5"),
    "optimiser": ("sgd", "adamw"),
    "loss": ("ce", "dice+ce"),
    "augmentation": ("none", "standard", "strong"),
    "precision": ("auto", "32", "bf16"),
    "universe_loss": ("repaired", "literal"),
    "class_matrix": ("printed", "masked", "none"),
}
SAMPLINGS = (2, 4, 8, 16)
POSITIVE = ("steps", "batch", "lr", "points", "tau")
WHOLE = ("steps", "batch", "points")
OPTIONAL = (
    "fourier",
    "photometric",
    "mixstyle",
    "average",
)  # stored only if they are not 0, that is, not off
LATER = {"universe_loss": "repaired", "class_matrix": "printed"}  # stored only if they differ from this
REPAIRED_ONLY = ("edges", "tau")  # fields that the literal universe loss does not use
FITTING_AUGMENTATION = "standard"  # of priors and parts fitted to a finished network; no job key names it


def _setting(default: Any, description: str) -> Any:
    """A field with a description, which the command line shows as its help."""
    return field(default=default, metadata={"help": description})


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    The defaults are those of the strongest source that was found without a target: optimiser and loss on held-out
    source images, augmentation, length and average by nested leave-one-site-out among source sites
    (docs/measurements/sources.md). The paper trains with SGD, momentum 0.9, learning rate 1e-3 and batch 8.
    `from_dict` reads a stored recipe.
    """

    encoder: str = _setting("resnet50", "Encoder: light, resnet18, resnet34 or resnet50.")
    encoder_weights: str | None = _setting(None, "File of ImageNet weights with torchvision's names.")
    strides: str = _setting(
        "v1.5", "ResNet variant that the encoder weights expect: v1.5 (torchvision) or v1 (Caffe, Keras)."
    )
    steps: int = _setting(4800, "Training steps.")
    batch: int = _setting(16, "Images per step, over all processes.")
    optimiser: str = _setting("adamw", "Optimiser: sgd or adamw.")
    lr: float = _setting(3e-4, "Initial learning rate; the paper has 1e-3 with sgd.")
    momentum: float = _setting(0.9, "Momentum of SGD.")
    weight_decay: float = _setting(1e-4, "Weight decay.")
    power: float = _setting(0.9, "Exponent of the decay: the rate is lr · (1 − step/steps)^power.")
    loss: str = _setting("dice+ce", "Supervised loss: ce or dice+ce.")
    augmentation: str = _setting("strong", "Augmentation: none, standard or strong.")
    balance: float = _setting(0.5, "Sites are drawn in proportion to (number of cases)^balance.")
    universe: float = _setting(0.1, "Weight of L(𝒰), which trains the morphology prior; 0 trains no prior.")
    universe_loss: str = _setting(
        "repaired",
        "Training of the universe: repaired (this project's) or literal (the paper's Algorithm 1 as printed; its "
        "weight in the paper is 1).",
    )
    class_matrix: str = _setting(
        "printed",
        "Class matrix W of the literal universe loss: printed (𝐖ᵀ𝐀𝐖), masked (edges within a class) or none.",
    )
    precision: str = _setting("auto", "Precision: auto (bf16 on a GPU), 32 or bf16.")
    seed: int = _setting(0, "Seed of the initial weights, the batches and the augmentation.")
    deterministic: bool = _setting(False, "Use deterministic algorithms only.")
    points: int = _setting(
        40, "Points of the universe 𝒰 per tissue; of all of 𝒰 in a literal classification."
    )
    sampling: int = _setting(4, "Distance of neighbouring graph nodes, in pixels.")
    edges: float = _setting(0.0, "λ, the weight of the edges in the matching.")
    tau: float = _setting(0.1, "Temperature of the posterior and of L(𝒰).")
    fourier: float = _setting(
        0.0, "Probability that an image takes low-frequency amplitudes of an image of another site."
    )
    photometric: float = _setting(
        0.0, "Probability that light, colours, sharpness and noise of an image are changed strongly."
    )
    mixstyle: float = _setting(
        0.0, "Probability that feature statistics are mixed between the images of a batch (MixStyle)."
    )
    average: float = _setting(
        0.999, "Decay of a moving average of the weights, which is kept; 0 keeps the last weights."
    )

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UserError(f"unknown {name} {value!r}{suggestion(str(value), choices)}")
        for name in (*POSITIVE, *OPTIONAL, "edges"):
            if type(getattr(self, name)) not in (int, float):
                raise UserError(
                    f"recipe: {name} must be a number, not {getattr(self, name)!r}; write numbers without quotes, and "
                    "1e-3 as 1.0e-3 or 0.001"
                )
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")
        for name in WHOLE:
            whole_number(name, getattr(self, name))
        checked_seed(self.seed)
        if self.sampling not in SAMPLINGS or self.edges < 0:
            raise UserError(
                f"sampling is one of {', '.join(map(str, SAMPLINGS))} pixels, and edges at least 0"
            )
        for name in OPTIONAL:
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        self._check_universe_loss()
        if self.average == 1:
            raise UserError("average must be below 1: with a decay of 1 the average never changes")
        if self.encoder_weights is not None and not Path(self.encoder_weights).is_file():
            raise UserError(f"no encoder weights at {self.encoder_weights}")

    def _check_universe_loss(self) -> None:
        """Raise if a field is set that the chosen universe loss does not use."""
        names = REPAIRED_ONLY if self.universe_loss == "literal" else ("class_matrix",)
        for name in names:
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"{name} has no effect with the universe loss {self.universe_loss!r}; leave it out, or choose the "
                    "other universe loss"
                )

    def check_task(self, task: str) -> None:
        """Raise if a field does not fit the task of the benchmark."""
        if task != "classification":
            return
        if self.loss != "ce":
            raise UserError(
                f"the loss {self.loss!r} needs structures, which a classification does not have; choose the loss 'ce'"
            )
        if self.universe and self.universe_loss == "literal" and self.class_matrix != "none":
            raise UserError(
                f"class_matrix {self.class_matrix!r} compares the classes of the nodes of an image, of which a "
                "classification has one; choose class_matrix 'none', as the paper does"
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], encoder_weights: str | None = None) -> "Recipe":
        """Make a recipe from what `to_dict` returned.

        A missing field of `OPTIONAL` is 0 and one of `LATER` has the value there, whatever their defaults are.

        Args:
            fields: The stored recipe. It does not tell where the encoder weights are.
            encoder_weights: File of the encoder weights.
        """
        off = dict.fromkeys(OPTIONAL, 0.0)
        return cls(**{**off, **LATER, **fields, "encoder_weights": encoder_weights})

    def rate(self, step: int) -> float:
        """Learning rate after `step` steps (polynomial decay)."""
        return self.lr * (1 - step / self.steps) ** self.power

    def prior_settings(self) -> dict[str, Any]:
        """Fields of `PriorSpec`, or of `LiteralSpec`.

        An image gives at most as many nodes per tissue as there are points to match.
        """
        if self.universe_loss == "literal":
            literal = {"per_tissue": self.points, "class_matrix": self.class_matrix}
            return {"points": self.points, "stride": self.sampling, **literal}
        from ttdg.prior import PriorSpec

        return {
            "points": self.points,
            "per_tissue": min(PriorSpec.per_tissue, self.points),
            "stride": self.sampling,
            "edge_weight": self.edges,
            "tau": self.tau,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return what is stored with the model, and identifies a training job.

        Of the encoder weights only the file name is stored, without its folder. Fields of `OPTIONAL` are left out
        while they are 0, and fields of `LATER` while they have the value there, so that recipes, models and job keys
        from before these fields stay valid; `from_dict` fills them in again.
        """
        weights = Path(self.encoder_weights).name if self.encoder_weights else None
        values = asdict(self) | {"encoder_weights": weights}
        later = {name for name, value in LATER.items() if values[name] == value}
        off = later | {name for name in OPTIONAL if not values[name]}
        return {name: value for name, value in values.items() if name not in off}
