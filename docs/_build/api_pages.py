"""The API reference: one page for each package, whose text mkdocstrings takes from the docstrings."""

from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "ttdg"
WITHOUT = {"cli", "assets", "__pycache__"}  # the commands have a page of their own
FRONT = """# ttdg

The names of the top-level package. Each is defined in one of the packages below.

| name | what it is |
|---|---|
| `ttdg.adapt` | [`ttdg.adaptation.build.adapt`][]: an adapter around a copy of a network |
| `ttdg.fit` | [`ttdg.foreign.fit_parts.fit`][]: the parts of `judge` and `universe` for any network |
| `ttdg.export` | [`ttdg.foreign.export_network.export`][]: a network as ONNX or as a program of PyTorch |
| `ttdg.load` | [`ttdg.checkpoints.model.load`][]: a checkpoint with its parts |
| `ttdg.METHODS` | [the methods](../methods.md) by name |
| `ttdg.Segmenter`, `ttdg.NetworkSpec` | [`ttdg.networks.segmenter`][]: the U-Net that `ttdg train` trains |

"""


def pages() -> dict[str, str]:
    """Path in the site → Markdown."""
    found = {f"api/{package}.md": package_page(package) for package in packages()}
    links = "\n".join(f"- [`ttdg.{package}`]({package}.md)" for package in packages())
    return {"api/index.md": f"{FRONT}## Packages\n\n{links}\n\n{modules_text()}", **found}


def packages() -> list[str]:
    """The packages directly below `ttdg`."""
    return sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in WITHOUT)


def package_page(package: str) -> str:
    """The docstring of the package, then every module with its public names."""
    modules = sorted(path for path in (ROOT / package).rglob("*.py"))
    options = "    options:\n      members: false\n      show_root_heading: false\n"
    head = f"# ttdg.{package}\n\n::: ttdg.{package}\n{options}"
    return head + "".join(directive(path) for path in modules if path != ROOT / package / "__init__.py")


def modules_text() -> str:
    """The modules that are in no package."""
    names = sorted(path for path in ROOT.glob("*.py") if not path.name.startswith("__"))
    return "".join(directive(path) for path in names)


def directive(path: Path) -> str:
    """What makes mkdocstrings document one module. Packages inside packages show their docstring only."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    if parts[-1] != "__init__":
        return f"\n::: {'.'.join(parts)}\n"
    return f"\n::: {'.'.join(parts[:-1])}\n    options:\n      members: false\n"
