"""Records that other runs of a benchmark have made.

* `reuse`: a run takes over their scorings instead of making them again (`ttdg bench --records`).
* `reuse_searches`: it takes over their searches of options, too.
* `join`: the records of several runs become one table (`ttdg join`).
"""
