"""The five synthetic hospitals, each with its own camera and population.

The cameras differ mainly in what changes the channel statistics of a network (colour response, exposure, haze),
less in sharpness and noise; the populations differ a little. A network trained at four hospitals therefore
loses much accuracy at the fifth, and normalising with the fifth's statistics recovers a large part of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ttdg.data.synthetic.fields import Labels, Picture, Random
from ttdg.data.synthetic.fundus import Eyes, draw_fundus
from ttdg.data.synthetic.polyp import Polyps, draw_polyps
from ttdg.data.synthetic.shapes import Drawing, draw_shape
from ttdg.data.synthetic.style import Style


@dataclass(frozen=True)
class Hospital:
    """A camera, and a function that draws a scene for it."""

    style: Style
    scene: Callable[[Random, Random, int], tuple[Picture, Labels]]
    """Takes the generators of the patient and of the image, and the image size."""


def _eyes(style: Style, eyes: Eyes) -> Hospital:
    return Hospital(style, partial(draw_fundus, eyes))


def _bowels(style: Style, polyps: Polyps) -> Hospital:
    return Hospital(style, partial(draw_polyps, polyps))


FUNDUS: Mapping[str, Hospital] = {
    # a bright table-top camera, overexposed towards yellow
    "north": _eyes(
        Style(colour=((1.1, 0.1, 0), (0.1, 1.25, 0), (0, 0.1, 0.7)), gamma=0.75, noise=0.01, quality=92),
        Eyes(),
    ),
    # an old camera: dark, red, round field of view
    "harbour": _eyes(
        Style(
            colour=((0.95, 0, 0), (0, 0.75, 0), (0, 0, 0.6)),
            gamma=1.3,
            vignette=0.4,
            aperture=1.25,
            noise=0.02,
        ),
        Eyes(disc=(0.33, 0.03), cup=(0.48, 0.07)),
    ),
    # a green scanning laser, grainy
    "valley": _eyes(
        Style(
            colour=((0.15, 0.3, 0), (0.55, 0.65, 0), (0.15, 0.35, 0.1)),
            gamma=0.9,
            lamp=0.1,
            noise=0.04,
            quality=80,
        ),
        Eyes(disc=(0.38, 0.03), cup=(0.55, 0.07)),
    ),
    # cold light through cataracts: hazy and soft
    "lakeside": _eyes(
        Style(
            colour=((0.5, 0.1, 0), (0, 0.7, 0.3), (0, 0.5, 1.2)),
            contrast=0.8,
            haze=(0.12, 0.15, 0.19),
            aperture=1.3,
            blur=1.2,
        ),
        Eyes(disc=(0.34, 0.03), cup=(0.58, 0.06)),
    ),
    # a lens on a telephone: pink, unevenly lit, coarse
    "summit": _eyes(
        Style(
            colour=((1.05, 0.05, 0), (0.1, 0.68, 0), (0.25, 0.2, 0.7)),
            lamp=0.25,
            lamp_angle=0.8,
            resolution=0.6,
            quality=55,
        ),
        Eyes(disc=(0.41, 0.03), cup=(0.5, 0.07)),
    ),
}

POLYP: Mapping[str, Hospital] = {
    # a new endoscope, overexposed
    "north": _bowels(
        Style(gamma=0.75, contrast=0.85, haze=(0.08, 0.06, 0.06), aperture=1.12, noise=0.01),
        Polyps(),
    ),
    # an old endoscope: dark, amber, square field of view
    "harbour": _bowels(
        Style(
            colour=((1.05, 0.1, 0), (0.12, 0.76, 0), (0.1, 0.28, 0.36)),
            gamma=1.2,
            vignette=0.35,
            aperture=1.0,
            squareness=6.0,
            noise=0.02,
        ),
        Polyps(),
    ),
    # narrow-band light: teal, grainy
    "valley": _bowels(
        Style(colour=((0.4, 0.4, 0.1), (0, 1.0, 0.15), (0, 0.5, 0.6)), aperture=1.25, noise=0.03, quality=80),
        Polyps(often=(0.5, 0.3, 0.2), radius=(0.18, 0.34)),
    ),
    # a fogged lens: pale, soft, no border
    "lakeside": _bowels(
        Style(
            colour=((0.75, 0, 0.1), (0.1, 0.8, 0.1), (0.1, 0.2, 1.2)),
            contrast=0.8,
            haze=(0.25, 0.27, 0.32),
            blur=1.2,
        ),
        Polyps(),
    ),
    # a video capture: purple, unevenly lit, coarse
    "summit": _bowels(
        Style(
            colour=((1.1, 0, 0), (0, 0.7, 0.05), (0.15, 0, 0.95)),
            lamp=0.3,
            lamp_angle=2.4,
            aperture=1.0,
            resolution=0.6,
            quality=55,
        ),
        Polyps(often=(0.7, 0.2, 0.1), radius=(0.22, 0.4)),
    ),
}


def _studio(style: Style, drawing: Drawing) -> Hospital:
    return Hospital(style, partial(draw_shape, drawing))


SHAPES: Mapping[str, Hospital] = {
    # paper cut-outs on a light table
    "north": _studio(Style(noise=0.01), Drawing()),
    # flat colours with a thick outline, as in a cartoon
    "harbour": _studio(
        Style(contrast=1.1), Drawing(0.6, 0.4, colourful=0.7, outline=0.07, texture=0.0, rough=0.01)
    ),
    # chalk on a blackboard
    "valley": _studio(Style(noise=0.04, gamma=1.1), Drawing(0.15, 0.75, 0.05, filled=0.4, rough=0.04)),
    # water colours: pale and soft
    "lakeside": _studio(
        Style(colour=((0.7, 0.1, 0), (0, 0.8, 0.2), (0, 0.3, 1.0)), haze=(0.2, 0.2, 0.25), blur=1.5),
        Drawing(0.8, 0.4, 0.4, outline=0.0, texture=0.15, rough=0.045),
    ),
    # a pencil sketch under a warm lamp
    "summit": _studio(
        Style(colour=((1.1, 0.05, 0), (0.1, 0.9, 0), (0, 0.1, 0.7)), lamp=0.2, resolution=0.7, quality=60),
        Drawing(0.75, 0.35, 0.05, filled=0.0, outline=0.03),
    ),
}

HOSPITALS: Mapping[str, Mapping[str, Hospital]] = {"fundus": FUNDUS, "polyp": POLYP, "shapes": SHAPES}
