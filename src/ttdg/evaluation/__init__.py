"""Evaluation: streams, scoring and records. This file imports nothing, so that schedulers stay light.

- `streams`: when an adapter is reset, and the answers it gives.
- `scoring`: answers and labels to rows; the one scoring loop of `evaluate`, `bench` and `tune`.
- `own_answers`: the answers of a method without views, scored from the stream with views.
- `volume_scoring`: rows of volumes from the answers to their slices.
- `evaluate`: a scoring with its cost and metadata.
- `site`: one method on one site, from image files to records.
- `records`: the files that hold rows.
- `search_space`, `tuning`, `tuned_options`: hyper-parameters chosen on simulated hospitals, and their files.
- `statistics`: intervals, tests and harm.
- `cost`, `reproducibility`: peak memory; a hash of the code.
"""
