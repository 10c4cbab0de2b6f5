"""What is known of a whole site: its method, drift, gate decisions, audit log, and files that were set aside."""

import csv
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.newsite.audit import verify_audit
from ttdg.newsite.journal import read_journal
from ttdg.newsite.report_page import drift_chart
from ttdg.page.queue_rows import QueueRow, file_stamp
from ttdg.page.sites import OPEN, SiteRequest
from ttdg.safety import Drift

DRIFT = "drift.json"  # of a site's folder; what `auto` measured before the first answer


@dataclass(frozen=True)
class AuditSummary:
    """What the audit log of a site says, and whether it is whole."""

    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()  # none if the log is whole
    corrected: int = 0  # masks that were corrected on the page
    changed: dict[str, str] = field(default_factory=dict)  # other masks that are not those of the log → why


@dataclass(frozen=True)
class Findings:
    """What the page says of a site."""

    method: str  # the method in use; `auto` until it has chosen one
    choice: str  # why `auto` chose it
    verdict: str  # the drift in a sentence; empty if it was not measured yet
    drift: Drift | None
    chart: list[dict[str, Any]]
    gated: int  # answers that the gate tested …
    rolled_back: int  # … and replaced by those of the source model
    audit: AuditSummary
    set_aside: dict[str, str]  # files that are not in the queue → reason
    has_report: bool


def site_findings(folder: Path, site: SiteRequest, rows: Sequence[QueueRow]) -> Findings:
    """Return the findings of a site. The audit log and the masks are read again at each call, if no run writes them."""
    drift, verdict = _drift(folder)
    audit = AuditSummary() if site.state in OPEN else _audit(folder / "out", rows)
    gates = [row.entry.gate for row in rows if row.entry.gate]
    method = site.chosen or read_journal(folder / "out" / "journal.jsonl").run.get("method") or site.method
    return Findings(
        method, site.choice, verdict, drift, drift_chart(drift), len(gates),
        sum(gate != "accepted" for gate in gates), audit,
        _set_aside(folder / "out" / "manifest.csv", {row.entry.file for row in rows}),
        (folder / "out" / "report.html").is_file(),
    )  # fmt: skip


def findings_stamp(folder: Path, site: SiteRequest, rows: Sequence[QueueRow]) -> str:
    """Return a text that changes when the findings of a site should be shown again."""
    corrected = sum(row.verdict == "corrected" for row in rows)
    written = [file_stamp(folder / name)[1] for name in (DRIFT, "out/manifest.json")]
    return "-".join(map(str, (site.state, *written, corrected)))


def _drift(folder: Path) -> tuple[Drift | None, str]:
    """Return the drift and its sentence, as the manifest states them, or as `auto` measured them before."""
    for name, key in (("out/manifest.json", "drift"), (DRIFT, "")):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            values = json.loads((folder / name).read_text(encoding="utf-8"))
            values = values[key] if key else values
            if "distance" not in values:
                return None, str(values["verdict"])
            drift = Drift.from_dict(values)
            return drift, drift.sentence()
    return None, ""


def _audit(out: Path, rows: Sequence[QueueRow]) -> AuditSummary:
    try:
        report = verify_audit(out)
    except (UserError, OSError):
        return AuditSummary()
    corrected = {row.entry.mask for row in rows if row.verdict == "corrected"}
    return AuditSummary(
        len(report.lines), report.counts(), tuple(report.problems), len(corrected & report.masks.keys()),
        {mask: why for mask, why in report.masks.items() if mask not in corrected},
    )  # fmt: skip


def _set_aside(manifest: Path, queued: set[str]) -> dict[str, str]:
    """Return the files that were set aside before any image was read, which the journal does not name."""
    try:
        with manifest.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [row for row in csv.DictReader(file) if row.get("status") == "set aside"]
    except OSError:
        return {}
    return {row["file"]: row["reason"] for row in rows if row["file"] not in queued}
