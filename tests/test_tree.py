"""Rules of the source tree: imports point down, folders stay small, and a public name is defined once."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "ttdg"
FILES = sorted(path for path in SRC.rglob("*.py") if path.relative_to(SRC).parts[0] != "__main__.py")
LAYERS = (
    {"types", "errors", "fields", "files", "pickling"},
    {"arguments"},
    {"matching", "networks", "data", "metrics"},
    {"prior"},
    {"checkpoints"},
    {"safety"},
    {"training", "adaptation"},
    {"evaluation", "foreign"},
    {"bench"},
    {"newsite", "report"},
    {"page"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LARGEST_FOLDER = 22


def package_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The packages of ttdg that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            names = [
                f"{node.module}.{alias.name}" if node.module == "ttdg" else node.module or ""
                for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("ttdg.")}
    return found & LEVEL.keys()


def test_imports_point_down_only():
    wrong = []
    for path in FILES:
        package = package_of(path)
        if package == "__init__":
            continue
        assert package in LEVEL, f"{package} is in no layer: add it to LAYERS"
        wrong += [
            f"{path.relative_to(SRC)} imports {other}"
            for other in imported(path) - {package}
            if LEVEL[other] >= LEVEL[package]
        ]
    assert not wrong, "\n".join(wrong)


def test_every_layer_has_code():
    assert LEVEL.keys() <= {package_of(path) for path in FILES}


def test_no_folder_is_crowded():
    counts: dict[Path, int] = defaultdict(int)
    for path in FILES:
        counts[path.parent] += 1
    assert {str(folder): n for folder, n in counts.items() if n > LARGEST_FOLDER} == {}


def test_a_public_function_or_class_is_defined_in_one_module():
    homes: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path.relative_to(SRC)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
