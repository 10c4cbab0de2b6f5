"""The page of commands, generated from the command line itself."""

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from methods_page import table
from ttdg.cli import app

INTRODUCTION = """# Commands

Generated from the command line; `ttdg COMMAND --help` prints the same text. Exit status 0: success. 1: `ttdg verify`
found a difference. 2: an error that the user can correct, explained in one sentence. 3: the run finished, but some
files or jobs failed.
"""
MARKUP = re.compile(r"\[/?bold\]")


def page() -> str:
    """The whole page as Markdown."""
    return "\n\n".join([INTRODUCTION, *(section(name, command) for name, command in commands())]) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, sub-commands included."""

    def visit(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield name, command
        else:
            for child, inner in children.items():
                yield from visit(f"{name} {child}", inner)

    yield from visit("ttdg", get_command(app))


def section(name: str, command: Any) -> str:
    """One command: its help text, then its arguments and options."""
    rows = [row(parameter) for parameter in command.params if "--help" not in parameter.opts]
    meaning, _, example = " ".join((command.help or "").split()).partition("Example: ")
    text = [f"## {name}", MARKUP.sub("`", meaning).strip()]
    text += [f"```\n{MARKUP.sub('', example)}\n```"] if example else []
    text += [table(("option", "default", "meaning"), rows)] if rows else []
    return "\n\n".join(text)


def row(parameter: Any) -> tuple[str, str, str]:
    """One argument or option."""
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = any(name.startswith("-") for name in names)
    shown = ", ".join(f"`{name}`" for name in names) if is_option else f"`{parameter.name.upper()}`"
    default = "required" if parameter.required else default_text(parameter.default)
    return shown, default, " ".join((getattr(parameter, "help", "") or "").split())


def default_text(value: Any) -> str:
    """A default value; nothing where there is none."""
    return "" if value is None or value in ([], ()) else f"`{value}`"
