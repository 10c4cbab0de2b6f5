"""Answering the images of one call: batches through the adapter, unusual images alone, answers to the journal."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import ttdg
from ttdg.adaptation import Adapter, Assessment, FrozenPredictor, Remarking, SelfAssessing, build_adapter
from ttdg.adaptation.adapter import Images, Logits, Progress
from ttdg.adaptation.gate import GatedAdapter, GateDecision
from ttdg.adaptation.whole_site import frozen_predictor
from ttdg.checkpoints import Model, content_hash
from ttdg.data.unlabelled import InputFile, NewBatch, Refused
from ttdg.newsite.answers import expected_fields, gate_fields, shown_name, write_answer
from ttdg.newsite.audit import AuditLog
from ttdg.newsite.inputs import PIXELS
from ttdg.newsite.journal import Journal, JournalEntry, answer_key
from ttdg.newsite.learning import learn_folder
from ttdg.newsite.rounds import refusal_key
from ttdg.newsite.run_state import RunState
from ttdg.newsite.stacks.masks import OpenStacks, StackMasks

Read = Callable[..., Iterator[NewBatch]]  # `read_new_images` without `pictures` and `on_error`
Answered = Callable[[NewBatch, Logits], None]  # receives a batch and its logits before its masks are written


class LearnedSite(NamedTuple):
    """What an adapter has learned of all images before it answers them."""

    key: str  # hash of all that the answers depend on, the images included
    weights: str  # hash of the learned weights


@dataclass
class Session:
    """The images of one call, and what has been done about them."""

    model: Model
    adapter: Adapter
    journal: Journal
    run: Mapping[str, Any]  # the description of the run, for the journal
    inputs: Mapping[str, InputFile]  # all images by name
    names: Mapping[str, str]  # file or stack → name of its mask
    masks: StackMasks
    final: frozenset[str]  # files whose answers are not changed
    set_aside: dict[str, str]  # file → reason
    progress: Progress
    audit: AuditLog
    answered: Answered = lambda batch, logits: None
    probabilities: bool = False  # also write the probability of each label
    most_pixels: int = PIXELS  # larger images are refused
    done: set[str] = field(default_factory=set)  # images that were answered
    kept: set[str] = field(init=False)
    refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kept = set(self.final)
        self._changing, self._frozen_weights = False, ""
        self._stacks = OpenStacks(
            self.inputs.values(),
            self.final,
            self.journal,
            self.audit,
            self.masks,
            self.names,
            self._set_aside,
        )

    @property
    def out(self) -> Path:
        """The output folder."""
        return self.journal.folder

    @cached_property
    def source(self) -> Adapter:
        """The source model, for images that are answered alone."""
        return build_adapter(self.model, "source", {})

    def begin(self, changing: bool) -> None:
        """Start the journal and the log. `changing`: the method keeps what it learns."""
        self._report()
        self.audit.open()
        self.audit.add("run", run=self.run)
        self.journal.begin(self.run)
        self._stacks.count_down(*(self.set_aside.keys() & self.inputs.keys()))
        self._changing = changing

    def learn(
        self, read: Read, key: str, *, saved: RunState | None, batches: int, learning: Progress
    ) -> LearnedSite:
        """Let the adapter learn all images before it answers any.

        Args:
            read: Reads all images.
            key: Hash of everything but the images that answers depend on.
            saved: Where the state of the adapter is kept until the run is complete; None if it cannot be saved.
            batches: The largest possible number of batches.
            learning: Called with the number of finished steps of learning and of all steps.
        """
        learned = learn_folder(
            self.adapter, partial(_read_before, read), key, files=self.inputs.keys() - self.final, batches=batches,
            journal=self.journal, saved=saved, progress=learning,
        )  # fmt: skip
        weights = self._weights()
        self.audit.add("learned", weights=weights, **_gate_counts(self.adapter))
        return LearnedSite(learned, weights)

    def answer(
        self, read: Read, key: str, *, learned: LearnedSite | None, learns_on_the_way: bool,
        saved: RunState | None, overlays: bool,
    ) -> None:  # fmt: skip
        """Answer all images that `read` yields and that have no valid answer.

        Args:
            read: Reads all images.
            key: Hash of everything but the images that answers depend on.
            learned: What the adapter has learned of all images; None if it did not learn them first.
            learns_on_the_way: Each batch influences the answers to later ones.
            saved: Where the state of the adapter is kept until the run is complete; None if it cannot be saved.
            overlays: Also draw overlays.
        """
        run_key, covered, number = key, 0, 0
        respond: Callable[[Images], Logits] = self.adapter
        assessing = self.adapter if isinstance(self.adapter, SelfAssessing) else None
        if learned is not None:
            key, self._frozen_weights = learned.key, learned.weights
            respond = frozen_predictor(self.adapter)
            if not isinstance(self.adapter, FrozenPredictor):
                assessing = None  # its assessment is that of the last batch that it learned
        elif saved is not None:
            covered = saved.resume_online(_read_before(read), key, self.journal)
        self._greys = self.model.card.benchmark.greys
        for loaded in read(pictures=overlays, on_error=self._refuse):
            if loaded.unusual:
                self._answer_alone(loaded, run_key)
                continue
            number += 1
            batch_key = key if learned else answer_key(key, *(image.sha256 for image in loaded.files))
            if learns_on_the_way:
                key = batch_key  # the answers to later batches depend on this batch
            new = [image.file for image in loaded.files if image.file not in self.final]
            answered = all(self.journal.kept.get(file) == batch_key for file in new)
            processed = not answered or (learns_on_the_way and number > covered)
            if processed:
                logits = respond(loaded.images)
                assessment = assessing.assessment() if assessing is not None else None
                decision = self.adapter.decision if isinstance(self.adapter, GatedAdapter) else None
            if answered:
                self.kept.update(new)
                self._stacks.count_down(*new)
            else:
                remark = " ".join(self.adapter.remarks()) if isinstance(self.adapter, Remarking) else ""
                self._write(loaded, logits, assessment, batch_key, remark, decision)
            if saved is not None and learns_on_the_way and processed:
                saved.save_if_due(key, number)
            self._report()

    def _answer_alone(self, loaded: NewBatch, run_key: str) -> None:
        """Answer an image that is no picture of a structure with the source model."""
        key = answer_key(run_key, "alone", loaded.files[0].sha256)
        if self.journal.kept.get(loaded.files[0].file) == key:
            self.kept.add(loaded.files[0].file)
            self._stacks.count_down(loaded.files[0].file)
        else:
            self._write(loaded, self.source(loaded.images), None, key, "", None)
        self._report()

    def without_maps(self) -> list[str]:
        """Return the kept images that have no probability maps."""
        names = {file: shown_name(self.inputs[file], self._name(self.inputs[file])) for file in self.kept}
        return [
            file for file, name in names.items() if not (self.out / f"probabilities/{name}-1.png").exists()
        ]

    def _weights(self) -> str:
        """Return a hash of the adapted weights; that of the model's file for a method that changes none."""
        if not self._changing:
            return self.model.card.sha256
        return self._frozen_weights or content_hash(self.adapter.network.state_dict())

    def _write(
        self, loaded: NewBatch, logits: Logits, assessment: Assessment | None, key: str, remark: str,
        decision: GateDecision | None,
    ) -> None:  # fmt: skip
        """Write the answers to a batch and enter them into the journal. Masks that were changed by hand stay."""
        self.answered(loaded, logits)
        fixed, labels = self.final | self.journal.edited, self.model.card.benchmark.labels
        common: dict[str, Any] = {
            "key": key, "remark": remark, "round": self.journal.finished + 1, "version": ttdg.__version__,
        }  # fmt: skip
        self.journal.reopen([image.file for image in loaded.files if image.file not in fixed])
        entries = [
            replace(
                write_answer(
                    self.out, image, self._name(image.input), answer, self._greys, labels, self.probabilities
                ),
                **common,
                **expected,
                gate=gate,
            )
            for image, answer, expected, gate in zip(
                loaded.files, logits, expected_fields(assessment, len(loaded.files)),
                gate_fields(decision, len(loaded.files)), strict=True,
            )
            if image.file not in fixed
        ]  # fmt: skip
        self.audit.add_answers(entries, self._weights(), decision.update if decision else "")
        self.journal.add(*entries)
        self.done.update(entry.file for entry in entries)
        self.kept |= {image.file for image in loaded.files} & self.journal.edited
        self._stacks.count_down(*(image.file for image in loaded.files if image.file not in self.final))

    def _refuse(self, refused: Refused) -> None:
        self._set_aside(refused.file, refused.sha256, refused.reason)
        self._stacks.count_down(refused.file)

    def _set_aside(self, file: str, sha256: str, reason: str) -> None:
        self.set_aside[file] = reason
        self.done.discard(file)
        self.refused.add(file)
        image = self.inputs[file]
        self.journal.add(
            JournalEntry(
                file, "set aside", reason, self.journal.finished + 1, sha256, refusal_key(self.most_pixels),
                version=ttdg.__version__, holder=image.holder, stack=image.stack.name if image.stack else "",
            )
        )  # fmt: skip

    def _name(self, image: InputFile) -> str:
        return self.names[image.stack.name if image.stack is not None else image.file]

    def _report(self) -> None:
        self.progress(len(self.done) + len(self.kept) + len(self.refused), len(self.inputs))


def _read_before(read: Read) -> Iterator[NewBatch]:
    """Read the images without pictures, before they are answered."""
    return read(pictures=False, on_error=lambda refused: None)


def _gate_counts(adapter: Adapter) -> dict[str, Any]:
    """Return whether the gate undid what was learned of a site."""
    if not isinstance(adapter, GatedAdapter):
        return {}
    return {"update_undone": "; ".join(adapter.remarks()) if adapter.counts["undone"] else ""}
