"""Two decisions about a whole site, from its images: whether it is learned, and whether learning should gain."""

import math
from statistics import fmean, stdev

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation.site_learning.home import HomeStatistics, describe
from ttdg.adaptation.universe.site_judge import ADAPTED, UNADAPTED
from ttdg.checkpoints import reading_part
from ttdg.types import Part

DOUBT = 2.0  # a site counts as losing if its expected gain is below 0 by more standard deviations than this


class SiteVerdict:
    """Sums over the images seen: their descriptions, and the gains that each member of the ensemble expects.

    Args:
        judge: the part "judge", with the statistics of the source sites.
        members: number of members of the ensemble that expects the gains.
        device: device of the sums.
        learnable: whether structures of this kind are learned at all (`ttdg.adaptation.universe.treatment`).
        error: standard deviation of the error of the expected gain, at a site that no member has seen.

    Attributes:
        described: sum of the descriptions, then the number of images.
        gains: sums of the expected gains, one for each member, then the number of images.
    """

    def __init__(
        self, judge: Part, members: int, device: torch.device, learnable: bool = True, error: float = 0.0
    ) -> None:
        self.learnable, self.error = learnable, error
        with reading_part("judge"):
            self.home = HomeStatistics(
                *(judge.tensors[f"home.{x}"].to(device) for x in ("mean", "deviation"))
            )
        self.described = torch.zeros(self.home.mean.shape[1] + 1, device=device)
        self.gains = torch.zeros(members + 1, device=device)

    def add_images(self, images: Float[Tensor, "b c h w"]) -> None:
        """Describe images in [0, 1]."""
        described = describe(images)
        self.described += torch.cat([described.sum(0), described.new_full((1,), len(described))])

    def add_gains(self, members: Float[Tensor, "e b k"]) -> None:
        """Add the Dice that the members expect of the candidates of a batch."""
        gain = (members[..., ADAPTED] - members[..., UNADAPTED]).nan_to_num(0.0)
        self.gains += torch.cat([gain.sum(1), gain.new_tensor([gain.shape[1]])])

    @property
    def like_home(self) -> bool:
        """True if the images seen so far cannot be told from those of a source site."""
        *total, count = self.described.unbind()
        return self.home.like_home(torch.stack(total) / count.clamp(min=1), int(count))

    @property
    def is_learned(self) -> bool:
        """False if the site is left to the judge."""
        return self.learnable and not self.like_home

    @property
    def gaining(self) -> bool:
        """False if the adapted network is expected to lose on the whole site."""
        gain, deviation = self._expected_gain()
        return gain + DOUBT * deviation >= 0

    def _expected_gain(self) -> tuple[float, float]:
        """The mean over members and its standard deviation: that over members, and that of the error at a new site."""
        *totals, count = self.gains.tolist()
        each = [total / max(count, 1) for total in totals]
        return fmean(each), math.hypot(stdev(each) if len(each) > 1 else 0.0, self.error)

    def remarks(self, learned: bool) -> tuple[str, ...]:
        """What a user should know of the answers, in sentences; `learned` says whether the network was trained."""
        if not learned and int(self.described[-1]) and not self.learnable:
            return (
                "The structures are thin, and learning such structures did not help at other sites, so this site was "
                "not learned; the judge answered.",
            )
        if not learned and int(self.described[-1]) and self.like_home:
            return (
                "The images look like those of a source site, so the site was not learned; the judge answered.",
            )
        if learned and not self.gaining:
            gain, deviation = self._expected_gain()
            return (
                f"Learning this site is expected to lose {-100 * gain:.1f} ± {100 * DOUBT * deviation:.1f} Dice, so "
                "the judge's answers were preferred.",
            )
        return ()

    def reset(self) -> None:
        """Forget all images."""
        self.described.zero_()
        self.gains.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """The sums by name; they change in place."""
        return {"described": self.described, "gains": self.gains}
