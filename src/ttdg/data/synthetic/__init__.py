"""Synthetic images of five hospitals, drawn from a seed: `fundus`, `polyp`, volumes of the `prostate`, and
images of single `shapes` for classification."""

# The names of the hospitals, and the images of one as arrays.
from ttdg.data.synthetic.cases import SITES, draw_site

# All hospitals as a benchmark folder.
from ttdg.data.synthetic.write import write_benchmark

__all__ = ["SITES", "draw_site", "write_benchmark"]
