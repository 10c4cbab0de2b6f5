"""Means of scores, and the Dice difference of each image to the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ttdg.bench.results import SETTING_COLUMNS, RunTable, import_polars
from ttdg.bench.run_file import is_baseline
from ttdg.evaluation.records import PERCENT, PRIMARY

if TYPE_CHECKING:
    import polars as pl

IMAGE_COLUMNS = ("target", "site", "case")


@dataclass(frozen=True)
class TableGroup:
    """The scorings that one table shows: an experiment with one stream and one batch size."""

    experiment: str
    protocol: str
    stream: str
    batch: int


@dataclass(frozen=True)
class TransferDifferences:
    """Dice differences to the baseline for one transfer, in points.

    Attributes:
        name: Name of the transfer, as in the table header.
        differences: One value per image, averaged over seeds.
        by_seed: One value per image and seed.
        seed_means: One value per seed, averaged over images.
        target: Name of the target.
        cases: Site and name of each image of `differences`.
    """

    name: str
    differences: Float[np.ndarray, "n"]
    by_seed: Float[np.ndarray, "k"]
    seed_means: Float[np.ndarray, "s"]
    target: str
    cases: Sequence[tuple[str, str]]


def table_groups(table: RunTable) -> list[TableGroup]:
    """Return the groups of a run in the order of its plan."""
    names = ("experiment", "protocol", "stream", "batch")
    return [
        TableGroup(*row) for row in table.settings().select(names).unique(maintain_order=True).iter_rows()
    ]


def column_name(protocol: str, sources: str, target: str) -> str:
    """Return the table header of a transfer: the target in leave-one-out and ceiling, else sources → target."""
    if protocol in ("leave-one-out", "ceiling"):
        return target
    return f"{sources} → rest" if protocol == "single-to-mixture" else f"{sources} → {target}"


def mean_scores(table: RunTable) -> "pl.DataFrame":
    """Return the mean over images per job, target, region and metric; scores in [0, 1] become percent.

    `instance_dice` is by definition a mean over instances, so images are weighted by their number of instances.
    """
    pl = import_polars()
    keys = ["job", "target", "region", "metric"]
    rows = table.rows.filter(pl.col("metric") != "instance_dice")
    means = rows.group_by(keys, maintain_order=True).agg(
        pl.col("value").cast(pl.Float64).mean(), pl.len().alias("n")
    )
    means = pl.concat([means, _mean_over_instances(table.rows)])
    share = pl.col("metric").cast(pl.String).is_in(PERCENT)
    return means.with_columns(
        pl.when(share).then(100 * pl.col("value")).otherwise(pl.col("value")).alias("value")
    )


def _mean_over_instances(rows: "pl.DataFrame") -> "pl.DataFrame":
    pl = import_polars()
    keys = ["job", *IMAGE_COLUMNS, "region"]
    scores = rows.filter(pl.col("metric") == "instance_dice")
    counts = rows.filter(pl.col("metric") == "instances").select(*keys, pl.col("value").alias("instances"))
    both = scores.join(counts, on=keys).drop_nulls("value")
    mean = (pl.col("value").cast(pl.Float64) * pl.col("instances")).sum() / pl.col("instances").sum()
    return both.group_by(["job", "target", "region", "metric"]).agg(mean.alias("value"), pl.len().alias("n"))


def join_settings(table: RunTable, frame: "pl.DataFrame") -> "pl.DataFrame":
    """Add the settings of the table entries to lines of jobs; a job in two tables gives two lines."""
    pl = import_polars()
    return table.settings().join(
        frame.with_columns(pl.col("job").cast(pl.String)), on="job", maintain_order="left_right"
    )


def select_group(frame: "pl.DataFrame", group: TableGroup) -> "pl.DataFrame":
    """Return the lines of one group."""
    pl = import_polars()
    return frame.filter(
        (pl.col("experiment") == group.experiment)
        & (pl.col("stream") == group.stream)
        & (pl.col("batch") == group.batch)
    )


def image_dice(table: RunTable, region: str = "") -> "pl.DataFrame":
    """Return Dice per table entry and image, in percent, of one region or averaged over regions.

    For a classification, the column `dice` holds the accuracy.
    """
    pl = import_polars()
    rows = table.rows.filter(pl.col("metric").cast(pl.String).is_in(PRIMARY))
    if region:
        rows = rows.filter(pl.col("region") == region)
    mean = (100 * pl.col("value").cast(pl.Float64)).mean().alias("dice")
    return join_settings(table, rows.group_by(["job", *IMAGE_COLUMNS], maintain_order=True).agg(mean))


def dice_differences(images: "pl.DataFrame", baseline: str, *, same_model: bool = False) -> "pl.DataFrame":
    """Add the Dice and the job of the baseline with the same stream, batch and seed, and the difference to its Dice.

    If a grid trains several source models and the baseline has that grid too, each row is compared with the baseline of
    its own model. A row whose model has no baseline is compared with the row that has exactly the baseline's name, or
    left out with `same_model`.
    """
    pl = import_polars()
    same = [name for name in SETTING_COLUMNS if name != "method"] + list(IMAGE_COLUMNS)
    labels = [label for label in distinct_values(images, "method") if is_baseline(label, baseline)]
    named, of_grid = pl.col("method") == baseline, pl.col("method").is_in(labels)
    values = {"baseline": "dice", "baseline_job": "job"}
    columns = [pl.col(name).alias(new) for new, name in values.items()]
    own = images.filter(of_grid).select(*same, "training", *columns)
    own = own.unique([*same, "training"], keep="first", maintain_order=True)
    other = images.filter(named & (not same_model)).select(*same, *columns)
    joined = images.join(own, on=[*same, "training"], how="left", maintain_order="left")
    joined = joined.join(other, on=same, how="left", suffix="_named", maintain_order="left")
    joined = joined.with_columns(pl.coalesce(name, f"{name}_named").alias(name) for name in values)
    joined = joined.drop([f"{name}_named" for name in values]).drop_nulls("baseline")
    return joined.with_columns((pl.col("dice") - pl.col("baseline")).alias("difference"))


def complete_transfers(images: "pl.DataFrame", methods: Sequence[str]) -> "pl.DataFrame":
    """Keep these methods, and of them the transfers, streams and seeds with which all of them were scored."""
    pl = import_polars()
    chosen = images.filter(pl.col("method").is_in(list(methods)))
    scored = pl.col("method").n_unique().over("protocol", "sources", "target", "stream", "batch", "seed")
    return chosen.filter(scored == len(set(methods)))


def transfer_differences(paired: "pl.DataFrame", method: str) -> list[TransferDifferences]:
    """Return the differences of a method for each transfer, in the order of the table."""
    pl = import_polars()
    mine = paired.filter(pl.col("method") == method)
    result = list[TransferDifferences]()
    for (protocol, sources, target), part in mine.group_by(
        ["protocol", "sources", "target"], maintain_order=True
    ):
        over_seeds = part.group_by(["site", "case"], maintain_order=True).agg(pl.col("difference").mean())
        seeds = part.group_by("seed", maintain_order=True).agg(pl.col("difference").mean())
        values, by_seed, means = (frame["difference"].to_numpy() for frame in (over_seeds, part, seeds))
        name = column_name(str(protocol), str(sources), str(target))
        cases = over_seeds.select("site", "case").rows()
        result.append(TransferDifferences(name, values, by_seed, means, str(target), cases))
    return result


def distinct_values(frame: "pl.DataFrame", name: str) -> Sequence[str]:
    """Return the distinct values of a column in order of appearance."""
    return [str(value) for value in frame[name].unique(maintain_order=True)]
