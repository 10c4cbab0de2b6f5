"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.adaptation import Adapter
from ttdg.adaptation.adapter import Progress
from ttdg.arguments import whole_number
from ttdg.checkpoints import Model
from ttdg.errors import UserError
from ttdg.newsite.auto import AUTO, MethodChoice
from ttdg.newsite.inputs import PIXELS
from ttdg.newsite.lock import lock_output
from ttdg.newsite.result import FolderResult
from ttdg.newsite.session import Answered
from ttdg.newsite.stages.answering import answer_folder
from ttdg.newsite.stages.reporting import report_folder
from ttdg.newsite.stages.request import FolderRequest, make_plan
from ttdg.safety import Drift
from ttdg.safety.policy import GatePolicy

if TYPE_CHECKING:
    from ttdg.newsite.shards import Sharding


def predict(
    model: Model,
    images: Path | Sequence[Path],
    out: Path,
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    views: str = "plain",
    stream: str | None = None,
    batch: int = 4,
    overlays: bool = True,
    workers: int | None = None,
    again: bool = False,
    gate: GatePolicy | bool | None = None,
    most_pixels: int = PIXELS,
    probabilities: bool = False,
    keep_identity: bool = False,
    progress: Progress = lambda done, total: None,
    learning: Progress = lambda done, total: None,
    answered: Answered = lambda batch, logits: None,
    chosen: Callable[[MethodChoice, Drift | None], None] = lambda choice, drift: None,
    prepared: Callable[[Adapter], None] = lambda adapter: None,
    shards: "Sharding | None" = None,
) -> FolderResult:
    """Segment every image of a folder, at any depth, with a model that adapts to the images.

    In the stream `online` the model adapts to each batch when it answers it. In the stream `folder` it learns all
    images first and then answers all of them; each file is read twice. For a method without memory both are the same.

    A frame of a DICOM or NIfTI file is an image. Its mask is a frame of a DICOM segmentation, or a slice of a NIfTI
    file with the affine of the input. DICOM slices of one series share a segmentation. A batch has slices of one volume
    only.

    Every other file is set aside with a reason. Images are processed in the order of their names. Constant frames,
    noise and, by the fingerprint of the model, images of another kind are answered by the source model, each alone, and
    nothing is learned from them. At most two batches are read ahead, so memory does not grow with the number of images,
    except for images that the method itself stores.

    A second call resumes an interrupted one: files with a valid answer in the journal are not answered again. If the
    method can save its state (`Resumable`), the adapter continues from the latest one: in the stream `folder` from that
    after learning, in the stream `online` from one of the last minute. Otherwise, if it has memory, the adapter
    processes all batches again. In each case the answers are those of an uninterrupted call.

    The answers of a finished call are final: a later call answers only new and changed files. A method with memory
    processes the earlier files again first. A mask that was changed by hand is kept.

    One process at a time writes an output folder; a second one is refused.

    Args:
        model: The network with its card and parts.
        images: Files or folders.
        out: Folder to write. It may hold the answers of an earlier call with the same model, method and options.
        method: Name of the adaptation method. `auto`, or None, chooses source, judge or universe (`choose_method`).
        options: Options of the method.
        views: `flips` averages the answers over the image and its mirror image, `scales` also over three sizes.
        stream: `online` or `folder`. None is `folder` for a method that learns a site (`SiteLearner`), else `online`.
        batch: Number of images that are adapted to together.
        overlays: Also draw each mask over its image.
        workers: Number of threads that read images; None is one per core.
        again: Answer all files again, and replace every answer in `out`.
        gate: The policy of the gate. True is its defaults, and False no gate. None is the default policy for methods
            that need one, if the model has a judge (`default_policy`).
        most_pixels: Images with more pixels are set aside.
        probabilities: Also write the probability of each label but the background, as PNG files whose value 255 is 1.
        keep_identity: Copy the name, number, birth date and sex of the patient, and the dates and numbers of the study,
            from DICOM images into their segmentations. By default these tags are empty.
        progress: Called with the number of processed images and the number of all images; a frame is an image.
        learning: Called, in the stream `folder`, with the number of finished steps and the number of all steps.
        answered: Called with each batch and its logits, before the masks of the batch are written.
        chosen: Called once, before anything is written, with the method and the drift, if `auto` measured it.
        prepared: Called once with the adapter, without its gate, before it sees an image. It must not be changed.
        shards: Answer slices of the files in several processes or machines, with the same result. The method has no
            memory between batches, or learns the folder first. `answered` is not called.
    """
    if model.card.benchmark.task == "classification":
        raise UserError(
            "this model gives each image a class, and only masks can be written here; evaluate it on labelled sites, "
            "or call its adapter from Python"
        )
    batch, most_pixels = whole_number("batch", batch), whole_number("most_pixels", most_pixels)
    workers = None if workers is None else whole_number("workers", workers)
    start, inputs = time.perf_counter(), [images] if isinstance(images, Path) else images
    request = FolderRequest(
        model, inputs, out, method or AUTO, options or {}, views, stream, batch, overlays, workers, again, gate,
        most_pixels, probabilities, keep_identity, shards,
    )  # fmt: skip
    with lock_output(out):
        plan = make_plan(request, chosen, prepared)
        session = answer_folder(plan, progress, learning, answered)
        return report_folder(plan, session, start)
