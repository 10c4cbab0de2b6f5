"""What the user can mend: shown as one sentence, without a traceback."""


class UserError(ValueError):
    """Bad input, said in words: what is wrong, where, and what to do next."""


def suggestion(name: str, known: object) -> str:
    """'; did you mean X?' for a name close to a known one, in whatever case, then the known names."""
    import difflib

    names = sorted(str(item) for item in known)  # type: ignore[attr-defined]
    by_lower = {item.lower(): item for item in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return (f"; did you mean {by_lower[close[0]]!r}?" if close else "") + f" (known: {', '.join(names)})"
