"""Auxiliary networks that some methods fit on source images and store as parts of the checkpoint.

* `consistency`: element-wise networks and MixStyle, for ITTA.
* `denoiser`: a decoder that removes blind-spot noise, for DeY-Net.
* `noise`: a discriminator of noise levels in features, for NC-TTT.
* `shapes`: a dictionary of source shapes and a head that predicts their coefficients, for TASD-R.
"""
