"""docs/paper.md names only functions that import and tests that exist, and covers every equation and algorithm."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(ttdg(?:\.\w+)+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE)))
ALGORITHM_LINES = {1: 20, 2: 6, 3: 14}


def resolve(dotted: str) -> object:
    """The object at a dotted path: the longest importable module, then attributes."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise  # a dependency is missing, not the module itself
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(dotted)


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def section(title: str) -> str:
    """The text below the heading that begins with `title`, up to the next heading of the same or a higher level."""
    match = re.search(rf"^(#+) {re.escape(title)}.*$", PAGE, re.MULTILINE)
    assert match, f"no heading {title!r}"
    rest = PAGE[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def lines_of(cell: str) -> set[int]:
    """The numbers in the first cell of a row: "9", "6, 12" or "4–7"."""
    lines: set[int] = set()
    for part in cell.split(","):
        first, _, last = part.strip().partition("–")
        lines |= set(range(int(first), int(last or first) + 1))
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_page_imports(name):
    resolve(name)


@pytest.mark.parametrize("test", TESTS)
def test_every_test_on_the_page_exists(test):
    path, name = test.split("::")
    assert name in functions_in(path)


@pytest.mark.parametrize("number", range(1, 13))
def test_every_equation_has_its_code_and_its_test(number):
    text = section(f"Eq. {number}:")
    assert re.search(r"^- Code: .*`ttdg\.", text, re.MULTILINE)
    assert re.search(r"^- Tests?: `tests/", text, re.MULTILINE)
    assert re.search(r"^- Difference: ", text, re.MULTILINE)


@pytest.mark.parametrize("number", ALGORITHM_LINES)
def test_every_line_of_every_algorithm_is_on_the_page_once(number):
    rows = re.findall(r"^\| ([\d, –]+) \|", section(f"Algorithm {number}:"), re.MULTILINE)
    lines = [line for cell in rows for line in lines_of(cell)]
    assert sorted(lines) == list(range(1, ALGORITHM_LINES[number] + 1))


def test_definitions_and_the_lemma_are_on_the_page():
    text = section("Definitions and lemma")
    assert all(name in text for name in ("Definition 1", "Definition 2", "Lemma 1"))


@pytest.mark.parametrize(
    "symbol",
    [
        "E",
        "S",
        "φ",
        "𝒱_i",
        "𝒜_i",
        "Y_i",
        "U_i",
        "𝒰",
        "X_ij",
        "M_ij",
        "M̂_ij",
        "𝐖",
        "V_i",
        "τ",
        "λ",
        "γ",
        "α",
        "θ",
        "MIter",
        "L_sup",
        "L(𝒰)",
        "L_mat",
    ],
)
def test_every_symbol_is_in_the_glossary(symbol):
    cells = re.findall(r"^\| ([^|]+) \|", section("Symbols"), re.MULTILINE)
    assert any(symbol in re.split(r"[ ,=()]+", cell) or cell.startswith(symbol) for cell in cells)


SHOWN = [f"Table {number}" for number in ("1", "2", "3", "4", "5", "A1", "A2", "A3", "A4", "A5")]
SHOWN += [f"Figure {number}" for number in ("3", "4", "A1", "A2", "A3", "A4", "A5")]


@pytest.mark.parametrize("shown", SHOWN)
def test_every_table_and_figure_with_results_has_a_command(shown):
    """Figures 1 and 2 are drawings."""
    rows = re.findall(
        r"^\| ([^|]+) \|[^|]+\| `((?:ttdg|python) [^`]+)`", section("Commands for the tables"), re.MULTILINE
    )
    assert any(re.search(rf"{shown}\b", name) for name, _ in rows)


def test_experiments_named_in_commands_exist_in_their_yaml_files():
    import yaml

    for path, name in re.findall(r"(experiments/[\w-]+\.yaml)[^`|]*--only \"([^\"]+)\"", PAGE):
        known = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))["experiments"]
        assert name in {experiment["name"] for experiment in known}


@pytest.mark.parametrize("script", sorted(set(re.findall(r"python (benchmarks/\w+\.py)", PAGE))))
def test_scripts_named_in_commands_have_the_options_that_are_given(script):
    text = (ROOT / script).read_text(encoding="utf-8")
    for line in re.findall(rf"python {script}([^`]*)`", PAGE):
        assert all(f'"{option}"' in text for option in re.findall(r"--\w+", line))
