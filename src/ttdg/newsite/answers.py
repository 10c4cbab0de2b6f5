"""Writing the answer to one image: its mask in the size of the file, and its overlay."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.data.new_images import NewImage
from ttdg.files import atomic_file
from ttdg.newsite.journal import JournalEntry
from ttdg.newsite.overlay import draw_overlay


def write_answer(
    out: Path, image: NewImage, logits: Float[torch.Tensor, "l s s"], greys: UInt8[np.ndarray, "l"]
) -> JournalEntry:
    """Write `masks/NAME.png` and, if the image has a picture, `overlays/NAME.jpg` under `out`.

    Args:
        out: The output folder.
        image: The image that was segmented.
        logits: Its segmentation.
        greys: The grey value of each label in the mask.

    Returns:
        The journal entry of the file, without its key and its expected Dice.
    """
    resized = F.interpolate(logits[None].float(), image.size, mode="bilinear", align_corners=False)[0]
    confidence, indices = resized.softmax(0).max(0)
    labels = indices.to(torch.uint8).cpu().numpy()
    mask = Path("masks") / f"{image.name}.png"
    _save(out / mask, greys[labels])
    overlay = Path("overlays") / f"{image.name}.jpg"
    if image.picture is not None:
        height, width, _ = image.picture.shape
        shown = labels
        if labels.shape != (height, width):
            shown = np.asarray(Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST))
        _save(out / overlay, draw_overlay(image.picture, shown))
    return JournalEntry(
        file=image.file,
        status="done",
        mask=str(mask),
        overlay="" if image.picture is None else str(overlay),
        height=image.size[0],
        width=image.size[1],
        foreground=float((labels > 0).mean()),
        confidence=float(confidence.mean()),
    )


def _save(path: Path, pixels: np.ndarray) -> None:
    with atomic_file(path) as temporary:
        Image.fromarray(pixels).save(temporary)
