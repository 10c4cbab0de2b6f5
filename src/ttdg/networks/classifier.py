"""The classification network: the encoder of the segmenter, then a mean over the image and a linear layer."""

from jaxtyping import Float
from torch import Tensor, nn

from ttdg.networks.encoders import build_encoder
from ttdg.networks.segmenter import STRIDE, EncoderNetwork, NetworkSpec, Segmenter


class Classifier(EncoderNetwork):
    """Maps images to the logits of their classes, as a label map with one value.

    Adaptation methods, losses and metrics work on label maps. The class logits of an image are therefore repeated over
    its pixels, as a view without a copy: the mean of a loss over the pixels is then the loss of the image.
    The linear layer is the default classifier of DomainBed (Gulrajani and Lopez-Paz, ICLR 2021).
    """

    def _build(self, spec: NetworkSpec) -> None:
        self.encoder = build_encoder(spec.encoder, spec.channels)
        self.linear = nn.Linear(self.encoder.widths[-1], spec.labels)

    @property
    def image_encoder(self) -> nn.Module:
        """The encoder."""
        return self.encoder

    def decoded(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The deepest map of the encoder: a classifier has no decoder."""
        return (features[-1],)

    def head(self, decoded: Float[Tensor, "b c y x"]) -> Float[Tensor, "b l h w"]:
        """Class logits of the mean feature, repeated over the pixels of the padded images."""
        logits = self.linear(decoded.mean((2, 3)))
        h, w = (STRIDE * side for side in decoded.shape[2:])
        return logits[:, :, None, None].expand(-1, -1, h, w)


NETWORKS: dict[str, type[EncoderNetwork]] = {"segmentation": Segmenter, "classification": Classifier}
"""The network of each task of a benchmark."""
