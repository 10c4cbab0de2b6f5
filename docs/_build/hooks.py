"""MkDocs hooks: pages and tables that are generated when the site is built.

Generated pages (methods, commands, API, full tables) exist only in the built site. Hand-written pages may contain
the line `<!-- table: NAME -->`; the build replaces it with the table of that name (see `TABLES` in `tables.py`).
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import api_pages
import commands_page
import methods_page
import tables

REMOTE = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*rel=\"?stylesheet[^>]*https?://"
)
MARK = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and figures."""
    tables.started()
    pages: dict[str, str | bytes] = {
        "methods.md": methods_page.page(),
        "commands.md": commands_page.page(),
        **api_pages.pages(),
        **tables.pages(),
        **tables.figures(),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every table mark with its table."""
    return MARK.sub(lambda match: tables.TABLES[match[1]](), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page would load anything from the network."""
    pages = Path(config.site_dir).rglob("*.html")
    remote = [str(page) for page in pages if REMOTE.search(page.read_text(encoding="utf-8"))]
    if remote:
        raise PluginError(f"these pages load remote assets: {', '.join(remote)}")
