"""HTML pages from the templates of this package."""


def render_html(template: str, **values: object) -> str:
    """Render a file of `templates/`; values are escaped, and an undefined name raises an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("ttdg.report"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(template).render(**values)
