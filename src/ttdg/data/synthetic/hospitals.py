"""Five hospitals that do not exist: a camera and a population each, for the eye and for the bowel."""

from ttdg.data.synthetic.fundus import Eyes
from ttdg.data.synthetic.polyp import Polyps
from ttdg.data.synthetic.style import Style

FUNDUS: dict[str, tuple[Style, Eyes]] = {
    "north": (Style(gamma=0.95, colour=((1.05, 0, 0), (0, 1.1, 0), (0, 0, 1.1)), noise=0.01, quality=92, drift=0.06), Eyes()),
    "harbour": (
        Style(
            colour=((0.95, 0, 0), (0, 0.75, 0), (0, 0, 0.6)), gamma=1.25, vignette=0.45, aperture=1.25, noise=0.02, drift=.06
        ),
        Eyes(disc=(0.32, 0.03), cup=(0.44, 0.06)),
    ),
    "valley": (
        Style(colour=((0.55, 0.35, -0.2), (-0.1, 1.2, 0), (0, 0.5, 0.3)), contrast=1.1, noise=0.05, lamp=0.1, quality=80, drift=.06),
        Eyes(disc=(0.38, 0.03), cup=(0.56, 0.07)),
    ),
    "lakeside": (
        Style(
            colour=((0.5, 0.1, 0), (0, 0.7, 0.3), (0, 0.5, 1.2)), haze=(0.35, 0.4, 0.45), contrast=0.8, blur=1.2,drift=.06
        ),
        Eyes(disc=(0.34, 0.03), cup=(0.60, 0.06)),
    ),
    "summit": (
        Style(
            colour=((1.05, 0, 0.1), (0, 0.7, 0.1), (0.2, 0, 1.2)), lamp=0.35, lamp_angle=0.8, resolution=0.5, quality=40,drift=.06
        ),
        Eyes(disc=(0.42, 0.03), cup=(0.5, 0.07)),
    ),
}
POLYP: dict[str, tuple[Style, Polyps]] = {
    "north": (Style(aperture=1.12, gamma=0.9, noise=0.01, drift=.06), Polyps()),
    "harbour": (
        Style(colour=((1.05, 0.1, 0), (0.1, 0.85, 0), (0, 0.3, 0.2)), gamma=1.5, vignette=0.5, aperture=1.0, squareness=6, noise=0.02, drift=.06),
        Polyps(),
    ),
    "valley": (
        Style(colour=((0.1, 0.5, 0.1), (0, 1.0, 0.2), (0, 0.5, 0.6)), contrast=1.2, aperture=1.25, noise=0.04, drift=.06),
        Polyps(radius=(0.15, 0.3)),
    ),
    "lakeside": (
        Style(colour=((0.75, 0, 0.1), (0.1, 0.8, 0.1), (0.1, 0.2, 1.2)), haze=(0.3, 0.32, 0.38), contrast=0.75, blur=1.3, drift=.06),
        Polyps(),
    ),
    "summit": (
        Style(colour=((1.15, 0, 0), (0, 0.7, 0), (0, 0, 1.2)), lamp=0.4, lamp_angle=2.4, resolution=0.5, quality=40, aperture=1.0, drift=.06),
        Polyps(radius=(0.22, 0.4)),
    ),
}
