"""Compare forms of the expected Dice of `universe` at simulated hospitals; no target site is read.

    python benchmarks/expected_dice.py MODEL --data DATA [--judge FOLDER] [--hospitals 6]

Each hospital of held-out source images is learned and answered. Two judges expect a Dice: that of the site, which knows
the candidates of the learned network, and that of readings, which knows the unadapted prediction only. Printed for each
hospital and on average: the rank correlation of the expected and the true Dice of the answers, and the mean absolute
error, for the judge of the site alone, the judge of readings alone, the mean of both, which `universe` uses, and the
site's expectation with its level at the unadapted prediction moved to the mean of both. The hospitals differ from those
at which the judges were fitted.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from hospital_trial import hospitals, load_model, trial_parser
from ttdg.adaptation import build_adapter
from ttdg.adaptation.universe.answer_rule import choose_candidates
from ttdg.adaptation.universe.fit import BATCH
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.adaptation.universe.site_judge import UNADAPTED
from ttdg.checkpoints import Model
from ttdg.metrics import dice, region_masks, region_probabilities

FORMS = ("site", "readings", "mean", "moved")


def expectations(model: Model, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """For each batch of a hospital: the true Dice of the answers, then the expected Dice of each form."""
    learner, regions = build_adapter(model, "universe", {}), model.card.benchmark.regions
    assert isinstance(learner, UniverseLearner)
    assert learner.site_judge is not None
    learner.learn_always(images.split(BATCH))
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        P, signals = learner.evidence(x)
        predicted, truth = learner.site_judge.predict(signals), region_masks(y, regions)
        picked = choose_candidates(learner.rule, True, P, predicted.members, regions)
        answer = P[picked, torch.arange(len(x))].clamp(min=1e-7).log()
        readings = learner.reader.read(x).assessment.dice.to(predicted.dice)
        site = predicted.dice.gather(1, picked[:, None])[:, 0]
        moved = site + (readings - predicted.dice[:, UNADAPTED]) / 2
        true = dice(region_probabilities(answer, regions), truth).mean(1)
        yield torch.stack([true, site, readings, (site + readings) / 2, moved])


def main() -> None:
    arguments = trial_parser(__doc__, hospitals=6).parse_args()
    model = load_model(arguments)
    found = []
    for images, labels in hospitals(model, arguments):
        batches = expectations(model, images, labels)
        true, *forms = torch.cat([*batches], 1).numpy()
        found.append([(spearmanr(form, true)[0], 100 * np.abs(form - true).mean()) for form in forms])
        show(f"{len(images)} images", found[-1])
    show("mean", np.nanmean(found, axis=0).tolist())


def show(name: str, values: list[tuple[float, float]]) -> None:
    """Print rank correlation and error of each form."""
    cells = (f"{form} {rank:.2f}, {error:.1f}" for form, (rank, error) in zip(FORMS, values, strict=True))
    print(f"{name}: {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
