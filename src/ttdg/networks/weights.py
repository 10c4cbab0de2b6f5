"""ImageNet weights for the encoder, from files with torchvision's names."""

from pathlib import Path

import torch
from torch import Tensor

from ttdg.errors import UserError
from ttdg.networks.segmenter import Segmenter


def load_encoder(network: Segmenter, path: Path) -> None:
    """Fill the encoder from a torchvision-named ResNet file; the classifier (`fc.*`) is left out.

    Whether the file's weights want v1 or v1.5 strides cannot be read from it: `NetworkSpec.strides` says so.
    """
    state = {name: value for name, value in read_weights(path).items() if not name.startswith("fc.")}
    broken = [
        name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()
    ]
    if broken:
        raise UserError(
            f"{path}: {broken[0]} holds infinities or NaN; float16 overflows BatchNorm's running variance, "
            "so convert again with only the convolutions in float16"
        )
    encoder = network.unet.encoder
    wanted = {name: value.shape for name, value in encoder.state_dict().items()}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    found = {name: value.shape for name, value in state.items()}
    wrong = [
        name
        for name in sorted(wanted.keys() - counters | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    wrong = [name for name in wrong if name not in counters]
    if wrong:
        raise UserError(
            f"{path} does not fit encoder {network.spec.encoder!r}: {len(wrong)} tensors differ, first {wrong[0]!r} "
            f"(file {found.get(wrong[0])}, network {wanted.get(wrong[0])}); choose the encoder the file was made for"
        )
    encoder.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from `.safetensors`, or from a pickle restricted to tensors (`weights_only=True`, never more)."""
    if not path.is_file():
        raise UserError(f"no weights file at {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is not a plain state dict and was not loaded (unpickling it could run code): {error}; "
            "convert it to .safetensors where you trust it"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict of tensors; save `network.state_dict()` instead")
    return state
