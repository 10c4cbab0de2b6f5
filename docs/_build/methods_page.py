"""The page of methods, generated from `ttdg.METHODS`."""

import inspect
from collections.abc import Iterable, Sequence

from ttdg.adaptation import METHODS, Method, allowed, defaults
from ttdg.checkpoints import how_to_make
from ttdg.evaluation.search_space import grid_text, published_text

INTRODUCTION = """# Methods

Every method takes a network and a batch of images and returns logits. This page is generated from
`ttdg.METHODS`; `ttdg methods NAME` prints the same facts in a terminal. The contract test
(`tests/adaptation/test_contract.py`) checks every method against what it declares here.

- **Adapts**: the parameters that change at test time.
- **BatchNorm**: the statistics that BatchNorm layers use. `EVAL`: those of the source. `BATCH`: those of the test
  batch. `MIX(ρ)`: a mixture with weight ρ on the batch.
- **Passes**: forward and backward passes of the network for one batch, with default options.
- **Access**: what the method needs of the source besides the trained network. "Post hoc": the paper trains the parts
  together with the network, here they are fitted afterwards.
- **Parts**: files that must be fitted on source images before the method can run.
- **Published reset**: when the authors reset the model. In an evaluation, the [stream](concepts.md#streams) decides.
"""
UNKNOWN = "not documented yet"


def page() -> str:
    """The whole page as Markdown."""
    overview = table(
        ("method", "what it does", "adapts", "BatchNorm", "passes", "access", "parts"),
        (
            (
                f"[`{name}`](#{anchor(name)})", method.summary, method.adapts, f"`{method.norm}`",
                f"{method.forwards} + {method.backwards}", method.access, ", ".join(method.parts) or "none",
            )
            for name, method in METHODS.items()
        ),
    )  # fmt: skip
    return "\n\n".join([INTRODUCTION, overview, *(section(name) for name in METHODS)]) + "\n"


def section(name: str) -> str:
    """One method: its facts, its options, and the decisions behind its implementation."""
    method = METHODS[name]
    update = "no update" if method.adapts == "nothing" else f"{method.predict} the update"
    facts = [
        ("paper", method.paper),
        ("adapts", method.adapts),
        ("BatchNorm", f"`{method.norm}`"),
        ("passes per batch", f"{method.forwards} forward, {method.backwards} backward"),
        ("prediction", update),
        ("memory between batches", "yes" if method.memory else "no"),
        ("published reset", method.reset),
        ("needs", ", ".join(method.needs) or "any network"),
        ("access", method.access + (", post hoc" if method.post_hoc else "")),
        ("parts", "; ".join(f"`{part}`: {how_to_make(part)}" for part in method.parts) or "none"),
        ("origin of the defaults", method.origin),
        ("published", published_text(name)),
        ("tuned over", grid_text(name)),
    ]  # fmt: skip
    parts = [f"## {name} {{ #{anchor(name)} }}", sentence(method.summary), table(("", ""), facts)]
    parts += [options_table(name, method) if defaults(name) else "This method has no options."]
    return "\n\n".join([*parts, details(method)])


def options_table(name: str, method: Method) -> str:
    """The options of one method: default, allowed values, meaning, origin."""
    rows = []
    for option, default in defaults(name).items():
        entry = method.options.get(option)
        text, origin = (entry.text, entry.origin) if entry else (UNKNOWN, UNKNOWN)
        rows.append((f"`{option}`", f"`{shown(default)}`", allowed(name, option) or "any", text, origin))
    return table(("option", "default", "allowed", "what it does", "origin of the default"), rows)


def details(method: Method) -> str:
    """The docstring of the method's module, folded."""
    text = inspect.getdoc(inspect.getmodule(method.build)) or ""
    lines = ["    " + line if line else "" for line in text.replace("<", "&lt;").splitlines()]
    return "\n".join(['??? note "Implementation notes"', "", *lines])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def anchor(name: str) -> str:
    """The fragment of a method's section; a prefix keeps it apart from other headings."""
    return f"method-{name}"


def shown(value: object) -> str:
    """A default value as it is typed on the command line."""
    return f"{value:.4g}" if isinstance(value, float) else "''" if value == "" else str(value)


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
