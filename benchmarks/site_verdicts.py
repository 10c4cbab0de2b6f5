"""Compare rules for the verdict on a whole learned site at simulated hospitals; no target site is read.

    python benchmarks/site_verdicts.py MODEL --data DATA [--judge FOLDER] [--hospitals 8]

Each hospital of held-out source images is learned by `universe` and answered. Printed for each hospital: the gain in
Dice over the judge's answers of the adapted prediction and of the answer (the mean of both where they agree), each with
the gain that the site's judge expects and its standard deviation. Then the mean gain over the judge's answers if the
site is never learned, always, or unless the expected gain of the adapted prediction, or of the answer, is negative by
more than two standard deviations, which contain the judge's error at a hospital that it has not seen. The hospitals
differ from those at which the judge was fitted.
"""

import math

import torch
from torch import Tensor

from hospital_trial import hospitals, load_model, trial_parser
from ttdg.adaptation import build_adapter
from ttdg.adaptation.universe.answer_rule import choose_candidates
from ttdg.adaptation.universe.fit import BATCH
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.adaptation.universe.site_judge import ADAPTED, UNADAPTED, SiteJudge
from ttdg.adaptation.universe.site_verdict import DOUBT
from ttdg.checkpoints import Model
from ttdg.metrics import dice, region_masks, region_probabilities

FORMS = ("adapted", "answer")


def measure(model: Model, images: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """True gains of all images, and expected gains by member, of the adapted prediction and of the answer."""
    learner, regions = build_adapter(model, "universe", {}), model.card.benchmark.regions
    assert isinstance(learner, UniverseLearner)
    assert learner.site_judge is not None
    learner.learn_always(images.split(BATCH))
    found: dict[str, list[tuple[Tensor, Tensor]]] = {form: [] for form in FORMS}
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        P, signals = learner.evidence(x)
        members, truth = learner.site_judge.predict(signals).members, region_masks(y, regions)
        true = torch.stack(
            [dice(region_probabilities(p.clamp(min=1e-7).log(), regions), truth).mean(1) for p in P]
        )
        picks = torch.full((len(x),), ADAPTED), choose_candidates(learner.rule, True, P, members, regions)
        for form, pick in zip(FORMS, picks, strict=True):
            expected = members.gather(2, pick.expand(len(members), -1)[..., None])[..., 0]
            gain = true.gather(0, pick[None])[0] - true[UNADAPTED]
            found[form].append((gain, expected - members[..., UNADAPTED]))
    return {
        form: (torch.cat([a for a, _ in values]), torch.cat([b for _, b in values], 1))
        for form, values in found.items()
    }


def main() -> None:
    arguments = trial_parser(__doc__, hospitals=8).parse_args()
    model = load_model(arguments)
    error = 100 * SiteJudge(model.parts["judge"], "all", torch.device("cpu")).gain_error
    rules: dict[str, list[float]] = {
        name: [] for name in ("always", *(f"unless the {f} loses" for f in FORMS))
    }
    print("images | " + " | ".join(f"{form}: true, expected" for form in FORMS), flush=True)
    for images, labels in hospitals(model, arguments):
        found = measure(model, images, labels)
        cells, answer = [], 100 * float(found["answer"][0].mean())
        rules["always"].append(answer)
        for form, (true, expected) in found.items():
            each = 100 * expected.mean(1)
            mean, spread = float(each.mean()), math.hypot(float(each.std()), error)
            cells.append(f"{100 * float(true.mean()):+.1f}, {mean:+.1f} ± {spread:.1f}")
            rules[f"unless the {form} loses"].append(answer if mean + DOUBT * spread >= 0 else 0.0)
        print(f"{len(images)} | " + " | ".join(cells), flush=True)
    for name, gains in rules.items():
        stopped = sum(gain == 0.0 for gain in gains)
        print(
            f"{name}: {sum(gains) / len(gains):+.2f}, worst {min(gains):+.1f}, {stopped} of {len(gains)} stopped"
        )


if __name__ == "__main__":
    main()
