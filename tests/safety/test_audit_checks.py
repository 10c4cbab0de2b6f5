"""Whether an output folder is the one that its audit log describes."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.newsite import audit
from ttdg.newsite.audit import AuditLog, verify_audit
from ttdg.newsite.revert import revert


def lines_of(out):
    return (out / "audit.jsonl").read_text().splitlines()


def cut(out, count):
    """Remove the last lines of the log."""
    (out / "audit.jsonl").write_text("".join(f"{line}\n" for line in lines_of(out)[:-count]))


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("manifest", [True, False])
def test_lines_that_were_removed_at_the_end_are_found(out, count, manifest):
    """Without the manifest only lines that name an answer are missed; the last line names none."""
    if not manifest:
        (out / "manifest.json").unlink()
    cut(out, count)
    report = verify_audit(out)
    assert bool(report.problems) == (manifest or count > 1)
    assert bool(report.notes) == (not manifest)
    assert CliRunner().invoke(app, ["audit", str(out)]).exit_code == int(manifest or count > 1)


def test_answers_whose_lines_were_removed_are_counted(out):
    (out / "manifest.json").unlink()
    cut(out, 3)
    assert any(problem.startswith("4 answers of the journal") for problem in verify_audit(out).problems)


def test_lines_that_were_removed_after_a_return_are_found_though_earlier_ones_name_the_same_masks(
    out, answer_again
):
    revert(out, 2)
    answer_again(out)
    assert not verify_audit(out).problems
    for name in ("manifest.json", "manifest.csv"):
        (out / name).unlink()
    cut(out, 3)
    assert any(problem.startswith("4 answers of the journal") for problem in verify_audit(out).problems)


@pytest.mark.parametrize("change", ["row", "removed"])
def test_a_changed_table_is_a_problem_until_it_is_written_anew(out, answer_again, change):
    table = out / "manifest.csv"
    whole = table.read_bytes()
    if change == "row":
        table.write_bytes(whole.replace(b"segmented", b"set aside", 1))
    else:
        table.unlink()
    (problem,) = verify_audit(out).problems
    assert "manifest.csv" in problem
    answer_again(out)
    assert verify_audit(out).problems == []
    assert table.exists()


def test_a_table_that_was_changed_together_with_its_hash_in_the_manifest_is_a_problem(out):
    table = (out / "manifest.csv").read_bytes() + b"more\n"
    (out / "manifest.csv").write_bytes(table)
    stated = json.loads((out / "manifest.json").read_text())
    stated["manifest_csv_sha256"] = hashlib.sha256(table).hexdigest()
    (out / "manifest.json").write_text(json.dumps(stated))
    assert any("manifest.csv was changed" in problem for problem in verify_audit(out).problems)


def test_a_mask_that_no_line_names_is_a_problem_and_what_file_managers_leave_is_none(out):
    for name in (".DS_Store", "Thumbs.db", ".hidden.png"):
        (out / "masks" / name).write_bytes(b"x")
    assert verify_audit(out).problems == []
    (out / "masks" / "other.png").write_bytes(b"x")
    (problem,) = verify_audit(out).problems
    assert problem.startswith("1 masks are in no line of the log, for example masks/other.png")


def test_a_call_that_was_killed_at_its_end_leaves_no_problem(out):
    """It logged the hash of a new table, and wrote neither the table nor the manifest."""
    log = AuditLog(out)
    log.open()
    log.add("run", run={"batch": 2})
    log.add("finished", manifest_csv_sha256="0" * 64)
    assert verify_audit(out).problems == []


def test_a_withdrawn_mask_that_is_there_is_named(out, answer_again):
    revert(out, 2)
    withdrawn = next((out / "reverted").rglob("masks/*.png"))
    (out / "masks" / withdrawn.name).write_bytes(withdrawn.read_bytes())
    report = verify_audit(out)
    assert report.masks == {f"masks/{withdrawn.name}": "is there, but was withdrawn"}
    assert report.problems == []
    answer_again(out)
    assert verify_audit(out).masks == {}


@pytest.mark.parametrize("name", ["read_chain", "read_state"])
def test_a_run_that_writes_while_the_log_is_verified_is_no_problem(out, answer_again, monkeypatch, name):
    """The run ends just before the log, or what it is compared with, is read."""
    read = getattr(audit, name)

    def read_later(path):
        monkeypatch.setattr(audit, name, read)
        answer_again(out, again=True)
        return read(path)

    monkeypatch.setattr(audit, name, read_later)
    report = verify_audit(out)
    assert (report.problems, report.masks) == ([], {})
    assert report.counts()["answers"] == 20
