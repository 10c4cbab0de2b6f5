"""Source training: recipes, data, the loop, and the parts that some methods need from source time."""

from ttdg.training.recipe import Recipe
from ttdg.training.sources import Sources, load_sources
from ttdg.training.train import Progress, make_fabric, train

__all__ = ["Progress", "Recipe", "Sources", "load_sources", "make_fabric", "train"]
