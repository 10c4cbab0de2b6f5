"""HTML pages from templates."""

from functools import cache
from typing import Any


def render_html(template: str, *, package: str = "ttdg.report", **values: object) -> str:
    """Render a file of a package's `templates/`; values are escaped, and an undefined name raises an error."""
    return str(_environment(package).get_template(template).render(**values))


def compile_templates(package: str) -> None:
    """Compile all templates of a package, so that the first page does not wait for it."""
    environment = _environment(package)
    for name in environment.list_templates():
        environment.get_template(name)


@cache
def _environment(package: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined)
