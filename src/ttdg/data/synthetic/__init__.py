"""Drawn images of five sites, from a seed: `fundus`, `polyp`, `prostate` (volumes) and `shapes` (classes)."""

# The names of the hospitals, and the images of one as arrays.
from ttdg.data.synthetic.cases import SITES, draw_site

# All hospitals as a benchmark folder.
from ttdg.data.synthetic.write import write_benchmark

__all__ = ["SITES", "draw_site", "write_benchmark"]
