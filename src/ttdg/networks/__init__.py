from ttdg.networks.segmenter import ENCODERS, NetworkSpec, Segmenter
from ttdg.networks.weights import load_encoder, read_weights

__all__ = ["ENCODERS", "NetworkSpec", "Segmenter", "load_encoder", "read_weights"]
