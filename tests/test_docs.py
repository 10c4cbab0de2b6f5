"""The documentation: links, code blocks, commands, names, options and numbers are checked against the package."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ttdg
from ttdg.adaptation import METHODS, defaults
from ttdg.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_build"))
import api_pages  # noqa: E402
import commands_page  # noqa: E402
import gains  # noqa: E402
import methods_page  # noqa: E402

PAGES = [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if "records" not in path.parts)]
GENERATED = {
    *("methods.md", "commands.md", "leaderboard.md", "figures/gains.svg", "figures/strong-gains.svg"),
    *api_pages.pages(),
    *(f"tables/{path.name}.md" for path in (DOCS / "records").iterdir()),
}
SHORT = 12  # lines of a Python block that is also run
REMOVED = {  # in commit bdeea5b
    "experiments/leave_one_out.py",
    "experiments/summarise.py",
    "experiments/learn_to_adapt.py",
}
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(([^)\s]+)\)")
INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The text without code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    return [code for _, kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def inline(page: Path) -> set[str]:
    return {" ".join(code.split()) for code in INLINE.findall(prose(page))}


def headings(page: Path) -> set[str]:
    """The fragments of a page, as Python-Markdown makes them."""
    from markdown.extensions.toc import slugify

    found = set()
    for line in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text, _, attributes = line.partition(" {")
        explicit = re.search(r"#([\w-]+)", attributes)
        found.add(explicit[1] if explicit else slugify(re.sub(r"[`*]", "", text), "-"))
    return found


@pages
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"\w+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if path.is_relative_to(DOCS) and str(path.relative_to(DOCS)) in GENERATED:
            assert page != ROOT / "README.md", f"{target} exists only in the built site"
            continue
        assert path.exists(), f"{page.name} links to {target}"
        if fragment and path.suffix == ".md":
            assert fragment in headings(path), f"{page.name}: {path.name} has no heading #{fragment}"


@pages
def test_every_table_mark_has_a_table(page: Path) -> None:
    files = (DOCS / "_build" / "tables.py", DOCS / "_build" / "measured.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8")):
        assert f'"{name}":' in source


@pages
def test_python_blocks_compile(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


class Network(torch.nn.Module):
    """A small network with BatchNorm, for the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 2, 1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


def runnable() -> Iterator[Any]:
    """The short blocks that import everything they use."""
    for page in PAGES:
        for number, code in enumerate(blocks(page, "python")):
            if code.count("\n") <= SHORT and re.search(r"^(import|from) ", code, re.MULTILINE):
                yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(runnable()))
def test_short_python_blocks_run(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_images: Path
) -> None:
    (tmp_path / "new-site").symlink_to(demo_images)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(
        0
    )  # some untrained networks happen to return values between 0 and 1, which `fit` refuses
    short = partial(
        ttdg.fit, steps=1, hospitals=1, draws=1, mixing_steps=1, learning_steps=1, learning_draw=2
    )
    monkeypatch.setattr(importlib.import_module("ttdg.foreign"), "fit", short)
    names: dict[str, Any] = {"network": Network(), "images": torch.rand(4, 3, 64, 64)}
    names |= {"source_images": torch.rand(10, 3, 64, 64), "source_masks": torch.randint(2, (10, 64, 64))}
    if "parts=parts" in code and "ttdg.fit" not in code:
        names["parts"] = short(
            *map(names.get, ("network", "source_images", "source_masks")), activation="softmax"
        )
        names["parts"]["judge"].settings["learning"]["folder_steps"] = 1
    exec(compile(code, "block", "exec"), names)


