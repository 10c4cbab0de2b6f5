"""Methods after Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025.

* `method`: "universe", which learns a site by self-training; `learner` is its adapter, `guided_learner` its training.
* `choice`: "universe-choice", the judge with universe signals only.
* `gradient`: "universe-gradient", Algorithm 3 of the paper with changes that keep it stable.
* `literal`: "universe-literal", Algorithm 3 as printed.

The last three share the names of the ablations (`gradient.Variant`). What "universe" uses:

* `anatomy`, `treatment`: the kind of the structures, and how each kind is learned and answered.
* `carried_labels`, `carriers`, `carrier_controls`, `belief`: labels carried between images, and how far they count.
* `image_weights`, `stored_labels`: how much an image counts; what the memory keeps of each image.
* `source_reading`, `kept_readings`: what the source network says of a batch, and what is kept of it.
* `site_judge`, `site_verdict`, `answer_rule`: expected Dice at a learned site, and which prediction answers.
* `fit`, `gate_pairs`: fit the site judge, and the regressor of the gate.
"""
