from ttdg.training.checkpoint import Model, ModelCard, load, save
from ttdg.training.recipe import Recipe
from ttdg.training.sources import Sources, load_sources
from ttdg.training.train import Progress, make_fabric, train

__all__ = [
    "Model",
    "ModelCard",
    "Progress",
    "Recipe",
    "Sources",
    "load",
    "load_sources",
    "make_fabric",
    "save",
    "train",
]
