"""Imports point down only (docs/architecture in one test)."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "ttdg"

LAYERS = (
    {"types", "errors", "files"},
    {"parts"},
    {"matching", "networks", "data", "metrics"},
    {"graphs"},
    {"prior"},
    {"training", "adapt"},
    {"safety"},
    {"newsite", "experiment"},
    {"web"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(path: Path) -> set[str]:
    """The top-level parts of ttdg that a file imports, wherever in the file."""
    parts: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: absolute imports only"
            names = [
                f"{node.module}.{alias.name}" if node.module == "ttdg" else node.module or ""
                for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("ttdg.")}
    return parts & LEVEL.keys()


FILES = [
    path for path in SRC.rglob("*.py") if path.relative_to(SRC).parts[0] not in ("__init__.py", "__main__.py")
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down_only(path: Path):
    part = path.relative_to(SRC).parts[0].removesuffix(".py")
    assert part in LEVEL, f"{part} is in no layer: add it to LAYERS"
    for other in imported(path) - {part}:
        assert LEVEL[other] < LEVEL[part], f"{part} must not import {other}"
