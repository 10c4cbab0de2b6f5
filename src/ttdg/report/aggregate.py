"""From rows to numbers: means by target and seed, and each image's difference to the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ttdg.bench.results import SETTING, RunTable, polars
from ttdg.evaluation.records import PERCENT

if TYPE_CHECKING:
    import polars as pl

IMAGE = ("target", "site", "case")


@dataclass(frozen=True)
class Group:
    """What one table shows together."""

    experiment: str
    protocol: str
    stream: str
    batch: int


@dataclass(frozen=True)
class TransferDifferences:
    """One source model's targets, image by image: differences to the baseline, averaged over seeds, in Dice points."""

    name: str
    differences: Float[np.ndarray, "n"]
    by_seed: Float[np.ndarray, "k"]  # every image of every seed


def groups(table: RunTable) -> list[Group]:
    names = ("experiment", "protocol", "stream", "batch")
    return [Group(*row) for row in table.settings().select(names).unique(maintain_order=True).iter_rows()]


def column_name(protocol: str, sources: str, target: str) -> str:
    """A transfer as a table's head: the target where all others were sources, else from → to."""
    if protocol == "leave-one-out":
        return target
    return f"{sources} → rest" if protocol == "single-to-mixture" else f"{sources} → {target}"


def reduced(table: RunTable) -> "pl.DataFrame":
    """One line per job × target × region × metric: the mean over images, in percent where a score is a share.

    `instance_dice` is a mean over instances, as its definition says, and so weighted by their number.
    """
    pl = polars()
    keys = ["job", "target", "region", "metric"]
    rows = table.rows.filter(pl.col("metric") != "instance_dice")
    means = rows.group_by(keys, maintain_order=True).agg(
        pl.col("value").cast(pl.Float64).mean(), pl.len().alias("n")
    )
    means = pl.concat([means, _by_instance(table.rows)])
    share = pl.col("metric").cast(pl.String).is_in(PERCENT)
    return means.with_columns(
        pl.when(share).then(100 * pl.col("value")).otherwise(pl.col("value")).alias("value")
    )


def _by_instance(rows: "pl.DataFrame") -> "pl.DataFrame":
    pl = polars()
    place = ["job", *IMAGE, "region"]
    scores = rows.filter(pl.col("metric") == "instance_dice")
    counts = rows.filter(pl.col("metric") == "instances").select(*place, pl.col("value").alias("instances"))
    both = scores.join(counts, on=place).drop_nulls("value")
    mean = (pl.col("value").cast(pl.Float64) * pl.col("instances")).sum() / pl.col("instances").sum()
    return both.group_by(["job", "target", "region", "metric"]).agg(mean.alias("value"), pl.len().alias("n"))


def with_settings(table: RunTable, frame: "pl.DataFrame") -> "pl.DataFrame":
    """Lines of jobs as lines of tables: a job that stands in two tables is in both."""
    pl = polars()
    return table.settings().join(
        frame.with_columns(pl.col("job").cast(pl.String)), on="job", maintain_order="left_right"
    )


def in_group(frame: "pl.DataFrame", group: Group) -> "pl.DataFrame":
    pl = polars()
    return frame.filter(
        (pl.col("experiment") == group.experiment)
        & (pl.col("stream") == group.stream)
        & (pl.col("batch") == group.batch)
    )


def image_dice(table: RunTable) -> "pl.DataFrame":
    """One line per entry × image: Dice in percent, averaged over regions."""
    pl = polars()
    rows = table.rows.filter(pl.col("metric") == "dice")
    mean = (100 * pl.col("value").cast(pl.Float64)).mean().alias("dice")
    return with_settings(table, rows.group_by(["job", *IMAGE], maintain_order=True).agg(mean))


def differences(images: "pl.DataFrame", baseline: str) -> "pl.DataFrame":
    """Each image's Dice minus the baseline's with the same model, stream, batch and seed."""
    pl = polars()
    same = [name for name in SETTING if name != "method"] + list(IMAGE)
    base = images.filter(pl.col("method") == baseline).select(*same, pl.col("dice").alias("baseline"))
    joined = images.join(base, on=same, how="inner", maintain_order="left")
    return joined.with_columns((pl.col("dice") - pl.col("baseline")).alias("difference"))


def by_transfer(paired: "pl.DataFrame", method: str) -> list[TransferDifferences]:
    """The method's transfers in the order of the table."""
    pl = polars()
    mine = paired.filter(pl.col("method") == method)
    found = []
    for (protocol, sources, target), part in mine.group_by(
        ["protocol", "sources", "target"], maintain_order=True
    ):
        over_seeds = part.group_by(["site", "case"], maintain_order=True).agg(pl.col("difference").mean())
        name = column_name(str(protocol), str(sources), str(target))
        found.append(
            TransferDifferences(name, over_seeds["difference"].to_numpy(), part["difference"].to_numpy())
        )
    return found


def distinct(frame: "pl.DataFrame", name: str) -> Sequence[str]:
    return [str(value) for value in frame[name].unique(maintain_order=True)]
