"""A dictionary of source shapes, and a head that predicts its coefficients, for TASD-R.

TASD-R is our reconstruction of TASD. A shape is a mask on a 64 × 64 grid, translated so that its centre of mass is in
the middle. Shapes are approximated by sparse non-negative sums of atoms, y ≈ D a. The head predicts a and the centre
from the encoder's deepest map. Translating D a to the centre gives a prior map of each structure, which corrects the
logits.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

GRID = 64  # side of a shape
SPARSITY = 0.1  # λ, the weight of ‖a‖₁
TINY = 1e-9  # avoids division by zero

Shapes = Float[Tensor, "m p"]  # one shape per row, with p = GRID² values


def centred_shapes(
    masks: Float[Tensor, "b n h w"],
) -> tuple[Float[Tensor, "b n g g"], Float[Tensor, "b n 2"]]:
    """Masks as centred shapes, and their centres (x, y) in [−1, 1]².

    A structure that is absent becomes an empty shape with its centre in the middle.
    """
    coarse = F.interpolate(masks, (GRID, GRID), mode="area")
    positions = (torch.arange(GRID, device=masks.device, dtype=masks.dtype) * 2 + 1) / GRID - 1
    mass = coarse.sum((2, 3)).clamp(min=TINY)
    x, y = (coarse * positions).sum((2, 3)) / mass, (coarse * positions[:, None]).sum((2, 3)) / mass
    centres = torch.stack([x, y], 2)
    return translate_maps(coarse, -centres, (GRID, GRID)), centres


def translate_maps(
    maps: Float[Tensor, "b n g g2"], by: Float[Tensor, "b n 2"], size: tuple[int, int]
) -> Float[Tensor, "b n h w"]:
    """Each map translated by (x, y), in units of half its side, and sampled at a size; 0 outside the map."""
    b, n = maps.shape[:2]
    shift = torch.cat([torch.eye(2).to(by).expand(b * n, 2, 2), -by.reshape(b * n, 2, 1)], 2)
    grid = F.affine_grid(shift, [b * n, 1, *size], align_corners=False)
    out = F.grid_sample(maps.reshape(b * n, 1, *maps.shape[2:]), grid, align_corners=False)
    return out.view(b, n, *size)


def sparse_code(shapes: Shapes, atoms: Float[Tensor, "k p"], steps: int = 100) -> Float[Tensor, "m k"]:
    """Coefficients that minimise ‖y − a D‖² + λ‖a‖₁ over a ≥ 0, by multiplicative updates."""
    gram, products = atoms @ atoms.T, shapes @ atoms.T
    a = products.clamp(min=TINY)
    for _ in range(steps):
        a = a * products / (a @ gram + SPARSITY / 2 + TINY)
    return a


def learn_dictionary(
    shapes: Shapes, count: int, generator: torch.Generator, steps: int = 200
) -> Float[Tensor, "k p"]:
    """`count` atoms of norm ≤ 1 by non-negative sparse dictionary learning, initialised with random shapes."""
    device = shapes.device
    drawn = torch.randint(len(shapes), (count,), generator=generator).to(device)
    atoms = clip_atom_norms(
        shapes[drawn] + 0.01 * torch.rand(count, shapes.shape[1], generator=generator).to(device)
    )
    a = sparse_code(shapes, atoms, steps=10)
    for _ in range(steps):
        a = a * (shapes @ atoms.T) / (a @ (atoms @ atoms.T) + SPARSITY / 2 + TINY)
        atoms = clip_atom_norms(atoms * (a.T @ shapes) / (a.T @ a @ atoms + TINY))
    return atoms


def clip_atom_norms(atoms: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
    """Atoms with norms above 1 scaled to norm 1."""
    return atoms / atoms.norm(dim=1, keepdim=True).clamp(min=1.0)


class ShapeHead(nn.Module):
    """Predicts shape coefficients and centres from the deepest map, and corrects logits by the prior maps.

    The deepest map is pooled to 4 × 4 instead of to one value, because a global mean does not contain positions.

    Args:
        channels: channels of the deepest map.
        labels: classes of the logits, including background.
        structures: number of structures, each with its own dictionary.
        count: atoms per dictionary.
    """

    atoms: Float[Tensor, "n k p"]

    def __init__(self, channels: int, labels: int, structures: int, count: int) -> None:
        super().__init__()
        self.sizes = {"channels": channels, "labels": labels, "structures": structures, "count": count}
        self.register_buffer("atoms", torch.zeros(structures, count, GRID * GRID))
        self.regress = nn.Sequential(
            nn.Conv2d(channels, 32, 1), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, structures * (count + 2)),
        )  # fmt: skip
        self.fuse = nn.Conv2d(labels + structures, labels, 3, padding=1)
        for parameter in self.fuse.parameters():
            nn.init.zeros_(parameter)

    def codes(
        self, deepest: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n 2"]]:
        """Coefficients and centres of each structure."""
        out = self.regress(deepest).view(len(deepest), self.sizes["structures"], -1)
        return F.softplus(out[..., :-2]), out[..., -2:].tanh()

    def prior(
        self, codes: Float[Tensor, "b n k"], centres: Float[Tensor, "b n 2"], size: tuple[int, int]
    ) -> Float[Tensor, "b n h w"]:
        """Prior maps: the shapes D a at their centres, sampled at a size."""
        shapes = torch.einsum("bnk,nkp->bnp", codes, self.atoms).unflatten(2, (GRID, GRID))
        return translate_maps(shapes.clamp(0, 1), centres, size)

    def corrected(
        self, logits: Float[Tensor, "b l h w"], prior: Float[Tensor, "b n h w"]
    ) -> Float[Tensor, "b l h w"]:
        """Logits plus a correction computed from logits and prior maps."""
        return logits + self.fuse(torch.cat([logits, prior], 1))

    def to_part(self, head: str) -> Part:
        """The shape head as a part; `head` tells whether the logits are for a softmax or a sigmoid."""
        return Part(self.state_dict(), {**self.sizes, "head": head})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "ShapeHead":
        """The frozen shape head that `to_part` stored."""
        sizes = {k: part.settings[k] for k in ("channels", "labels", "structures", "count")}
        made = cls(**sizes)
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)
