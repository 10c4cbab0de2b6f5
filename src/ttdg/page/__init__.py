"""The page: images of a new site, the matching and benchmark runs in a browser."""

# `create_app` builds the server, `PageSettings` is what the command decides.
from ttdg.page.app import create_app
from ttdg.page.settings import PageSettings

__all__ = ["PageSettings", "create_app"]
