"""Fitting the judge of a learned site and that of the gate at simulated hospitals, where the true Dice is known."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation.judge.finished_rounds import Keep, keep_nothing
from ttdg.adaptation.judge.fit import count_rounds, fit_judge
from ttdg.adaptation.judge.regressor import Regressor, feature_matrix, fit_regressor
from ttdg.adaptation.site_learning.home import HomeStatistics, describe
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.size_tolerance import size_gain, tolerates_sizes
from ttdg.adaptation.universe.anatomy import anatomy_of
from ttdg.adaptation.universe.gate_pairs import answer_pairs
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.adaptation.universe.site_judge import ADAPTED, GATE, SITE_EVIDENCE, UNADAPTED, signal_names
from ttdg.adaptation.universe.treatment import ANCHORED, CARRIED, TREATMENTS
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.prior import MorphologyPrior
from ttdg.types import Part

HOSPITAL = 64  # largest number of images of a simulated hospital
HOME_EVERY = 4  # every fourth hospital is a source site as it is
BATCH = 4  # images that share BatchNorm statistics in the judge's readings
DESCRIBED = 128  # images of each source site from which its statistics are measured


# Returns the probabilities of the candidates of a batch of images, and their signals.
Candidates = Callable[[Tensor], tuple[Float[Tensor, "k b l h w"], dict[str, Float[Tensor, "k b"]]]]


class SiteEvidence(NamedTuple):
    """What is known of the candidates of a site whose labels are known."""

    signals: dict[str, Float[Tensor, "k n"]]
    dice: Float[Tensor, "n k r"]

    @classmethod
    def joined(cls, parts: Sequence["SiteEvidence"]) -> "SiteEvidence":
        """Evidence of all images of several parts."""
        signals = {name: torch.cat([part.signals[name] for part in parts], 1) for name in parts[0].signals}
        return cls(signals, torch.cat([part.dice for part in parts]))


def fit_judges(
    network: nn.Module,
    prior: MorphologyPrior,
    train: Mapping[str, Arrays],
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    hospitals: int = 8,
    learning_rate: float = 1e-4,
    learning_steps: int = 100,
    learning_draw: int = 16,
    folder_steps: int = 300,
    draws: int | None = None,
    mixing_steps: int = 100,
    readings: str = "four",
    controls: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    keep: Keep = keep_nothing,
) -> Part:
    """Fit the part "judge": the judge of readings, then the judges of a learned site and of the gate.

    Args:
        network: the source network, which is not changed.
        prior: its morphology prior.
        train: training images by site, with masks.
        held_out: images by site, with masks, that the network was not trained on.
        benchmark: labels, regions and normalisation.
        hospitals: simulated hospitals at which the learner runs. With 0, the part does not serve method `universe`.
        learning_rate: of the learner, here and later at a site.
        learning_steps: steps of the learner at a simulated hospital.
        learning_draw: images of each step, here and later at a site.
        folder_steps: steps of the learner at a site.
        draws: see `fit_judge`.
        mixing_steps: see `fit_judge`.
        readings: see `fit_judge`.
        controls: see `fit_judge`.
        seed: seed of all random draws.
        progress: called after each of `count_fit_rounds` rounds, with the number of rounds done.
        keep: keeps finished rounds (`ttdg.adaptation.judge.finished_rounds`).
    """
    judge = fit_judge(
        network, prior, train, held_out, benchmark, draws=draws, mixing_steps=mixing_steps, readings=readings,
        controls=controls, seed=seed, progress=progress, keep=keep,
    )  # fmt: skip
    if not hospitals:
        return judge
    device = next(network.parameters()).device
    home = HomeStatistics.of([_descriptions(site, benchmark, device) for site in train.values()])
    anatomy = anatomy_of(site.masks for site in train.values() if site.masks is not None)
    sizes = tolerates_sizes(size_gain(network, held_out, benchmark))
    learning = {
        "lr": learning_rate, "steps": learning_steps, "folder_steps": folder_steps, "draw": learning_draw,
        "anatomy": anatomy, "sizes": sizes,
    }  # fmt: skip
    judge = replace(
        judge,
        tensors={**judge.tensors, "home.mean": home.mean.cpu(), "home.deviation": home.deviation.cpu()},
        settings={**judge.settings, "learning": learning},
    )
    treatment = TREATMENTS[anatomy]
    learner = UniverseLearner(
        copy.deepcopy(network), prior.to_part(), judge, evidence="all", random_universe=False, first=0.25,
        carried=CARRIED * treatment.carries, anchored=ANCHORED * treatment.anchors, weigh="expected",
        agreeing=False, places="equal", warm_up=0, site_judge=False, lr=learning_rate, steps=1,
        folder_steps=learning_steps, draw=learning_draw, capacity=HOSPITAL, momentum=0.99, sharpness=2.0,
        keep_areas=True, dice=True, head="softmax", scales=sizes, seed=seed,
    )  # fmt: skip
    pairs = answer_pairs(network, learner)
    learned, gated, done = list[SiteEvidence](), list[SiteEvidence](), count_rounds(held_out, draws)

    def learn_hospital(images: Tensor, labels: Tensor) -> list[list[Any]]:
        batches = normalise(images, benchmark.normalisation).split(BATCH)
        learner.reset()
        learner.learn_always(batches)
        labelled = list(zip(batches, labels.split(BATCH), strict=True))
        return [[*site_evidence(of, labelled, benchmark)] for of in (learner.evidence, *pairs)]

    for number, hospital in enumerate(simulated_hospitals(held_out, hospitals, seed, device), 1):
        first, *others = keep(f"hospital-{number}", partial(learn_hospital, *hospital))
        learned.append(SiteEvidence(*first))
        gated.append(SiteEvidence.joined([SiteEvidence(*other) for other in others]))
        progress(done + number)
    return with_site_judge(judge, learned, gated, seed)


def count_fit_rounds(held_out: Mapping[str, Arrays], draws: int | None = None, hospitals: int = 8) -> int:
    """Number of rounds of `fit_judges`, and of calls of its `progress`."""
    return count_rounds(held_out, draws) + hospitals


def _descriptions(site: Arrays, benchmark: Benchmark, device: torch.device) -> Float[Tensor, "n f"]:
    """Descriptions of images spread over the site."""
    rows = torch.linspace(0, len(site.cases) - 1, min(DESCRIBED, len(site.cases))).long()
    images = normalise(site.images[rows].to(device).float() / 255, benchmark.normalisation)
    return describe(ImageMemory(None, 0).to_unit(images)[0])


def simulated_hospitals(
    held_out: Mapping[str, Arrays], count: int, seed: int, device: torch.device
) -> Iterator[tuple[Float[Tensor, "n c h w"], Int[Tensor, "n h w"]]]:
    """Images in [0, 1] and labels of each hospital: held-out images of one site, under one shift or as they are."""
    sites = [site for site in held_out.values() if site.cases]
    for number in range(count):
        site = sites[number % len(sites)]
        assert site.masks is not None
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        rows = torch.randperm(len(site.cases), generator=generator)[:HOSPITAL]
        images, labels = site.images[rows].to(device).float() / 255, site.masks[rows].to(device).long()
        if number % HOME_EVERY:
            images, labels = simulate(images, labels, generator, group=len(images))
        yield images, labels


@torch.no_grad()
def site_evidence(
    candidates: Candidates, batches: Iterable[tuple[Tensor, Tensor]], benchmark: Benchmark
) -> SiteEvidence:
    """Signals and Dice of the candidates of normalised images, given with their labels; the site is learned already."""
    found: list[SiteEvidence] = []
    for images, labels in batches:
        P, signals = candidates(images)
        truth, logits = region_masks(labels, benchmark.regions), P.clamp(min=1e-7).log()
        scores = [dice(region_probabilities(p, benchmark.regions), truth) for p in logits]
        found.append(SiteEvidence(signals, torch.stack(scores, 1)))
    return SiteEvidence.joined(found)


def with_site_judge(
    judge: Part, learned: Sequence[SiteEvidence], gated: Sequence[SiteEvidence], seed: int
) -> Part:
    """Add regressors to the part: those of a learned site, one for each kind of evidence, and that of the gate."""
    tensors: dict[str, Any] = dict(judge.tensors)
    used: dict[str, list[str]] = {}
    for kind, evidence in (dict.fromkeys(SITE_EVIDENCE, learned) | {GATE: gated}).items():
        used[kind] = signal_names(list(evidence[0].signals), kind)
        regressor = fit_site_regressor(evidence, used[kind], seed)
        tensors |= {f"site.{kind}.{name}": value.cpu() for name, value in regressor.tensors().items()}
    errors = {kind: gain_error(learned, used[kind], seed) for kind in SITE_EVIDENCE}
    settings = {**judge.settings, "site_signals": used, "site_gain_errors": errors}
    return replace(judge, tensors=tensors, settings=settings)


def fit_site_regressor(evidence: Sequence[SiteEvidence], names: Sequence[str], seed: int) -> Regressor:
    """Fit a regressor to the named signals of several hospitals."""
    signals = {name: torch.cat([hospital.signals[name] for hospital in evidence], 1) for name in names}
    scores = torch.cat([hospital.dice for hospital in evidence])
    counts = torch.tensor([len(hospital.dice) for hospital in evidence], device=scores.device)
    number = torch.arange(len(evidence), device=scores.device).repeat_interleave(counts)
    return fit_regressor(feature_matrix(signals, names), scores, number, seed=seed)


def gain_error(evidence: Sequence[SiteEvidence], names: Sequence[str], seed: int) -> float:
    """Root mean square error of the gain that is expected of a hospital, by regressors fitted to all other hospitals.

    The members of one regressor agree more with each other than with the true gain of a hospital that none has seen.
    """
    if len(evidence) < 3:  # too few to leave one out: the error is not known
        return 0.0
    errors = []
    for number, hospital in enumerate(evidence):
        others = [other for index, other in enumerate(evidence) if index != number]
        expected = (
            fit_site_regressor(others, names, seed).predict(feature_matrix(hospital.signals, names)).members
        )
        error = expected.mean(0) - hospital.dice.mean(2)
        errors.append((error[:, ADAPTED] - error[:, UNADAPTED]).mean())
    return float(torch.stack(errors).square().mean().sqrt())
