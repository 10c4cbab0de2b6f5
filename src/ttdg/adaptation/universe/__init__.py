"""Methods after Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025.

* `choice`: "universe-choice", which chooses for each image the prediction that fits the universe best. It is the
  judge with universe signals only.
* `gradient`: "universe-gradient", Algorithm 3 of the paper with changes that keep it stable.
* `literal`: "universe-literal", Algorithm 3 as printed.

All three share the names of the ablations (`gradient.Variant`).
"""
