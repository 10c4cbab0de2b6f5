"""A gate around any method: each answer and each update is accepted, or rolled back by label-free tests.

A shadow of the source model answers every batch too. An answer that fails a test of `ttdg.safety.gate` is replaced by
that of the source. With the part "judge", a regressor expects the gain of each answer over the source; without it,
answers that differ much from the source's are not accepted. Where structures vary in size, an accepted answer that
agrees with the source's is given as the mean of both. An update of the method is undone if it
changes the weights too much, or if too many answers after it were rejected; the method then continues from its last
accepted state. With the part "fingerprint", images that are not of the source's kind get the source's answer.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import (
    Adapter,
    Assessment,
    Images,
    Logits,
    Progress,
    Remarking,
    Resumable,
    SelfAssessing,
    SiteLearner,
)
from ttdg.adaptation.build import Trained
from ttdg.adaptation.gate_tests import GateTests
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.adaptation.random_state import kept_random_state
from ttdg.adaptation.universe.site_judge import ADAPTED, MEAN, UNADAPTED
from ttdg.networks.weights import network_tensors
from ttdg.safety.gate import weight_change
from ttdg.safety.policy import GatePolicy
from ttdg.types import Regions

# Methods without a gate, unless one is asked for: they choose by the judge, or change nothing.
UNGATED = ("source", "judge", "universe-choice", "universe", "auto")
GIVEN = {UNADAPTED: "source, rolled back", ADAPTED: "adapted", MEAN: "mean of adapted and source"}
SITE = 64  # images of a learned site on which its update is tested, at most


@dataclass(frozen=True)
class GateDecision:
    """What the gate decided about one batch."""

    reasons: tuple[str, ...]  # why each answer was rolled back; empty if it was accepted
    update: str  # why the update was undone; empty if it was accepted or if there was none


class GatedAdapter(SiteLearner, SelfAssessing, Remarking):
    """An adapter whose answers and updates pass the gate.

    Args:
        adapter: The method, in the state of the source model.
        tests: The tests.
        memory: Whether the method keeps what it learns; without memory no update is undone.

    Attributes:
        decision: The decision about the last batch.
        counts: Numbers of accepted and rejected answers, and of accepted and undone updates.
    """

    def __init__(self, adapter: Adapter, tests: GateTests, memory: bool) -> None:
        self.tests, self.memory = tests, memory
        self.decision: GateDecision | None = None
        self.counts = dict.fromkeys(("accepted", "rejected", "updates", "undone"), 0)
        self._source_network = tests.shadow.network
        self._start = {name: x.clone() for name, x in network_tensors(self._source_network).items()}
        self.adapter = adapter
        self._accepted = self._copy(adapter) if memory else None
        self._undone = ""  # why a learned site was undone
        self._last: Assessment | None = None

    @property
    def network(self) -> nn.Module:  # type: ignore[override]
        """The adapted network."""
        return self.adapter.network

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and answer it; both must pass the gate."""
        answer = self.adapter(images)
        source, reasons, expected = self.tests(images, answer)
        answer, averaged = self.tests.averaged(source, answer)
        self._assess(reasons, expected, averaged)
        update = ""
        if self.memory:
            update = self._update_reason(reasons)
            self.counts["undone" if update else "updates"] += 1
            assert self._accepted is not None
            if update:
                self.adapter = self._copy(self._accepted)
            else:
                self._accepted = self._copy(self.adapter)
        return self._decide(answer, source, reasons, update)

    def learn(
        self, site: Iterable[Float[Tensor, "_b c h w"]], progress: Progress = lambda done, total: None
    ) -> None:
        """Learn a whole site; what was learned is undone if the answers to its first images fail too often."""
        kept: list[Tensor] = []

        def watched() -> Iterable[Tensor]:
            for images in site:
                if sum(map(len, kept)) < SITE:
                    kept.append(images)
                yield images

        self._undone = ""
        if isinstance(self.adapter, SiteLearner):
            self.adapter.learn(watched(), progress)
        else:
            for images in watched():
                self.adapter(images)
        reasons = [reason for images in kept for reason in self.tests(images, self._frozen(images))[1]]
        self._undone = self._update_reason(reasons)
        self.counts["undone" if self._undone else "updates"] += 1
        if self._undone:
            self.adapter.reset()

    def predict_frozen(self, images: Images) -> Logits:
        """Answer without an update; the source answers a site whose learning was undone."""
        if self._undone:
            answer = self.tests.shadow(images)[0]
            source, reasons, expected = answer, [self._undone] * len(images), self.tests(images, answer)[2]
        else:
            answer = self._frozen(images)
            source, reasons, expected = self.tests(images, answer)
        answer, averaged = self.tests.averaged(source, answer)
        self._assess(reasons, expected, averaged)
        return self._decide(answer, source, reasons, "")

    def _assess(self, reasons: list[str], expected: Prediction | None, averaged: Bool[Tensor, " b"]) -> None:
        """Keep the method's own assessment if it has one and all answers are the method's, else that of the judge."""
        own = self.adapter.assessment() if isinstance(self.adapter, SelfAssessing) else None
        given = [
            UNADAPTED if reason else MEAN if mean else ADAPTED
            for reason, mean in zip(reasons, averaged.tolist(), strict=True)
        ]
        self._last = own if own is not None and given.count(ADAPTED) == len(given) else None
        if self._last is None and expected is not None:
            pick = torch.tensor(given, device=expected.dice.device)[:, None]
            dice, half_width = (x.gather(1, pick)[:, 0] for x in (expected.dice, expected.half_width))
            names = tuple(GIVEN[candidate] for candidate in given)
            self._last = Assessment(names, dice, half_width, expected.dice[:, UNADAPTED])

    def assessment(self) -> Assessment | None:
        """The expected Dice of the last answers; None without a judge."""
        return self._last

    def remarks(self) -> tuple[str, ...]:
        """What the method says, and whether the learning of the site was undone."""
        own = self.adapter.remarks() if isinstance(self.adapter, Remarking) else ()
        return (
            (f"Learning this site was undone, and the source answered: {self._undone}.",)
            if self._undone
            else own
        )

    def reset(self) -> None:
        """Restore the source model, and forget all decisions."""
        self.adapter.reset()
        self._accepted = self._copy(self.adapter) if self.memory else None
        self.decision, self._undone, self._last = None, "", None
        self.counts.update(dict.fromkeys(self.counts, 0))

    def _frozen(self, images: Images) -> Logits:
        predict = (
            self.adapter.predict_frozen if isinstance(self.adapter, SiteLearner) else self.adapter.network
        )
        with torch.no_grad():
            return predict(images)

    def _update_reason(self, reasons: list[str]) -> str:
        """Return why an update is undone, from the reasons of the answers after it; empty if it is accepted."""
        policy, rejected = self.tests.policy, sum(map(bool, reasons))
        change = weight_change(self._start, network_tensors(self.adapter.network))
        if change > policy.largest_change:
            return f"the weights changed by {change:.0%} of their norm"
        if rejected > policy.most_rejected * len(reasons):
            return f"{rejected} of {len(reasons)} answers were rejected"
        return ""

    def _decide(self, answer: Logits, source: Logits, reasons: list[str], update: str) -> Logits:
        rejected = torch.tensor([bool(reason) for reason in reasons], device=answer.device)
        rejected &= (
            source.isfinite().flatten(1).all(1)
        )  # an unusable image keeps the empty answer of the method
        self.decision = GateDecision(tuple(reasons), update)
        self.counts["rejected"] += sum(map(bool, reasons))
        self.counts["accepted"] += len(reasons) - sum(map(bool, reasons))
        return torch.where(rejected[:, None, None, None], source, answer)

    def _copy(self, adapter: Adapter) -> Adapter:
        """Copy an adapter with all of its state; the source network is shared."""
        shared = getattr(adapter, "_source_network", None)
        return copy.deepcopy(adapter, {id(shared): shared} if shared is not None else None)


class ResumableGate(GatedAdapter, Resumable):
    """A gate around a method whose state can be saved."""

    def state(self) -> dict[str, Tensor]:
        """The state of the method, and whether the learning of the site was undone."""
        assert isinstance(self.adapter, Resumable)
        undone = torch.tensor(list(self._undone.encode()), dtype=torch.uint8)
        return {**self.adapter.state(), "gate.undone": undone}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        assert isinstance(self.adapter, Resumable)
        self.adapter.load_state({name: value for name, value in state.items() if name != "gate.undone"})
        if "gate.undone" in state:
            self._undone = bytes(state["gate.undone"].tolist()).decode()
        self._accepted = self._copy(self.adapter)


@kept_random_state()
def gate(
    adapter: Adapter, model: Trained, regions: Regions, policy: GatePolicy, memory: bool
) -> GatedAdapter:
    """Put the gate around an adapter in the state of the source model."""
    kind = ResumableGate if isinstance(adapter, Resumable) else GatedAdapter
    return kind(adapter, GateTests(model, regions, policy), memory)
