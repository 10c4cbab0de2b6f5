"""What all requests share: the settings, the sites, the worker and the loaded models."""

import threading
from collections import OrderedDict
from pathlib import Path

from ttdg.adaptation import METHODS
from ttdg.checkpoints import Model, load
from ttdg.errors import UserError
from ttdg.newsite.auto import AUTO
from ttdg.page.jobs import SiteWorker
from ttdg.page.settings import PageSettings
from ttdg.page.sites import SiteStore

LOADED = 2  # models that stay in memory
UNKNOWN_MODEL = "this server does not offer that model; choose one of its models"
OFFERED = (
    "judge",
    "universe",
    "self-training",
    "norm",
    "source",
)  # methods that a model may have the parts of
ABOUT_AUTO = "Chooses source, judge or universe by the distance of the images from the source sites."


class Workspace:
    """The state of a server. Only the worker's counts and the loaded models are not in files."""

    def __init__(self, settings: PageSettings) -> None:
        self.settings, self.store = settings, SiteStore(settings.work)
        self.worker = SiteWorker(settings, self.store, self.model)
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._lock = threading.Lock()
        self._methods = {name: self._usable(self.model(name)) for name in settings.models}

    def model(self, name: str) -> Model:
        """Return a model that the command named; the latest ones stay loaded."""
        if name not in self.settings.models:
            raise UserError(UNKNOWN_MODEL)
        with self._lock:
            if name not in self._models:
                self._models[name] = load(name, self.settings.device)
            self._models.move_to_end(name)
            while len(self._models) > LOADED:
                self._models.popitem(last=False)
            return self._models[name]

    def model_titles(self) -> dict[str, str]:
        """Return the models by name, with the last part of the name as their title."""
        return {name: Path(name).name for name in self.settings.models}

    def methods(self, name: str) -> list[str]:
        """Return the methods that a model can use, the default first, which is `auto`."""
        if name not in self._methods:
            raise UserError(UNKNOWN_MODEL)
        return self._methods[name]

    @staticmethod
    def _usable(model: Model) -> list[str]:
        usable = [method for method in OFFERED if all(part in model.parts for part in METHODS[method].parts)]
        return [AUTO, *usable]

    @staticmethod
    def about(method: str) -> str:
        """Return what a method does, in one sentence."""
        return ABOUT_AUTO if method == AUTO else METHODS[method].summary
