"""Which records of a run were run again, and how far the second run differed."""

from ttdg.bench.results import RunTable
from ttdg.bench.verification.outcome import verified_records
from ttdg.report.tables import Cell, ReportTable

NOTE = (
    "verified records: scorings that `ttdg verify` ran again, and whose records have not changed since; largest "
    "difference of a compared score, in points"
)


def verification_tables(table: RunTable) -> list[ReportTable]:
    """Return a table of the verified records of each row, or no table if none was verified."""
    marks = verified_records(table.folder, table) if table.folder else {}
    jobs: dict[str, set[str]] = {}
    for entry in table.run.entries:
        if entry.job in table.about:
            jobs.setdefault(entry.label, set()).add(entry.job)
    rows = []
    for label, own in jobs.items():
        found = [marks[job] for job in own & marks.keys()]
        if found:
            largest = 100 * max(mark.largest for mark in found)
            verdict = "verified" if all(mark.agrees for mark in found) else "NOT verified"
            counts = f"{len(found)} of {len(own)}", str(sum(mark.rows for mark in found))
            cells = (*counts, f"{largest:.3g}", verdict)
            rows.append((Cell(label), *(Cell(text) for text in cells)))
    if not rows:
        return []
    header = ("method", "records run again", "scores compared", "largest difference", "verdict")
    return [ReportTable("verified records", header, tuple(rows), NOTE)]
