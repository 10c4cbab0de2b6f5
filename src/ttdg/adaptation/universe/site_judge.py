"""The judge of a learned site: expects the Dice of the unadapted and of the adapted prediction of each image.

The candidates are the prediction that the judge of readings chose, which uses the source network alone, that of the
adapted network, averaged over sizes and mirror images, and the mean of both. All are measured on the features
of the source network, because the universe was trained on them. The regressors are fitted at simulated hospitals at
which learning was run (`ttdg.adaptation.universe.fit`).
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation.judge.candidates import CandidatePredictions
from ttdg.adaptation.judge.regressor import Prediction, Regressor, feature_matrix
from ttdg.adaptation.judge.signals import prediction_signals
from ttdg.checkpoints import reading_part
from ttdg.metrics import region_probabilities
from ttdg.prior import MorphologyPrior
from ttdg.prior.locations import PointLocations
from ttdg.prior.universe_signals import universe_signals
from ttdg.types import Part, Regions

CANDIDATES = ("not adapted", "adapted", "mean of adapted and not adapted")
UNADAPTED, ADAPTED, MEAN = range(3)
SITE_EVIDENCE = ("all", "no-universe")  # kinds of evidence for which regressors are fitted
GATE = "gate"  # the regressor of the gate, fitted to the source's answers and those of other methods, on all signals

Probabilities = Float[Tensor, "b l h w"]


def stack_candidates(unadapted: Probabilities, adapted: Probabilities) -> Float[Tensor, "3 b l h w"]:
    """The three candidates, in the order of `CANDIDATES`."""
    return torch.stack([unadapted, adapted, (unadapted + adapted) / 2])


@torch.no_grad()
def site_signals(
    prior: MorphologyPrior,
    locations: PointLocations,
    regions: Regions,
    images: Float[Tensor, "b c h w"],
    projected: Float[Tensor, "b v y x"],
    P: Float[Tensor, "3 b l h w"],
) -> dict[str, Float[Tensor, "3 b"]]:
    """Label-free signals of the candidates; `projected` are features of the source network."""
    logits = P.clamp(min=1e-7).log()
    V = projected.expand(len(P), *projected.shape)
    no_distance = images.new_zeros(len(images), 0)
    predictions = CandidatePredictions(logits, V, no_distance, images, len(P))
    R = region_probabilities(logits.flatten(0, 1), regions).unflatten(0, P.shape[:2])
    signals = prediction_signals(predictions, P, R, list(regions))
    return signals | universe_signals(prior, locations, V, P, regions)


def signal_names(signals: Sequence[str], evidence: str) -> list[str]:
    """The signals that a kind of evidence may use."""
    return [name for name in signals if evidence != "no-universe" or not name.startswith("universe")]


class SiteJudge:
    """A fitted regressor with the names of its signals.

    `gain_error` is the error of the gain that it expects of a whole site, as at simulated hospitals; judges that were
    fitted before it was measured have 0.
    """

    def __init__(self, part: Part, evidence: str, device: torch.device) -> None:
        with reading_part("judge"):
            self.names: list[str] = part.settings["site_signals"][evidence]
            self.regressor = Regressor.from_part(part, f"site.{evidence}.").to(device)
            self.gain_error = float(part.settings.get("site_gain_errors", {}).get(evidence, 0.0))

    def predict(self, signals: Mapping[str, Float[Tensor, "3 b"]]) -> Prediction:
        """Expected Dice of the candidates of every image."""
        return self.regressor.predict(feature_matrix(signals, self.names))
