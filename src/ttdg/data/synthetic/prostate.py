"""Drawing an MRI of the prostate: a gland with two zones between bladder, rectum, muscles and fat."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from scipy.ndimage import gaussian_filter

from ttdg.data.synthetic.fields import Field, Random, pixel_grid, random_for, smooth_noise, soft_step

TRANSITION, PERIPHERAL = 1, 2  # labels
BEYOND = 2  # slices below and above the gland


@dataclass(frozen=True)
class Scanner:
    """The scanner and protocol of a hospital. Intensities of tissues run from 0, black, to 1, before the contrast."""

    spacing: float = 3.0  # between slices, in millimetres
    view: float = 120.0  # side of the image, in millimetres
    zones: tuple[float, float] = (0.42, 0.72)  # intensities of the transition and the peripheral zone
    gamma: float = 1.0  # of the contrast
    bias: float = 0.15  # strength of the bias field
    coil: float = 0.0  # gain towards a coil in the rectum
    noise: float = 0.03  # of the receiver; the distribution of magnitudes is that of Rice
    blur: float = 0.6  # in pixels of a 128-pixel image
    white: float = 1000.0  # stored value of intensity 1
    axes: str = "LPS"  # directions of the stored voxel axes


SCANNERS = {
    # 3 T, surface coil
    "north": Scanner(),
    # 1.5 T with an endorectal coil: bright near the rectum, thin slices
    "harbour": Scanner(spacing=2.2, view=110.0, bias=0.3, coil=1.6, noise=0.04, white=400.0, axes="RAS"),
    # an old scanner: thick slices, noisy, low contrast between the zones
    "valley": Scanner(
        spacing=4.0, view=150.0, zones=(0.45, 0.6), gamma=0.7, noise=0.09, blur=1.0, white=250.0
    ),
    # strong contrast, inhomogeneous field
    "lakeside": Scanner(spacing=3.6, view=130.0, gamma=1.6, bias=0.55, noise=0.03, white=3000.0, axes="LAS"),
    # smooth reconstruction, bright transition zone
    "summit": Scanner(
        spacing=3.3, view=140.0, zones=(0.58, 0.8), bias=0.25, blur=1.6, noise=0.02, white=1600.0
    ),
}


@dataclass(frozen=True)
class DrawnVolume:
    """A volume along z (to the head), y (to the back) and x (to the left)."""

    values: Float[np.ndarray, "d h w"]  # intensities as a scanner stores them
    labels: UInt8[np.ndarray, "d h w"]
    spacing: tuple[float, float, float]  # (z, y, x) in millimetres


@dataclass(frozen=True)
class _Gland:
    """The gland of a patient, in millimetres."""

    radii: tuple[float, float, float]  # (z, y, x)
    centre: tuple[float, float]  # (y, x)
    waves: Float[np.ndarray, "3 2"]  # height and phase of the deviations from an ellipse
    twist: float  # of these deviations along z, in radians
    inner: float  # size of the transition zone, relative to the gland


def _gland(rng: Random) -> _Gland:
    radii = rng.uniform((17, 14, 20), (24, 20, 27)).tolist()
    waves = np.stack([rng.normal(0, (0.06, 0.04, 0.025)), rng.uniform(0, 2 * np.pi, 3)], -1)
    return _Gland(
        (radii[0], radii[1], radii[2]), (rng.normal(0, 4), rng.normal(0, 3)), waves, rng.normal(0, 0.6),
        rng.uniform(0.55, 0.75),
    )  # fmt: skip


def draw_volume(site: str, number: int, size: int, seed: int) -> DrawnVolume:
    """Return volume `number` of a hospital. It depends on the arguments only."""
    scanner = SCANNERS[site]
    rng = random_for(seed, "prostate", site, "volume", number)
    gland = _gland(rng)
    depth = 2 * (int(gland.radii[0] / scanner.spacing) + BEYOND) + 1
    heights = (np.arange(depth) - depth // 2) * scanner.spacing
    texture, nodules = smooth_noise(rng, size, 10), smooth_noise(rng, size, 14)
    slices = [
        _slice(scanner, gland, height, size, 0.8 * texture + 0.6 * smooth_noise(rng, size, 12), nodules)
        for height in heights.tolist()
    ]
    light = np.stack([tissue for tissue, _ in slices])
    values = _scan(scanner, rng, light, gland)
    side = scanner.view / size
    return DrawnVolume(values, np.stack([labels for _, labels in slices]), (scanner.spacing, side, side))


def _slice(
    scanner: Scanner, gland: _Gland, z: float, size: int, texture: Field, nodules: Field
) -> tuple[Field, UInt8[np.ndarray, "h w"]]:
    """Return the intensities of the tissues and the labels at height z above the centre of the gland."""
    x, y = (axis * (scanner.view / 2) for axis in pixel_grid(size))
    v, u = y - gland.centre[0], x - gland.centre[1]
    angle, up = np.arctan2(v, u), z / gland.radii[0]
    wobble = 1 + sum(
        height * np.cos((k + 2) * angle + phase + gland.twist * up)
        for k, (height, phase) in enumerate(gland.waves.tolist())
    )
    reach = np.sqrt(up**2 + ((v / gland.radii[1]) ** 2 + (u / gland.radii[2]) ** 2) / wobble**2)
    front = v + 0.25 * gland.radii[1]
    inner = np.sqrt(up**2 + (front / gland.radii[1]) ** 2 + (u / gland.radii[2]) ** 2) / gland.inner
    labels = np.where(reach < 1, np.where(inner < 1, TRANSITION, PERIPHERAL), 0).astype(np.uint8)

    light = 0.3 + 0.45 * soft_step(np.abs(texture) - 0.5, 0.5)  # fat between fibres
    light = _blend(light, 0.22 + 0.03 * texture, 1 - np.hypot((np.abs(x) - 45) / 16, y / 32))  # muscles
    light = _blend(
        light, 0.1, 1 - np.hypot(x / 11, (y - gland.centre[0] - gland.radii[1] - 13) / 11)
    )  # rectum
    light = _blend(
        light, 0.95, 1 - np.hypot(x / 28, (y + 8) / 22) - max(0.0, 1.35 - up)
    )  # bladder, above the gland
    core, rim = scanner.zones
    light = _blend(light, rim + 0.05 * texture, 1.06 - reach, 0.15)  # the capsule is drawn below
    light = _blend(light, core + 0.09 * nodules, np.minimum(1 - inner, 1 - reach))
    capsule = np.exp(-(((reach - 1.03) / 0.04) ** 2)) * (abs(up) < 1)
    return (light * (1 - 0.45 * capsule)).astype(np.float32), labels


def _blend(light: Field, colour: Field | float, inside: Field, width: float = 0.06) -> Field:
    """Paint a tissue where `inside` is positive, with a soft edge."""
    return light + (colour - light) * soft_step(inside.astype(np.float32), width)


def _scan(
    scanner: Scanner, rng: Random, light: Float[np.ndarray, "d h w"], gland: _Gland
) -> Float[np.ndarray, "d h w"]:
    """Return what the scanner stores: contrast, bias field, blur within slices, and noise."""
    depth, size = light.shape[:2]
    x, y = pixel_grid(size)
    z = np.linspace(-1, 1, depth, dtype=np.float32)[:, None, None]
    slopes = rng.normal(0, 1, 3)
    bias = scanner.bias * (
        slopes[0] * x + slopes[1] * y + 0.5 * slopes[2] * z + 0.5 * smooth_noise(rng, size, 2)
    )
    back = (gland.centre[0] + gland.radii[1] + 10) * 2 / scanner.view
    near = np.exp(-(((y - back) / 0.35) ** 2) - (x / 0.45) ** 2)
    signal = np.clip(light, 0, None) ** scanner.gamma * np.exp(bias) * (1 + scanner.coil * near)
    signal = gaussian_filter(signal, (0, *[scanner.blur * size / 128] * 2))
    real, imaginary = scanner.noise * rng.standard_normal((2, *light.shape), dtype=np.float32)
    gain = scanner.white * rng.normal(1, 0.1)
    return (gain * np.hypot(signal + real, imaginary)).astype(np.float32)
