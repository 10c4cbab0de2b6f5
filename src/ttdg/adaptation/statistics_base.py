"""The BatchNorm statistics under a method: the source's, the test batch's, or a mixture of both.

Methods that train γ, β or all weights on batch statistics start from what `norm` answers, which is poor for small
batches and small maps. Any such method can start from the source statistics or from those of `alpha-bn` instead; its
update rule stays the same. Other methods fix their statistics: they are part of the method, or have an option of their
own (`alpha` of `memo` and `universe-gradient`, `statistics` of the methods that learn a site).
"""

from collections.abc import Mapping
from typing import Literal

from ttdg.adaptation.adapter import Method
from ttdg.errors import UserError, suggestion
from ttdg.networks import batchnorm

Statistics = Literal["own", "eval", "mix", "batch"]
BATCH_SHARE = 0.1  # of the test batch in `mix`: the default of `alpha-bn`
BASES: Mapping[str, batchnorm.Mode] = {
    "eval": batchnorm.EVAL,
    "mix": batchnorm.MixMode(BATCH_SHARE),
    "batch": batchnorm.BATCH,
}


def allows_statistics(method: Method) -> bool:
    """Return True if the method adapts a network on batch statistics, which another base can replace."""
    return method.norm == "BATCH" and method.adapts != "nothing"


def effective_statistics(method: Method, statistics: str) -> Statistics:
    """Return the base that makes a difference: "own" if the method has this base already, or allows no other.

    Raises:
        UserError: If the name is unknown.
    """
    if statistics not in (known := ("own", *BASES)):
        raise UserError(f"unknown statistics {statistics!r}{suggestion(statistics, known)}")
    return statistics if allows_statistics(method) and statistics != "batch" else "own"  # type: ignore[return-value]
