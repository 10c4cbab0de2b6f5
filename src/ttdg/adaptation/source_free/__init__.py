"""Published methods that learn a site without source data: the rivals of `self-training` and `universe`.

- `cbmt`: a class-balanced mean teacher (method `cbmt`).
- `dpl`: denoised pseudo-labels (method `dpl`).
- `upl_sfda`: four decoders on turned views, labels where their mean is sure (method `upl-sfda`).
- `cpr`: pseudo-labels spread along a learned affinity (method `cpr`).

What they share:

- `trainer`: the base class: the memory of images, the passes over it, both streams, and saving.
- `fundus_views`: the photometric augmentation of the published code.
- `structures`: structures as binary problems, and the masked loss on them.
- `denoised_labels`: the label stage of `dpl` and `cpr`: repeated predictions, uncertainty and prototypes.
- `affinity`: the affinity of neighbouring cells and the random walk of `cpr`.
- `components`: largest connected components, in batches and on any device.
"""
