"""Networks from outside this project: parts fitted to them, their checkpoints, and export.

* `fit`: fits the morphology prior and the judge to any segmentation network, from labelled source images.
* `fit_to_sources`: the same, for the source sites of a benchmark.
* `load_network`: makes a network by its import path, and loads its weights without running code.
* `save_parts`: writes parts with the hash of the weights that they were fitted to.
* `export`: writes a network as ONNX, or as a program of PyTorch, and compares the file with the network.
"""

from ttdg.foreign.export_network import export
from ttdg.foreign.fit_parts import fit, fit_to_sources, save_parts
from ttdg.foreign.load import load_network

__all__ = ["export", "fit", "fit_to_sources", "load_network", "save_parts"]
