"""The table of data sets that can be imported, from their descriptions."""

import re

from methods_page import table
from ttdg.data.downloads.description import dataset_description, importable


def datasets_table() -> str:
    """Name, source, terms and layout of each data set."""
    lines = []
    for name in importable():
        about = dataset_description(name)
        raters = f" Raters: {', '.join(f'`{rater}`' for rater in about.raters)}." if about.raters else ""
        unverified = f" **Not verified:** {about.unverified}." if about.unverified else ""
        layout = about.layout.replace("*", r"\*")
        kind = f"`{about.benchmark}`" if about.benchmark else "class folders"
        sites = ", ".join(dict.fromkeys(f"`{site}`" for site in _sites(name)))
        lines.append(
            (f"`{name}`", about.title, kind, sites, about.home, about.terms, f"{layout}.{raters}{unverified}")
        )
    return table(("name", "data set", "benchmark", "sites", "from", "terms", "layout of the download"), lines)


def _sites(name: str) -> list[str]:
    """Sites of a data set, from its names of sites and the values that its paths may have."""
    found = []
    for part in dataset_description(name).parts:
        if part.site != "{site}":
            found.append(part.site)
        elif part.sites:
            found += part.sites.values()
        else:
            values = re.search(r"\(\?P<site>([^)]*)\)", part.image)
            assert values is not None
            found += values[1].lower().split("|")
    return found
