"""Methods that learn a site: they train the whole network on the unlabelled images of the target.

- `self_training`: a student learns from its own slow average under strong augmentation (method `self-training`);
  `learner`: its adapter.
- `home`: whether a site looks like a source site.
- `image_memory`: the unlabelled images that the student learns from, as bytes.
- `soft_labels`: the teacher's labels, their correction by a guide, and the loss of the student.
- `saved_state`: saving and loading what the student and the teacher learned.
- `strong_views`: strong augmentation of images together with soft labels.
"""
