import hashlib
import json

import pytest
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.newsite.audit import AuditLog, verify_audit
from ttdg.newsite.revert import revert


def lines_of(out):
    return (out / "audit.jsonl").read_text().splitlines()


def lines_of_revert(out):
    """The numbers of the lines that withdrew answers, as text."""
    return [str(line["number"]) for line in verify_audit(out).lines if line["event"] == "revert"]


def test_a_log_that_was_not_touched_is_whole(out):
    report = verify_audit(out)
    assert not report.problems
    assert not report.masks
    assert report.counts()["answers"] == 10
    weights = [line["weights"] for line in report.lines if line["event"] == "answers"]
    assert len(set(weights)) == len(weights)  # tent changes them with every batch


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_changed_line_is_found(out, number):
    lines = lines_of(out)
    line = json.loads(lines[number])
    lines[number] = json.dumps(line | {"time": "2020-01-01T00:00:00+00:00"})
    (out / "audit.jsonl").write_text("\n".join(lines) + "\n")
    assert f"line {number % len(lines) + 1} was changed" in verify_audit(out).problems
    assert CliRunner().invoke(app, ["audit", str(out)]).exit_code == 1


def test_a_line_that_states_a_fact_twice_is_changed_though_its_last_value_is_the_true_one(out):
    lines = lines_of(out)
    lines[2] = lines[2].replace("{", '{"time": "2020-01-01T00:00:00+00:00", ', 1)
    (out / "audit.jsonl").write_text("\n".join(lines) + "\n")
    assert verify_audit(out).problems == ["line 3 was changed"]


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_removed_line_is_found(out, number):
    lines = lines_of(out)
    del lines[number]
    (out / "audit.jsonl").write_text("\n".join(lines) + "\n")
    assert verify_audit(out).problems


def test_a_line_with_a_new_hash_of_its_own_breaks_the_chain(out):
    from ttdg.newsite.audit import line_hash

    lines = [json.loads(line) for line in lines_of(out)]
    lines[2]["weights"] = "0" * 64
    lines[2]["hash"] = line_hash(lines[2])
    (out / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any("line 4" in problem for problem in verify_audit(out).problems)


def test_a_line_that_a_killed_call_left_is_cut_and_the_log_stays_whole(out):
    with (out / "audit.jsonl").open("a") as file:
        file.write('{"number": 9, "time')
    assert not verify_audit(out).problems
    log = AuditLog(out)
    log.open()
    log.add("run", run={})
    assert not verify_audit(out).problems


def test_a_changed_mask_is_named(out):
    mask = next((out / "masks").iterdir())
    mask.write_bytes(b"other")
    assert list(verify_audit(out).masks) == [f"masks/{mask.name}"]


def test_going_back_withdraws_later_answers_and_the_next_call_gives_the_same_ones(
    out, answered, answer_again
):
    to = next(line["number"] for line in verify_audit(out).lines if line["event"] == "answers") + 1
    withdrawn = revert(out, to)
    assert len(withdrawn) == 6
    assert len(list((out / "masks").iterdir())) == 4
    assert len(list((out / "reverted" / lines_of_revert(out)[0] / "masks").iterdir())) == 6
    assert not verify_audit(out).problems
    answer_again(out)
    assert {p.name: p.read_bytes() for p in (out / "masks").iterdir()} == {
        p.name: p.read_bytes() for p in (answered / "masks").iterdir()
    }
    assert not verify_audit(out).problems


def test_after_going_back_the_manifest_states_the_hash_of_the_table_and_the_end_of_the_log(out):
    before = json.loads((out / "manifest.json").read_text())
    revert(out, 2)
    stated = json.loads((out / "manifest.json").read_text())
    assert stated["manifest_csv_sha256"] == hashlib.sha256((out / "manifest.csv").read_bytes()).hexdigest()
    last = json.loads(lines_of(out)[-1])
    assert stated["audit"] == {"lines": last["number"], "head": last["hash"]}
    assert {name for name in before if before[name] != stated[name]} == {"audit", "manifest_csv_sha256"}
    (out / "audit.jsonl").write_text("\n".join(lines_of(out)[:-1]) + "\n")
    assert any("removed at the end" in problem for problem in verify_audit(out).problems)


def test_a_broken_log_is_not_reverted(out):
    (out / "audit.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="broken"):
        revert(out, 0)


@pytest.mark.parametrize("content", [b"", b"\xff{}", b"[]", b'{"audit": ', b"[" * 100_000])
def test_nothing_is_reverted_beside_a_damaged_manifest(out, content):
    (out / "manifest.json").write_bytes(content)
    log, masks = lines_of(out), sorted((out / "masks").iterdir())
    with pytest.raises(UserError, match=r"manifest\.json is damaged, and nothing was reverted"):
        revert(out, 2)
    assert (lines_of(out), sorted((out / "masks").iterdir())) == (log, masks)
    (out / "manifest.json").unlink()
    assert revert(out, 2)


def test_a_mask_whose_name_is_too_long_is_missing(out):
    log = AuditLog(out)
    log.open()
    log.add("mask", mask="x" * 3000, mask_sha256="", parts=[])
    assert verify_audit(out).masks == {"x" * 3000: "is missing"}


def test_a_line_without_its_number_is_a_problem_and_counts_are_still_given(out):
    lines = lines_of(out)
    broken = json.loads(lines[2])
    del broken["number"]
    (out / "audit.jsonl").write_text("\n".join([*lines[:2], json.dumps(broken), *lines[3:]]) + "\n")
    report = verify_audit(out)
    assert "line 3 cannot be read" in report.problems
    assert report.counts()["answers"] > 0


@pytest.mark.parametrize("count", [1e999, -99, "x", None])
def test_an_odd_number_of_lines_in_the_manifest_states_nothing(out, count):
    stated = json.loads((out / "manifest.json").read_text())
    stated["audit"]["lines"] = count
    (out / "manifest.json").write_text(json.dumps(stated))
    assert verify_audit(out).problems == []


def test_a_line_that_does_not_exist_and_a_folder_without_a_log_are_refused(out, tmp_path):
    with pytest.raises(UserError, match="has the lines 1 to"):
        revert(out, 99)
    with pytest.raises(UserError, match="no audit log"):
        verify_audit(tmp_path)
