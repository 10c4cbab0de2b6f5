"""Checks of numbers that a caller gives in Python or in a yaml file: counts, seeds, and keywords of functions."""

import math
from collections.abc import Collection
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, get_args

from ttdg.errors import UserError

LARGEST_SEED = (
    2**32 - 1
)  # and its negative; the product with a number of steps then fits every random generator
FROM_ZERO = ("hospitals",)  # keywords whose count may be 0


def whole_number(what: str, value: Any, least: int = 1, most: int | None = None, remedy: str = "") -> int:
    """Return a whole number, also one of NumPy, as `int`; raise `UserError` for another value.

    Args:
        what: What the number is, for the sentence.
        value: The number.
        least: Smallest allowed number.
        most: Largest allowed number.
        remedy: End of the sentence.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    raise UserError(f"{what} must be a whole number, {bounds}, not {value!r}{remedy}")


def checked_seed(value: Any, what: str = "seed", remedy: str = "") -> int:
    """Return a seed as `int`; raise `UserError` if a random generator could not use it."""
    return whole_number(what, value, -LARGEST_SEED, LARGEST_SEED, remedy)


def checked_keyword(
    parameter: Parameter, value: Any, what: str, remedy: str = "", choices: Collection[str] = ()
) -> Any:
    """Return the value of a keyword; raise `UserError` if it does not fit the keyword.

    Whole numbers are counts, or a seed. Other numbers are 0 or more. NumPy's numbers become those of Python.

    Args:
        parameter: The keyword with its annotation: bool, int, float, str, or one of these or None.
        value: The value.
        what: What the value is, for the sentence.
        remedy: End of the sentence.
        choices: Allowed values of a text.
    """
    kinds = get_args(parameter.annotation) or (parameter.annotation,)
    if value is None and type(None) in kinds:
        return None
    if parameter.name == "seed":
        return checked_seed(value, what, remedy)
    if int in kinds:
        return whole_number(what, value, int(parameter.name not in FROM_ZERO), remedy=remedy)
    if float in kinds:
        if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf:
            return float(value)
        raise UserError(
            f"{what} must be a number, at least 0, such as {parameter.default!r}, not {value!r}{remedy}"
        )
    if type(value) in kinds and (not choices or value in choices):
        return value
    expected = (
        f"one of {', '.join(choices)}" if choices else f"{kinds[0].__name__}, such as {parameter.default!r}"
    )
    raise UserError(f"{what} must be {expected}, not {value!r}{remedy}")
