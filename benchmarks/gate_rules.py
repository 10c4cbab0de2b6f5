"""Compare rules of the gate at simulated hospitals of held-out source images; no target site is read.

    python benchmarks/gate_rules.py MODEL --data DATA [--judge FOLDER] [--hospitals 12] [--methods norm,tent] [--folder]

Each method answers every hospital online, in batches of 4, without a gate. The answers are then judged by the regressor
of a learned site and by that of the gate, under several bounds. `site` is a test that the gate does not have: while the
mean expected gain over all images so far, at least 16, is below this bound, all answers are the source's. `averaged` is
the Dice of both answers above which an accepted answer is given as their mean; 1 gives none. Printed for each rule:
gain in Dice over the source and the share of images that lose more than 5 Dice, without and with the rule.
An answer that is rolled back undoes no update here. With `--folder`, methods that learn a site learn each hospital as a
whole and then answer it; a last row shows the present rule if what was learned is undone where it rejects more than
half of the answers. The hospitals differ from those at which the judge was fitted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hospital_trial import hospitals, load_model, trial_parser
from ttdg.adaptation import SiteLearner, build_adapter, seed_all
from ttdg.adaptation.gate_tests import GateTests
from ttdg.adaptation.universe.fit import BATCH
from ttdg.adaptation.universe.gate_pairs import pair_signals
from ttdg.adaptation.universe.site_judge import ADAPTED, GATE, UNADAPTED, SiteJudge
from ttdg.checkpoints import Model
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.safety.gate import answer_overlap, failed_tests, mean_answer
from ttdg.safety.policy import GatePolicy

HARM = 0.05  # loss of Dice that counts as harm
ENOUGH = 16  # images from which the expected gain of a site is measured
OPTIONS = {"self-training": {"lr": 5e-4, "draw": 8}}  # as in experiments/gate-cpu.yaml
RULES: Sequence[tuple[str, float, float | None, float]] = [  # regressor, close, site, averaged
    ("all", 1.0, None, 1.0), (GATE, 1.0, None, 1.0), (GATE, 0.95, None, 1.0), (GATE, 0.9, None, 1.0),
    (GATE, 0.95, -0.02, 1.0), (GATE, 0.95, 0.0, 1.0), (GATE, 0.95, None, 0.9), (GATE, 0.95, None, 0.7),
    (GATE, 0.95, None, 0.5), (GATE, 0.95, None, 0.0),
]  # fmt: skip
PRESENT = (GATE, 0.95, None, 0.7)


class Answers(NamedTuple):
    """Answers of a method at one hospital: true gains without the gate, and with each rule."""

    gains: Tensor
    kept: list[Tensor]
    rejected: Tensor  # by the present rule


def measure(model: Model, images: Tensor, labels: Tensor, method: str, folder: bool) -> Answers:
    regions = model.card.benchmark.regions
    tests = GateTests(model, regions, GatePolicy())
    judges = {kind: SiteJudge(model.parts["judge"], kind, images.device) for kind in ("all", GATE)}
    options = OPTIONS.get(method, {}) | ({"folder_steps": 150} if folder else {})
    adapter = build_adapter(model, method, options)
    respond: Callable[[Tensor], Tensor] = adapter
    if folder:
        assert isinstance(adapter, SiteLearner)
        adapter.learn(images.split(BATCH))
        respond = adapter.predict_frozen
    gains: list[Tensor] = []
    rejected: list[Tensor] = []
    kept: list[list[Tensor]] = [[] for _ in RULES]
    expected: dict[str, list[Tensor]] = {kind: [] for kind in judges}
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        answer, source = respond(x).detach(), tests.shadow(x)[0]
        signals, truth = pair_signals(tests.reader, x, source, answer)[1], region_masks(y, regions)
        mean, agreed = mean_answer(source, answer), answer_overlap(source, answer, regions)
        after, before, both = (
            dice(region_probabilities(z, regions), truth).mean(1) for z in (answer, source, mean)
        )
        gains.append(after - before)
        pairs = {}
        for kind, judge in judges.items():
            members = judge.predict(signals).members
            pairs[kind] = members[..., UNADAPTED], members[..., ADAPTED]
            expected[kind].append((pairs[kind][1] - pairs[kind][0]).mean(0))
        for (kind, close, site, averaged), found in zip(RULES, kept, strict=True):
            policy = GatePolicy(close=close)
            bad = torch.tensor([bool(r) for r in failed_tests(source, answer, regions, policy, pairs[kind])])
            if (kind, close, site, averaged) == PRESENT:
                rejected.append(bad)
            seen = torch.cat(expected[kind])
            losing = site is not None and len(seen) >= ENOUGH and float(seen.mean()) < site
            given = torch.where(agreed > averaged, both, after) - before
            found.append(torch.zeros_like(given) if losing else given.where(~bad, 0.0))
    return Answers(torch.cat(gains), [torch.cat(found) for found in kept], torch.cat(rejected))


def undo(answers: Answers) -> Answers:
    """The answers if what was learned is undone where more than half of them are rejected."""
    learned = answers.rejected.double().mean() <= GatePolicy().most_rejected
    return answers._replace(kept=[kept * learned for kept in answers.kept])


def effect(found: Sequence[Answers], rule: int) -> str:
    """Gain and share of harmed images, without and with a rule."""
    both = (
        torch.cat([answers.gains for answers in found]),
        torch.cat([answers.kept[rule] for answers in found]),
    )
    return " -> ".join(f"{100 * g.mean():+.1f}, {100 * (g < -HARM).double().mean():.1f} %" for g in both)


def main() -> None:
    parser = trial_parser(__doc__, hospitals=12)
    parser.add_argument("--methods", default="norm,tent,cotta,alpha-bn,self-training")
    parser.add_argument("--folder", action="store_true", help="learn each hospital first, then answer it")
    arguments = parser.parse_args()
    model, methods = load_model(arguments), arguments.methods.split(",")
    found: dict[str, list[Answers]] = {method: [] for method in methods}
    for images, labels in hospitals(model, arguments):
        for method in methods:
            seed_all(0)
            found[method].append(measure(model, images, labels, method, arguments.folder))
    print("regressor | close | site | averaged | " + " | ".join(methods))
    for number, rule in enumerate(RULES):
        print(" | ".join(map(str, rule)), *(effect(found[m], number) for m in methods), sep=" | ")
    if arguments.folder:
        undone = {m: [undo(answers) for answers in found[m]] for m in methods}
        present = RULES.index(PRESENT)
        print(
            " | ".join(map(str, PRESENT)), *(effect(undone[m], present) for m in methods), "undone", sep=" | "
        )
    print(f"{sum(len(answers.gains) for answers in found[methods[0]])} images")


if __name__ == "__main__":
    main()
