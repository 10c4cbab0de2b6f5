"""Pickles and copies of objects whose class is made at run time, such as a network that returns something else."""

import copyreg
from collections.abc import Callable
from typing import Any

LEAST = 2  # protocol whose description of an object has the form that `remade` reads

ClassMaker = Callable[[type], type]  # makes a class from another one, and the same class every time


def remade(description: Any, make: ClassMaker, base: type) -> Any:
    """Return a description of an object that names no class made at run time, but `make` and `base`.

    Args:
        description: What `__reduce_ex__` of the object returned. One that the class has written itself is returned.
        make: Function of a module.
        base: The class from which `make` made the class of the object.
    """
    if not isinstance(description, tuple) or description[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return description
    (_, *arguments), *rest = description[1:]
    return _new, (make, base, *arguments), *rest


def _new(make: ClassMaker, base: type, *arguments: Any) -> Any:
    kind: Any = make(base)
    return kind.__new__(kind, *arguments)
