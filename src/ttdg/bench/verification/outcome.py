"""The result of a verification: what was compared, the verdict, and the file that stores it beside the records."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.bench.results import UNPUBLISHED_METRICS, RunTable, import_polars
from ttdg.evaluation.records import COLUMNS
from ttdg.files import write_text

if TYPE_CHECKING:
    import polars as pl

VERIFICATION_FILE = "verification.json"


@dataclass(frozen=True)
class VerifiedRecord:
    """The mark of one record whose scoring ran again.

    Attributes:
        digest: Hash of the record's rows at that time; a mark of other rows does not count.
        rows: Number of rows compared.
        largest: Largest difference of a row.
        agrees: True if the rows agree, bit for bit or within the tolerance.
    """

    digest: str
    rows: int
    largest: float
    agrees: bool


@dataclass(frozen=True)
class Verification:
    """Comparison of recorded values with the values of a second run.

    Attributes:
        rows: Number of rows compared.
        jobs: Number of scorings these rows belong to.
        equal: Number of rows with bit-identical values.
        largest: Largest difference of a row.
        exact: True if bit-identical values are required: CPU, same versions, no model trained again.
        tolerance: Largest accepted difference if `exact` is False.
        digest: Hash of the records that were checked; see `rows_digest`.
        versions: Package versions of the second run.
        retrained: Number of models and parts that were missing and were made again.
        other_code: True if the package's source differs from the code that made the records.
        records: Job → mark of every record that ran again, now or in an earlier verification of the same rows.
    """

    rows: int
    jobs: int
    equal: int
    largest: float
    exact: bool
    tolerance: float
    digest: str
    versions: Mapping[str, str]
    retrained: int = 0
    other_code: bool = False
    records: Mapping[str, VerifiedRecord] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """True if the rows agree: bit for bit if `exact`, else within the tolerance."""
        return self.equal == self.rows if self.exact else self.largest <= self.tolerance

    def in_words(self) -> str:
        """Return the verdict as one line of text."""
        since = "; the code has changed since these records were made" if self.other_code else ""
        return self._verdict() + since

    def _verdict(self) -> str:
        if self.exact and self.agrees:
            return f"verified: {self.rows} rows of {self.jobs} scorings agree bit for bit"
        if self.agrees:
            how = f"{self.equal} of {self.rows} rows of {self.jobs} scorings agree bit for bit, all within"
            return f"verified: {how} {self.tolerance:g} (largest difference {self.largest:.2g})"
        required = "bit for bit" if self.exact else f"within {self.tolerance:g}"
        count = f"{self.equal} of {self.rows} rows are equal"
        return f"NOT verified: {count}; not all agree {required} (largest difference {self.largest:.2g})"


def write_verification(folder: Path, result: Verification) -> None:
    """Write the result beside the records."""
    fields = asdict(result) | {"agrees": result.agrees}
    write_text(folder / VERIFICATION_FILE, json.dumps(fields, indent=1) + "\n")


def rows_digest(table: RunTable) -> str:
    """Return a hash of all published rows, independent of their order."""
    return _digest(table.rows)


def record_digests(table: RunTable, jobs: Collection[str]) -> dict[str, str]:
    """Return job → hash of the published rows of its record, for those of the jobs that have a record."""
    pl = import_polars()
    rows = table.rows.with_columns(pl.col("job").cast(pl.String)).filter(pl.col("job").is_in(list(jobs)))
    return {str(job): _digest(part) for (job,), part in rows.group_by("job")}


def _digest(rows: "pl.DataFrame") -> str:
    pl = import_polars()
    kept = (
        rows.with_columns(pl.col("job", *COLUMNS[:5]).cast(pl.String))
        .filter(~pl.col("metric").is_in(UNPUBLISHED_METRICS))
        .drop_nulls("value")
        .sort("job", *COLUMNS[:5])
    )
    return hashlib.sha256(kept.write_csv().encode()).hexdigest()


def verification_state(folder: Path, table: RunTable) -> str:
    """Describe whether these records were verified; a result for other records does not count.

    After records were added or replaced, each record that has not changed keeps its mark.
    """
    if (result := read_verification(folder)) is None:
        return "not verified"
    if result.digest == rows_digest(table):
        return result.in_words()
    if not (marks := verified_records(folder, table)):
        return "not verified: the records have changed since"
    failed = sum(not mark.agrees for mark in marks.values())
    others = f", {failed} do NOT" if failed else ""
    return (
        f"verified in part: {len(marks) - failed} of {len(table.about)} scorings ran again and agree{others}; the "
        "others are not verified"
    )


def verified_records(folder: Path, table: RunTable) -> dict[str, VerifiedRecord]:
    """Return job → mark of the records that ran again and have not changed since."""
    if (result := read_verification(folder)) is None or not result.records:
        return {}
    now = record_digests(table, result.records)
    return {job: mark for job, mark in result.records.items() if now.get(job) == mark.digest}


def read_verification(folder: Path) -> Verification | None:
    """Read the result beside the records; None if there is none, or if its verdict does not follow from its numbers."""
    try:
        fields: dict[str, Any] = json.loads((folder / VERIFICATION_FILE).read_text(encoding="utf-8"))
        agrees = fields.pop("agrees")
        marks = {job: VerifiedRecord(**mark) for job, mark in fields.pop("records", {}).items()}
        result = Verification(**fields, records=marks)
        return result if agrees == result.agrees else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
