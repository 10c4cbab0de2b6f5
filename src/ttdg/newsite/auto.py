"""The method `auto`: chooses source, judge or universe for a site, by its drift and by what the model has."""

from dataclasses import dataclass

from ttdg.adaptation.gate_tests import can_expect_gains
from ttdg.checkpoints import Model
from ttdg.newsite.journal import Journal
from ttdg.newsite.run import default_method
from ttdg.safety import Drift

AUTO = "auto"
LEAST_IMAGES = 16  # a site with fewer is not learned


@dataclass(frozen=True)
class MethodChoice:
    """A method and why it was chosen."""

    method: str
    reason: str  # a sentence; empty if the user named the method


def choose_method(model: Model, drift: Drift | None, images: int, journal: Journal) -> MethodChoice:
    """Choose the method for the images of a folder.

    * A folder that already holds answers keeps its method, also if the model has got a judge since then.
    * Without the parts of `judge` the source answers.
    * A site like a source site has nothing to gain from learning, and few images teach little: the judge answers.
    * Images that are not of the source's kind are answered by the source, as nothing that adapts was tested on them.
    * Every other site is learned by `universe`, which keeps the judge's answers where it expects no gain.

    Args:
        model: The model with its parts.
        drift: The distance of the site; None if it is not known.
        images: Number of images that can be learned, which are not empty, noise or of another kind.
        journal: The answers of earlier calls.
    """
    if journal.entries and journal.run.get("method"):
        return _keep(str(journal.run["method"]), default_method(model), drift)
    if (method := default_method(model)) == "source":
        return MethodChoice(method, "the model has no judge")
    if _is_foreign(drift):
        return MethodChoice("source", "the images are not of the kind that the model was trained on")
    if drift is not None and drift.verdict == "like home":
        return MethodChoice(method, "the site is like a source site, so there is little to learn")
    if images < LEAST_IMAGES:
        return MethodChoice(
            method,
            f"learning a site needs at least {LEAST_IMAGES} images that can be learned, and {images} are there",
        )
    if not can_expect_gains(model.parts):
        return MethodChoice(
            method, "the judge was fitted without learned hospitals, or by an earlier version; fit it again"
        )
    known = "its distance is unknown" if drift is None else f"the site is {drift.verdict}"
    return MethodChoice("universe", f"{known}, and {images} images are enough to learn it")


def _keep(method: str, default: str, drift: Drift | None) -> MethodChoice:
    """Keep the method of a folder, and say how to use a judge that the model has got since then."""
    reason = "the folder was begun with this method"
    if method == "source" and default != "source" and not _is_foreign(drift):
        reason += f"; the model also has the part {default}, which --again uses"
    return MethodChoice(method, reason)


def _is_foreign(drift: Drift | None) -> bool:
    return drift is not None and drift.verdict == "not this kind of image"
