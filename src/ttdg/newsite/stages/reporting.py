"""The end of a prediction: the last line of the log, the manifest, the report, and the result for the caller."""

import time

from ttdg.newsite.audit import AuditReport, read_chain
from ttdg.newsite.audit_checks import TABLE, masks_on_disk
from ttdg.newsite.manifest import by_input, hash_of, input_count, manifest_table, write_manifest
from ttdg.newsite.report_page import SiteReport, write_site_report
from ttdg.newsite.result import FolderResult, count_unlearned
from ttdg.newsite.run import describe_masks, unknown_drift
from ttdg.newsite.session import Session
from ttdg.newsite.stages.request import FolderPlan


def report_folder(plan: FolderPlan, session: Session, start: float) -> FolderResult:
    """Write the tables and the page about the answers of a session.

    Args:
        plan: What was to be done.
        session: The session, in which all images were answered or set aside.
        start: Time of the performance counter at the start of the call.
    """
    request, journal, files = plan.request, plan.journal, plan.images
    drift = plan.check_sample().drift
    done, kept = (input_count(names, session.inputs) for names in (session.done, session.kept))
    set_aside = by_input(session.set_aside, session.inputs)
    removed = {file: entries for file, entries in journal.removed(files).items() if file not in set_aside}
    table, in_order = manifest_table(journal, plan.found, set_aside, removed)
    facts = {TABLE: hash_of(table)}
    session.audit.add("finished", segmented=done, kept=kept, set_aside=len(set_aside), **facts)
    description = describe_masks(plan.run, request.model, drift) | {"audit": session.audit.end()}
    manifest = write_manifest(request.out, table, in_order, description)
    answers = {file: journal.entries[file] for file in files}
    remarks = journal.remarks(files)
    if plan.memory:
        remarks |= count_unlearned(answers.values())
    named = {entry.mask for entries in (in_order, *removed.values()) for entry in entries}
    verdict = drift.sentence() if drift is not None else unknown_drift(request.model)
    method, reason = plan.choice.method, plan.choice.reason
    page = SiteReport(
        description, drift, verdict, method, reason, in_order, set_aside, remarks, time.perf_counter() - start,
        done, AuditReport(*read_chain(session.audit.path)).counts(),
    )  # fmt: skip
    report = write_site_report(request.out, page, request.model, plan.found.images, request.most_pixels)
    return FolderResult(
        done, kept, set_aside, manifest, journal.expected_dice(files), method, reason, plan.stream,
        images=sum(bool(entry.mask) for entry in answers.values()), remarks=remarks,
        unusual={file: entry.unusual for file, entry in answers.items() if entry.unusual},
        edited=tuple(dict.fromkeys(journal.entries[file].input for file in files if file in journal.edited)),
        removed=tuple(removed), unnamed=tuple(mask for mask in masks_on_disk(request.out) if mask not in named),
        drift=drift, report=report,
        without_maps=input_count(session.without_maps(), session.inputs) if request.probabilities else 0,
        outputs=plan.found.outputs,
    )  # fmt: skip
