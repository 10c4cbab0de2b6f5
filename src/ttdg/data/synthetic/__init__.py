"""Five synthetic hospitals, drawn from a seed: an eye clinic each (`fundus`) and an endoscopy (`polyp`)."""

from ttdg.data.synthetic.cases import SITES, draw_site
from ttdg.data.synthetic.write import write_benchmark

__all__ = ["SITES", "draw_site", "write_benchmark"]
