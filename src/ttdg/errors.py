"""Errors that the user can correct, and warnings. The command line shows both as sentences, without lines of code."""

from collections.abc import Iterable


class UserError(ValueError):
    """Invalid input. The message says what is wrong, where, and how to correct it."""


class TtdgWarning(RuntimeWarning):
    """What a user should know of an input or of the machine, although the work goes on."""


def suggestion(name: object, known: Iterable[object]) -> str:
    """Text for the end of an error message about an unknown name: the closest known name, then all known names.

    Case is ignored. Without a close match the text contains the known names only.
    """
    import difflib

    names = sorted(str(item) for item in known)
    by_lower = {item.lower(): item for item in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return (f"; did you mean {by_lower[close[0]]!r}?" if close else "") + f" (known: {', '.join(names)})"
