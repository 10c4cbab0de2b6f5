"""Synthetic hospitals"""

from typing import Literal

import numpy as np
from jaxtyping import UInt8

from ttdg.data.synthetic.fields import stream
from ttdg.data.synthetic.fundus import draw_fundus
from ttdg.data.synthetic.hospitals import FUNDUS, POLYP
from ttdg.data.synthetic.polyp import draw_polyps
from ttdg.data.synthetic.style import develop

Variant = Literal["fundus", "polyp"]
SITES = ("north", "harbour", "valley", "lakeside", "summit")

def draw_case(variant, site, case, size, seed):
    style, people = (FUNDUS if variant == "fundus" else POLYP)[site]
    draw = draw_fundus if variant == "fundus" else draw_polyps
    scene, labels = draw(stream(seed, variant, site, "patient", case), stream(seed, variant, site, "case", case), people, size)
    return develop(scene, style, stream(seed, variant, site, "camera", case)), labels

def draw_site(variant: Variant, site: str, count: int, size: int = 128, seed: int = 0):
    pairs = [draw_case(variant, site, c, size, seed) for c in range(count)]
    return np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])
