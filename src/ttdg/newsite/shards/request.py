"""What a user asks for with shards, and what is the same for all shards of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttdg.adaptation import METHODS, Adapter, Resumable
from ttdg.bench.executors import ExecutorOptions
from ttdg.data.threads import available_cores
from ttdg.errors import UserError
from ttdg.newsite.run import Run
from ttdg.newsite.session import LearnedSite
from ttdg.newsite.stacks.segmentation_object import Maker
from ttdg.safety.policy import GatePolicy


@dataclass(frozen=True)
class Sharding:
    """Number of shards, and where they run."""

    count: int
    model: str  # folder or name of the model, which every worker loads
    executor: str = "local"  # local, slurm or ray
    device: str = "cpu"  # of every worker
    threads: int | None = None  # CPU threads of a shard; None: cores ÷ shards on this machine, 1 elsewhere
    address: str | None = None  # of a Ray cluster
    partition: str | None = None  # of SLURM
    minutes: int = 240  # time limit of a SLURM job
    gpus: int = 0  # of this machine; on a cluster, a positive number requests one GPU for each shard

    def machines(self) -> ExecutorOptions:
        """Return the settings of the executor. Shards of this machine share its cores, or have a GPU each."""
        slots = min(self.count, self.gpus or available_cores()) if self.executor == "local" else None
        return ExecutorOptions(slots, self.address, self.partition, self.minutes, self.gpus)

    def threads_of_shard(self) -> int:
        """Return the number of CPU threads that a shard uses."""
        slots = self.machines().workers
        return self.threads or (max(1, available_cores() // slots) if slots else 1)


@dataclass(frozen=True)
class ShardSettings:
    """What all shards of a run share. It can be pickled."""

    out: Path
    sharding: Sharding
    threads: int  # CPU threads of a shard
    run: Run
    options: Mapping[str, Any]
    policy: GatePolicy | None
    maker: Maker
    key: str  # hash of the run
    learned: LearnedSite | None  # what was learned of all images; its state is in the output folder
    finished: int  # rounds that were finished before
    overlays: bool
    workers: int | None  # threads that read images
    most_pixels: int
    probabilities: bool


def check_sharding(method: str, stream: str, adapter: Adapter) -> None:
    """Raise if the answers of a method depend on earlier batches, or on a state that cannot be handed on."""
    if not METHODS[method].memory:
        return
    if stream != "folder":
        raise UserError(
            f"method {method!r} keeps what it learns from each batch, so its answers in the stream 'online' depend on "
            "all earlier images and cannot be given in shards; use the stream 'folder', which learns all images first, "
            "or a method without memory (source, norm, alpha-bn, judge)"
        )
    if not isinstance(adapter, Resumable):
        raise UserError(
            f"method {method!r} cannot save what it learned of a folder, so other processes cannot answer with it; "
            "answer without shards, or use a method that can (self-training, universe)"
        )
