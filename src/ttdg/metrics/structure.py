"""Structure measure S_α (Fan et al., ICCV 2017) of soft maps, with α = 1/2."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.metrics.chunks import one_thread
from ttdg.metrics.moments import Moments, Quadrants, around_centroid, class_moments, is_constant

EPSILON = torch.finfo(torch.float64).eps


def structure(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r"]:
    """S_α = max(0, (S_o + S_r)/2); 1 - mean(p) if the truth is empty, mean(p) if it is full."""
    return similarity(probabilities, truth).clamp(min=0)


@one_thread()
def similarity(
    probabilities: Float[Tensor, "b r h w"],
    truth: Bool[Tensor, "b r h w"],
    ddof: int = 1,
    epsilon: float = EPSILON,
) -> Float[Tensor, "b r"]:
    """S_α before it is clipped at 0. `ddof` is that of the variances; `epsilon` is added to denominators."""
    p, g = probabilities.detach().flatten(0, 1), truth.flatten(0, 1)
    with torch.autocast(p.device.type, enabled=False):  # autocast would sum in half precision
        quadrants = around_centroid(g)
        moments = class_moments(p, g, quadrants)
    whole = moments.merged(2, 3)
    constant = constant_where_needed(p, quadrants, moments)
    score = (
        object_similarity(whole, ddof, epsilon) + region_similarity(moments, constant, ddof, epsilon)
    ) / 2
    mean, (background, foreground) = whole.merged(1).mean, whole.count.unbind(1)
    return (1 - mean).where(foreground == 0, mean.where(background == 0, score)).view(truth.shape[:2])


def object_similarity(whole: Moments, ddof: int, epsilon: float) -> Float[Tensor, "n"]:
    """S_o: 2m/(m² + 1 + s), weighted over the classes by area.

    m and s are the mean and standard deviation of p on the foreground, and of 1 - p on the background.
    """
    m = torch.stack((1 - whole.mean[:, 0], whole.mean[:, 1]), dim=1)
    s = (whole.spread / (whole.count - ddof).clamp(min=1)).sqrt()
    weights = whole.count / whole.count.sum(1, keepdim=True)
    return (weights * 2 * m / (m**2 + 1 + s + epsilon)).sum(1)


def region_similarity(
    moments: Moments, constant: Bool[Tensor, "n 2 2"], ddof: int, epsilon: float
) -> Float[Tensor, "n"]:
    """S_r: the SSIM of p and the truth in the four quadrants, weighted by area."""
    (background, foreground), quadrant = moments.count.unbind(1), moments.merged(1)
    area = quadrant.count
    x, y = quadrant.mean, foreground / area.clamp(min=1)
    spread = background * y  # Σ(y - ȳ)²
    product = spread * (moments.mean[:, 1] - moments.mean[:, 0])  # Σ(x - x̄)(y - ȳ)
    variances = (quadrant.spread + spread) / (area - ddof).clamp(min=1)
    covariance = product / (area - 1).clamp(min=1)
    ssim = 4 * x * y * covariance / ((x**2 + y**2) * variances + epsilon)
    ssim = ssim.where(spread > 0, constant.double())  # one class only: 1 if p is constant, else 0
    return (ssim * area).sum((1, 2)) / area.sum((1, 2))


def constant_where_needed(
    p: Float[Tensor, "n h w"], quadrants: Quadrants, moments: Moments
) -> Bool[Tensor, "n 2 2"]:
    """True for quadrants in which p is constant.

    Computed only for images whose truth has both classes but some quadrant of a single class; False elsewhere.
    """
    of_one_class = (moments.count == 0).any(1)
    needed = of_one_class.flatten(1).any(1) & (moments.count.sum((2, 3)) > 0).all(1)
    constant = torch.zeros_like(of_one_class)
    if needed.any():
        constant[needed] = is_constant(p[needed], quadrants.select(needed))
    return constant
