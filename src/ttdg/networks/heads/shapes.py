"""A dictionary of source shapes and a head that reads from it, as TASD-R (our reconstruction of TASD) needs them.

A shape is a mask on a 64 × 64 grid, moved so that its centre of mass lies in the middle. Shapes are sparse non-negative
sums of atoms: y ≈ D a. The head predicts a and the centre from the encoder's deepest map; pasting D a there gives a
prior map for every structure, which corrects the logits.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

GRID, SPARSITY = 64, 0.1  # side of a shape; λ of ‖a‖₁
TINY = 1e-9

Shapes = Float[Tensor, "m p"]  # one a row, GRID² wide


def centred_shapes(
    masks: Float[Tensor, "b n h w"],
) -> tuple[Float[Tensor, "b n g g"], Float[Tensor, "b n 2"]]:
    """Masks as shapes, and their centres (x, y) in [−1, 1]²; an absent structure is an empty shape in the middle."""
    coarse = F.interpolate(masks, (GRID, GRID), mode="area")
    along = (torch.arange(GRID, device=masks.device, dtype=masks.dtype) * 2 + 1) / GRID - 1
    mass = coarse.sum((2, 3)).clamp(min=TINY)
    x, y = (coarse * along).sum((2, 3)) / mass, (coarse * along[:, None]).sum((2, 3)) / mass
    centres = torch.stack([x, y], 2)
    return translated(coarse, -centres, (GRID, GRID)), centres


def translated(
    maps: Float[Tensor, "b n g g2"], by: Float[Tensor, "b n 2"], size: tuple[int, int]
) -> Float[Tensor, "b n h w"]:
    """Each map moved by (x, y), in half sides, and sampled at a size; what comes from outside is 0."""
    b, n = maps.shape[:2]
    shift = torch.cat([torch.eye(2).to(by).expand(b * n, 2, 2), -by.reshape(b * n, 2, 1)], 2)
    grid = F.affine_grid(shift, [b * n, 1, *size], align_corners=False)
    out = F.grid_sample(maps.reshape(b * n, 1, *maps.shape[2:]), grid, align_corners=False)
    return out.view(b, n, *size)


def sparse_code(shapes: Shapes, atoms: Float[Tensor, "k p"], steps: int = 100) -> Float[Tensor, "m k"]:
    """argmin ‖y − a D‖² + λ‖a‖₁ over a ≥ 0, by multiplicative steps, which never leave the positive."""
    gram, meets = atoms @ atoms.T, shapes @ atoms.T
    a = meets.clamp(min=TINY)
    for _ in range(steps):
        a = a * meets / (a @ gram + SPARSITY / 2 + TINY)
    return a


def learn_dictionary(
    shapes: Shapes, count: int, generator: torch.Generator, steps: int = 200
) -> Float[Tensor, "k p"]:
    """Non-negative sparse dictionary learning: atoms of norm ≤ 1, started from shapes drawn at random."""
    device = shapes.device
    drawn = torch.randint(len(shapes), (count,), generator=generator).to(device)
    atoms = unit_norm(
        shapes[drawn] + 0.01 * torch.rand(count, shapes.shape[1], generator=generator).to(device)
    )
    a = sparse_code(shapes, atoms, steps=10)
    for _ in range(steps):
        a = a * (shapes @ atoms.T) / (a @ (atoms @ atoms.T) + SPARSITY / 2 + TINY)
        atoms = unit_norm(atoms * (a.T @ shapes) / (a.T @ a @ atoms + TINY))
    return atoms


def unit_norm(atoms: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
    """Scaled down to norm 1 where longer."""
    return atoms / atoms.norm(dim=1, keepdim=True).clamp(min=1.0)


class ShapeHead(nn.Module):
    """Coefficients and centres from the deepest map, the prior maps they stand for, and the logits corrected by them.

    The map is pooled to 4 × 4, not to one value, since a mean over places cannot say where a structure lies.
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
        for start in self.fuse.parameters():
            nn.init.zeros_(start)

    def codes(
        self, deepest: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n 2"]]:
        out = self.regress(deepest).view(len(deepest), self.sizes["structures"], -1)
        return F.softplus(out[..., :-2]), out[..., -2:].tanh()

    def prior(
        self, codes: Float[Tensor, "b n k"], centres: Float[Tensor, "b n 2"], size: tuple[int, int]
    ) -> Float[Tensor, "b n h w"]:
        shapes = torch.einsum("bnk,nkp->bnp", codes, self.atoms).unflatten(2, (GRID, GRID))
        return translated(shapes.clamp(0, 1), centres, size)

    def corrected(
        self, logits: Float[Tensor, "b l h w"], prior: Float[Tensor, "b n h w"]
    ) -> Float[Tensor, "b l h w"]:
        return logits + self.fuse(torch.cat([logits, prior], 1))

    def to_part(self, head: str) -> Part:
        return Part(self.state_dict(), {**self.sizes, "head": head})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "ShapeHead":
        sizes = {k: part.settings[k] for k in ("channels", "labels", "structures", "count")}
        made = cls(**sizes)
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)
