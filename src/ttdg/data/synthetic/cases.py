"""Drawing single cases. A case depends only on seed, variant, site and number, so sites can be enlarged."""

import numpy as np
from jaxtyping import UInt8

from ttdg.data.synthetic.fields import random_for
from ttdg.data.synthetic.hospitals import FUNDUS, HOSPITALS
from ttdg.data.synthetic.style import develop
from ttdg.errors import UserError, suggestion

SITES = tuple(FUNDUS)
VOLUMES = "prostate"  # the variant whose cases are volumes
VARIANTS = (*HOSPITALS, VOLUMES)
SMALLEST = 32  # pixels; in smaller images a thin rim can disappear between pixel centres


def draw_site(
    variant: str, site: str, count: int, size: int = 128, seed: int = 0
) -> tuple[UInt8[np.ndarray, "n size size 3"], UInt8[np.ndarray, "n size size"]]:
    """Return the first `count` images of a site and their label indices."""
    check_drawable(variant, site, count, size)
    if variant == VOLUMES:
        raise UserError(
            f"the images of the variant {variant!r} are volumes; write them as a benchmark folder"
        )
    images, masks = zip(*(draw_case(variant, site, case, size, seed) for case in range(count)), strict=True)
    return np.stack(images), np.stack(masks)


def draw_case(
    variant: str, site: str, case: int, size: int, seed: int
) -> tuple[UInt8[np.ndarray, "size size 3"], UInt8[np.ndarray, "size size"]]:
    """Return the image and the label indices of case number `case`."""
    hospital = HOSPITALS[variant][site]
    patient = random_for(seed, variant, site, "patient", patient_of(case))
    rng = random_for(seed, variant, site, "case", case)
    scene, labels = hospital.scene(patient, rng, size)
    if case % 2:  # a left eye, mirrored
        scene, labels = scene[:, ::-1], labels[:, ::-1]
    return develop(scene, hospital.style, rng), labels


def patient_of(case: int) -> int:
    """Return the patient number of a case. Of every five cases the first two show one patient."""
    return case - (case + 4) // 5


def check_drawable(variant: str, site: str, count: int, size: int) -> None:
    """Raise `UserError` if these arguments cannot be drawn."""
    if variant not in VARIANTS:
        raise UserError(f"there is no synthetic variant {variant!r}{suggestion(variant, VARIANTS)}")
    if site not in SITES:
        raise UserError(f"there is no synthetic site {site!r}{suggestion(site, SITES)}")
    if count < 1:
        raise UserError(f"a site of {count} images cannot be drawn; choose at least 1")
    if size < SMALLEST:
        raise UserError(
            f"images of {size} pixels are too small to show the anatomy; choose at least {SMALLEST}"
        )