@pytest.fixture(scope="module")
def demo_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two synthetic images of each hospital; the folder of one of them."""
    from ttdg.data.synthetic.write import write_benchmark

    return Path(write_benchmark(tmp_path_factory.mktemp("data"), "fundus", 2)) / "summit" / "images"


COMMANDS = dict(commands_page.commands())
GROUPS = {name.rsplit(" ", 1)[0] for name in COMMANDS}


def command_lines(page: Path) -> Iterator[str]:
    """Every call of `ttdg` in shell blocks and in inline code."""
    for code in (*blocks(page, ""), *blocks(page, "bash"), *blocks(page, "sh")):
        for line in code.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|\bdo\b", line):
                yield part.strip()
    yield from inline(page)


def used(page: Path) -> Iterator[list[str]]:
    for line in command_lines(page):
        if re.match(r"ttdg( |$)", line):
            yield shlex.split(line, comments=True)


@pages
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in used(page):
        if words[1:] in ([], ["--help"]) or words[1] == "COMMAND":
            continue
        depth = 3 if " ".join(words[:2]) in GROUPS and len(words) > 2 else 2
        name = " ".join(words[:depth])
        if name in GROUPS:
            continue
        assert name in COMMANDS, f"{page.name}: no command {name!r} in {' '.join(words)!r}"
        options = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        unknown = [w for w in words[depth:] if re.match(r"--?[a-z]", w) and w.split("=")[0] not in options]
        assert not unknown, f"{page.name}: {name} has no option {unknown}"


@pages
def test_methods_named_in_commands_exist(page: Path) -> None:
    for words in used(page):
        for flag, value in pairwise(words):
            if flag == "--method" and value != "my-method":
                assert set(value.split(",")) <= {*METHODS, "all"}, f"{page.name}: {' '.join(words)}"


@pages
def test_dotted_names_exist(page: Path) -> None:
    names = {match for code in inline(page) for match in re.findall(r"\bttdg(?:\.[A-Za-z_]\w*)+", code)}
    names |= set(re.findall(r"\]\[(ttdg[\w.]+)\]", prose(page)))
    for name in names:
        if name.removesuffix(".yaml") == name and not name.endswith(".py"):
            assert resolve(name) is not None, f"{page.name} names {name}"


def resolve(name: str) -> Any:
    """The module, class, function or attribute of that dotted name; None if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            declared = getattr(found, "__dataclass_fields__", {})
            found = getattr(found, part, declared.get(part))
        return found
    return None


@pages
def test_files_and_tests_named_in_prose_exist(page: Path) -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for code in inline(page):
        for word in re.findall(r"[\w./-]+\.(?:py|yaml|csv|json|md)\b", code):
            placeholder = re.search(r"\b[A-Z]{2,}\b|^before/|^/|^my-|my_method", word)
            if "/" in word and not placeholder and word not in REMOVED:
                places = (ROOT, ROOT / "src" / "ttdg", DOCS)
                assert any((place / word).exists() for place in places), f"{page.name} names {word}"
        if re.fullmatch(r"test_\w+", code):
            assert re.search(rf"def {code}\b", tests), f"{page.name} names {code}"


def test_every_page_is_in_the_navigation() -> None:
    def files(node: Any) -> Iterator[str]:
        for item in node if isinstance(node, list) else node.values():
            yield from [item] if isinstance(item, str) else files(item)

    nav = set(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {str(path.relative_to(DOCS)) for path in PAGES if path.is_relative_to(DOCS)}
    assert nav == written | {name for name in GENERATED if name.endswith(".md")}


def test_the_site_loads_nothing_from_the_network() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert "repo_url" not in config  # the theme would ask the host of the repository for its numbers
    local = [*config["extra_css"], *config["extra_javascript"]]
    assert all((DOCS / name).is_file() for name in local)
    for name in local:
        assert "//" not in re.sub(r"^\s*//.*|\s// .*", "", (DOCS / name).read_text(), flags=re.MULTILINE)


def test_the_page_of_methods_explains_every_method() -> None:
    page = methods_page.page()
    for name in METHODS:
        assert f"{{ #{methods_page.anchor(name)} }}" in page
    assert methods_page.UNKNOWN not in page


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_a_description_and_an_origin(name: str) -> None:
    options = METHODS[name].options
    assert set(options) == set(defaults(name))
    assert all(option.text.strip() and option.origin.strip() for option in options.values())


def test_the_page_of_commands_lists_every_option() -> None:
    page = commands_page.page()
    assert app.info.name == "ttdg"
    for name, command in COMMANDS.items():
        assert f"## {name}\n" in page
        for parameter in command.params:
            assert parameter.opts[0] == "--help" or parameter.opts[0].upper() in page.upper()


def test_the_table_in_the_readme_comes_from_the_records() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- python docs/_build/gains.py strong -->\s*(.*?)\s*<!-- end -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == gains.gains_table(gains.STRONG)


def test_the_readme_names_the_public_api() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "ttdg.adapt(" in text
    assert callable(ttdg.adapt)
    assert not inspect.ismodule(ttdg.adapt)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tables" / "polyp.html").is_file()
