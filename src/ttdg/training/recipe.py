"""How a source model is trained: one value, stored with the model."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ttdg.data import AUGMENTATIONS
from ttdg.errors import UserError, suggestion
from ttdg.networks import ENCODERS
from ttdg.prior import PriorSpec
from ttdg.training.losses import LOSSES

SAMPLINGS = (2, 4, 8, 16)
CHOICES = {"strides": ("v1", "v1.5"), "optimiser": ("sgd", "adamw"), "precision": ("auto", "32", "bf16")}


@dataclass(frozen=True)
class Recipe:
    """The paper's choices are the defaults where it makes one: SGD, momentum 0.9, lr 1e-3, batch 8."""

    encoder: str = "resnet50"
    encoder_weights: str | None = None  # torchvision-named ImageNet weights
    strides: str = "v1.5"
    steps: int = 4000
    batch: int = 8  # over all processes
    optimiser: str = "sgd"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    power: float = 0.9  # lr · (1 − step/steps)^power
    loss: str = "dice+ce"
    augmentation: str = "standard"
    balance: float = 0.5  # sites are drawn ∝ (number of cases)^balance
    universe: float = 0.1  # weight of L(𝒰); 0 trains no morphology prior
    precision: str = "auto"
    seed: int = 0
    deterministic: bool = False
    points: int = PriorSpec.points  # of 𝒰, a tissue
    sampling: int = PriorSpec.stride  # pixels from node to node
    edges: float = PriorSpec.edge_weight  # λ, of the edges in the matching
    tau: float = PriorSpec.tau  # of the posterior and the loss

    def __post_init__(self) -> None:
        choices = {"encoder": ENCODERS, "loss": LOSSES, "augmentation": AUGMENTATIONS, **CHOICES}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"unknown {name} {value!r}{suggestion(value, known)}")
        for name in ("steps", "batch", "lr", "points", "tau"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")
        if self.sampling not in SAMPLINGS or self.edges < 0:
            raise UserError(
                f"sampling is one of {', '.join(map(str, SAMPLINGS))} pixels, and edges at least 0"
            )
        if self.encoder_weights is not None and not Path(self.encoder_weights).is_file():
            raise UserError(f"no encoder weights at {self.encoder_weights}")

    def rate(self, step: int) -> float:
        """Poly decay."""
        return self.lr * (1 - step / self.steps) ** self.power

    def of_prior(self) -> dict[str, Any]:
        """Settings of the morphology prior: a tissue gives no more nodes than there are points to match them to."""
        nodes = min(PriorSpec.per_tissue, self.points)
        own = {"stride": self.sampling, "edge_weight": self.edges, "tau": self.tau}
        return {"points": self.points, "per_tissue": nodes, **own}

    def to_dict(self) -> dict[str, Any]:
        """What is stored with the model: the weights' file name, not where it lay."""
        weights = Path(self.encoder_weights).name if self.encoder_weights else None
        return asdict(self) | {"encoder_weights": weights}
