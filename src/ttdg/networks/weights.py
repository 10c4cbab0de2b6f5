"""Load weights into a network, or ImageNet weights with torchvision's parameter names into its encoder."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ttdg.errors import UserError
from ttdg.networks.segmenter import EncoderNetwork


def load_state(
    network: nn.Module,
    state: Mapping[str, Tensor],
    source: Path,
    origin: str = "model.json describes",
    remedy: str = "copy the checkpoint again",
) -> None:
    """Load a state dict that was read from the file `source`; names and shapes must be those of the network.

    `origin` and `remedy` are words of the error message: what the network comes from, and what to do.
    """
    expected, found = ({name: tuple(v.shape) for name, v in s.items()} for s in (network.state_dict(), state))
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise UserError(
            f"{source} does not fit the network that {origin}: {len(wrong)} tensors differ, "
            f"first {wrong[0]!r} (file {found.get(wrong[0])}, network {expected.get(wrong[0])}); {remedy}"
        )
    network.load_state_dict(state)


def load_encoder(network: EncoderNetwork, path: Path) -> None:
    """Load the encoder's weights from a ResNet file; classifier weights (`fc.*`) are ignored.

    The file does not tell whether its weights require v1 or v1.5 strides; set `NetworkSpec.strides` accordingly.
    `ttdg.networks.strides.better_strides` compares the two on images.
    """
    state = {name: value for name, value in read_weights(path).items() if not name.startswith("fc.")}
    broken = [
        name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()
    ]
    if broken:
        raise UserError(
            f"{path}: {broken[0]} contains infinities or NaN; running variances of BatchNorm overflow in float16, "
            "so convert the weights again with only the convolutions in float16"
        )
    encoder = network.image_encoder
    expected = {name: value.shape for name, value in encoder.state_dict().items()}
    counters = {name for name in expected if name.endswith("num_batches_tracked")}
    shapes = {name: value.shape for name, value in state.items()}
    names = (expected.keys() | shapes.keys()) - counters
    wrong = sorted(name for name in names if expected.get(name) != shapes.get(name))
    if wrong:
        raise UserError(
            f"{path} does not fit encoder {network.spec.encoder!r}: {len(wrong)} tensors differ, first {wrong[0]!r} "
            f"(file {shapes.get(wrong[0])}, network {expected.get(wrong[0])}); use the encoder that the file is for"
        )
    encoder.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` file, or from a pickle with `weights_only=True`."""
    if not path.is_file():
        raise UserError(f"there is no weights file at {path}; check the path")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty; copy or download it again")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); copy or download it again") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is not a plain state dict and was not loaded, because unpickling it could run code: {error}; "
            "if you trust the file, convert it to .safetensors"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(
            f"{path} does not contain a state dict of tensors; save `network.state_dict()` instead"
        )
    return state


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a network by name, each once and detached, without state that is no tensor."""
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: value.detach() for name, value in named}
