"""Label-free tests of an answer against that of the source model, and of an update against the source weights."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.metrics import region_probabilities
from ttdg.safety.policy import GatePolicy
from ttdg.types import Regions

SMALL = 1e-4  # share of the pixels that is added to areas before they are compared


def failed_tests(
    source: Float[Tensor, "b l h w"],
    answer: Float[Tensor, "b l h w"],
    regions: Regions,
    policy: GatePolicy,
    expected: tuple[Float[Tensor, "e b"], Float[Tensor, "e b"]] | None = None,
    foreign: Bool[Tensor, " b"] | None = None,
) -> list[str]:
    """Return, for each image, why the answer is not accepted; an empty text if it is.

    Args:
        source: Logits of the source model.
        answer: Logits of the adapted model.
        regions: Scored regions.
        policy: Bounds of the tests.
        expected: Dice that each member of the judge expects of the source and of the answer; None without a judge.
        foreign: Images that are not of the source's kind; None if that is not known.
    """
    R_source, R_answer = (region_probabilities(logits, regions).flatten(2) for logits in (source, answer))
    area = [(R >= 0.5).double().mean(2) for R in (R_source, R_answer)]
    growth = ((area[1] + SMALL) / (area[0] + SMALL)).log().abs().amax(1)
    overlap = answer_overlap(source, answer, regions)
    never = torch.zeros_like(growth, dtype=torch.bool)
    losing, disagreeing, low = never, overlap < policy.least_agreement, overlap
    if expected is not None:
        gains = expected[1] - expected[0]
        spread = gains.std(0) if len(gains) > 1 else torch.zeros_like(gains[0])
        low = (gains.mean(0) + policy.caution * spread).nan_to_num(-1.0)
        losing, disagreeing = low < policy.least_gain, never
        if policy.least_gain <= 0:  # an answer close to the source's loses little
            losing = losing & (overlap < policy.close)
    tests = {
        "not finite": ~answer.isfinite().flatten(1).all(1),
        "not this kind of image": never if foreign is None else foreign.to(never.device),
        "expected to lose": losing,
        "disagrees with the source": disagreeing,
        "area changed too much": growth > torch.tensor(policy.largest_growth).log(),
    }
    failed = torch.stack([*tests.values()]).T.tolist()
    values = low.tolist()
    return [_reason(list(tests), row, value) for row, value in zip(failed, values, strict=True)]


def answer_overlap(
    source: Float[Tensor, "b l h w"], answer: Float[Tensor, "b l h w"], regions: Regions
) -> Float[Tensor, " b"]:
    """Dice of two answers to each image with each other, averaged over the regions."""
    one, other = (region_probabilities(logits, regions).flatten(2) >= 0.5 for logits in (source, answer))
    total = one.double().mean(2) + other.double().mean(2)
    return (2 * (one & other).double().mean(2) / total).where(total > 0, 1.0).mean(1)


def mean_answer(
    source: Float[Tensor, "b l h w"], answer: Float[Tensor, "b l h w"]
) -> Float[Tensor, "b l h w"]:
    """Logits of the mean of two answers' probabilities."""
    return torch.logaddexp(source.log_softmax(1), answer.log_softmax(1)) - math.log(2)


def _reason(names: Sequence[str], failed: Sequence[bool], value: float) -> str:
    """Return the names of the failed tests, with the expected gain or the agreement in brackets."""
    words = {
        "expected to lose": f"expected to lose ({100 * value:+.1f} Dice)",
        "disagrees with the source": f"disagrees with the source (Dice {100 * value:.0f})",
    }
    return "; ".join(words.get(name, name) for name, bad in zip(names, failed, strict=True) if bad)


def weight_change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the norm of the change of all floating-point tensors, as a share of the norm before."""
    names = [name for name, value in before.items() if value.is_floating_point() and name in after]
    if not names:
        return 0.0
    change = torch.stack([(after[n].double() - before[n].double()).square().sum() for n in names]).sum()
    norm = torch.stack([before[n].double().square().sum() for n in names]).sum()
    return float((change / norm.clamp(min=1e-30)).sqrt().nan_to_num(float("inf")))
