"""Compare the step of each method with its official behaviour. Takes seconds on a CPU.

    python benchmarks/fidelity.py

Each reference is written from the method's formulas, as the authors' code computes them (`fidelity_*.py`). Ours and the
reference run over the same stream or site, on the same small U-Net with logits of a size of about 5, in double
precision unless the table says otherwise. The table shows the largest absolute difference of all predictions and
adapted weights. The exit status is 1 if a difference is larger than allowed, which is what rounding explains. Where a
method departs from its paper on purpose, the reference has the same departure, and the module of the method declares
it. The exception is DomainAdaptor: its γ' and β' are trained for the biased variance, and those of the reference, as in
the authors' code, for the unbiased one.

`tasd-r` has no reference, because its authors published no code, and the methods of this project have none.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

import fidelity_cpr
import fidelity_labels
import fidelity_memory
import fidelity_norm
import fidelity_parts
import fidelity_site
import fidelity_steps
from fidelity_tools import Pairs


class Check(NamedTuple):
    compared: str
    pairs: Callable[..., Pairs]
    allowed: float  # largest difference


CHECKS = {
    "source": Check("prediction", fidelity_norm.source, 1e-12),
    "norm": Check("prediction", fidelity_norm.norm, 1e-12),
    "alpha-bn": Check("prediction, α = 0.3", fidelity_norm.alpha_bn, 1e-12),
    "dua": Check("statistics and prediction, eight views", fidelity_norm.dua, 1e-12),
    "intent": Check("weighted mean prediction", fidelity_norm.intent, 1e-7),
    "tent": Check("Adam step", fidelity_steps.tent, 1e-12),
    "sar": Check("SAM step, margin 0.4 ln C, no recovery", fidelity_steps.sar, 1e-12),
    "cotta": Check("step, teacher, restoring of 0.3; no views", fidelity_steps.cotta, 1e-6),
    "memo": Check("step on the mean over given views", fidelity_steps.memo, 1e-12),
    "grata": Check("step, half entropy, given view", fidelity_steps.grata, 1e-9),
    "grata, memo": Check("photometric view without blur", fidelity_steps.photometric_noise, 1e-9),
    "domainadaptor": Check("AdaMixBN and GEM step", fidelity_norm.domain_adaptor, 1e-4),
    "nc-ttt": Check("5 Adam steps (single precision)", partial(fidelity_steps.nc_ttt, "adam"), 1e-4),
    "nc-ttt, sgd": Check("5 SGD steps (single precision)", partial(fidelity_steps.nc_ttt, "sgd"), 1e-5),
    "pass": Check("steps, average, fallback (single precision)", fidelity_norm.pass_, 1e-4),
    "pass, fallback": Check("score", fidelity_norm.pass_score, 1e-12),
    "tegda": Check("step, teacher, quality", fidelity_steps.tegda, 1e-5),
    "tegda, quality": Check("quality of given predictions", fidelity_steps.tegda_quality, 1e-6),
    "vptta": Check("prompt from memory, 22 single images", fidelity_memory.vptta, 1e-5),
    "sictta": Check("prediction, 45 single images", fidelity_memory.sictta, 1e-12),
    "a3-tta": Check("step, teacher, full bank, single images", fidelity_memory.a3_tta, 1e-8),
    "a3-tta, batch": Check("the same at batch 4", partial(fidelity_memory.a3_tta, images=4), 1e-8),
    "dltta": Check("rate from memory, step; pooled keys", fidelity_memory.dltta, 1e-11),
    "deynet": Check("denoising step, two copies (single precision)", fidelity_parts.deynet, 1e-5),
    "itta": Check("mapping nets with a value per position", fidelity_parts.itta, 1e-5),
    "cbmt, dpl, cpr": Check("strong view", fidelity_site.strong_view, 1e-6),
    "cbmt": Check("site of 12: bank, steps, teacher", fidelity_site.cbmt, 1e-4),
    "upl-sfda": Check("site of 12: labels, steps, four decoders", fidelity_site.upl_sfda, 1e-5),
    "dpl": Check("site of 12: denoised labels, steps", fidelity_labels.dpl, 1e-3),
    "cpr, labels": Check(
        "maps after the walk, which ours rounds to bytes", fidelity_cpr.refined_maps, 1.97e-3
    ),
    "cpr": Check("site of 12: affinity, walk, focal steps", fidelity_cpr.cpr, 1e-4),
}


def largest_difference(check: Check, **options: Any) -> float:
    """The largest absolute difference of all pairs; infinite if one is not finite."""
    differences = [(a.detach() - b.detach()).abs().max().item() for a, b in check.pairs(**options)]
    return max(math.inf if math.isnan(d) else d for d in differences)


def main() -> None:
    """Print the table; the exit status is 1 if a difference is larger than allowed."""
    good = True
    print(f"{'method':16} {'compared':47} {'largest difference':>18} {'allowed':>8}")
    for name, check in CHECKS.items():
        difference = largest_difference(check)
        good &= difference <= check.allowed
        mark = "" if difference <= check.allowed else "  DIFFERS"
        print(f"{name:16} {check.compared:47} {difference:18.1e} {check.allowed:8.0e}{mark}", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    torch.set_num_threads(1)  # maps are so small that threads wait for each other
    main()
