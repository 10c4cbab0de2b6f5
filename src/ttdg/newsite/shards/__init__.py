"""Answering a folder in shards: slices of its files that several processes or machines answer at the same time.

- `Sharding`: number of shards, and where they run.
- `check_sharding`: refuses methods whose answers depend on earlier batches.
- `answer_in_shards`: answers all files of a session, and merges journals and audit logs.
"""

from ttdg.newsite.shards.coordinator import answer_in_shards
from ttdg.newsite.shards.request import Sharding, ShardSettings, check_sharding

__all__ = ["ShardSettings", "Sharding", "answer_in_shards", "check_sharding"]
