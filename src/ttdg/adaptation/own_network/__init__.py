"""Networks from outside this project: what is known of them, and the form in which methods receive them.

* `output`: which of several tensors holds the logits, and what their channels mean.
* `foreign`: a network with its parts, which belong to its weights.
* `first_pass`: errors that say what to do if the network fails on the first images, or returns no logits.
* `conversions`: the network, images and answers, between a user and the adapter of a method.
"""
