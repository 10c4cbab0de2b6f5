"""Networks for segmentation and classification, their BatchNorm modes, and tools to run parts of them.

* `Segmenter`: U-Net with a ResNet or light encoder; `forward` is `decode` after `encode`.
* `Classifier`: the same encoder, then a mean over the image and a linear layer.
* `EncoderNetwork`: what both share.
* `NETWORKS`: the network of each task of a benchmark.
* `NetworkSpec`: the settings from which a network is built.
* `ENCODERS`: the names of the available encoders.
* `feature_maps`: logits of a network together with its feature maps by level, from one forward pass.
* `level_channels`: number of channels of every level; `INPUT`: the level that is the input itself.
* `load_state`: fills a network from a state dict whose names and shapes must fit.
* `load_encoder`: fills the encoder from a file of ImageNet weights.
* `read_weights`: reads a state dict without executing pickled code.

Submodules:

* `batchnorm`: selects the statistics with which BatchNorm layers normalise.
* `cuda_graph` and `capture`: run repeated GPU work as CUDA graphs.
* `taps`: reads the maps of named modules of any network.
* `split` and `pyramid`: run the encoder and decoder separately, or the encoder up to one level.
* `heads`: auxiliary networks that some methods fit on source images.
* `averaging`: exponential moving averages.
* `passes`: counts forward and backward passes.
* `strides`: the two forms of ResNet-50, and which one some weights fit.
* `losses`: supervised losses.
* `determinism`: repeatable gradients on a GPU.
* `devices`: names of the devices that a network can run on.
"""

from ttdg.networks.classifier import NETWORKS, Classifier
from ttdg.networks.features import INPUT, feature_maps, level_channels
from ttdg.networks.segmenter import ENCODERS, EncoderNetwork, NetworkSpec, Segmenter
from ttdg.networks.weights import load_encoder, load_state, read_weights

__all__ = [
    "ENCODERS", "INPUT", "NETWORKS", "Classifier", "EncoderNetwork", "NetworkSpec", "Segmenter", "feature_maps",
    "level_channels", "load_encoder", "load_state", "read_weights",
]  # fmt: skip
