"""The judge: chooses for each image among several predictions of the network, without labels.

At test time, for every batch of images:

1. `readings`: the network predicts the batch in one forward pass under several *readings*, which differ in how much
   of the batch statistics BatchNorm uses, and in whether the images are mirrored. (batch → stack of readings)
2. `candidates`: readings are averaged into *candidates*, the predictions to choose from. Some candidates also average
   in the segmentation that the universe gives for the same features. (stack → k candidates × b images)
3. `signals`: each candidate's prediction is described by numbers that need no label: entropy, shape, agreement with
   the other candidates, and its fit to the universe (`ttdg.prior.universe_signals`). (k × b → f signals each)
4. `regressor`: a ridge ensemble predicts the Dice of every candidate from its signals, with an interval.
5. `method`: the candidate with the largest predicted gain over the fallback is chosen, if the gain exceeds a margin.
   The fallback is the source network's prediction, averaged over the image and its mirror image.

`method.JudgeAdapter` runs the five steps; `method.METHOD` declares them as the method "judge". Nothing in the network
changes, and nothing carries over from one batch to the next.

At source time, `fit.fit_judge` makes the part "judge" from source images. First, `mixing` fits how much of the batch
statistics each BatchNorm layer uses in the readings called "mix learned". Then `evidence` runs steps 1 to 3 on held-out
source images under simulated shifts, where the true Dice is known. Last, the regressors are fitted to this evidence.

* `JudgeAdapter`: runs the five steps on every batch.
* `Verdict`: the decisions for one batch.
* `fit_judge`: fits the part "judge".
"""

from ttdg.adaptation.judge.fit import fit_judge
from ttdg.adaptation.judge.method import JudgeAdapter, Verdict

__all__ = ["JudgeAdapter", "Verdict", "fit_judge"]
