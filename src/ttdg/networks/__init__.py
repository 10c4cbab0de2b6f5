"""Segmentation networks, their BatchNorm modes, and tools to run parts of them.

* `Segmenter`: U-Net with a ResNet or light encoder; `forward` is `decode` after `encode`.
* `NetworkSpec`: the settings from which a `Segmenter` is built.
* `ENCODERS`: the names of the available encoders.
* `load_encoder`: fills the encoder from a file of ImageNet weights.
* `read_weights`: reads a state dict without executing pickled code.

Submodules:

* `batchnorm`: selects the statistics with which BatchNorm layers normalise.
* `cuda_graph` and `capture`: run repeated GPU work as CUDA graphs.
* `split` and `pyramid`: run the encoder and decoder separately, or the encoder up to one level.
* `heads`: auxiliary networks that some methods fit on source images.
* `averaging` and `resizing`: exponential moving averages; bilinear resizing by matrix products.
* `devices`: names of the devices that a network can run on.
"""

from ttdg.networks.segmenter import ENCODERS, NetworkSpec, Segmenter
from ttdg.networks.weights import load_encoder, read_weights

__all__ = ["ENCODERS", "NetworkSpec", "Segmenter", "load_encoder", "read_weights"]
