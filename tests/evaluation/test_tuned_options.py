"""The file of a tuning, as later code reads it: those of published records, and torn ones."""

from pathlib import Path

import pytest
import yaml

from ttdg.errors import UserError
from ttdg.evaluation.tuned_options import choices_for, chosen, read_choices, searches

PUBLISHED = sorted((Path(__file__).parents[2] / "docs" / "records").glob("*/tuned.yaml"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_searches_are_read_though_they_count_no_images(path):
    searches = yaml.safe_load(path.read_text(encoding="utf-8"))
    for choice, search in zip(read_choices(path), searches.values(), strict=True):
        assert (choice.method, choice.options) == (search["method"], search["chosen"])
        assert (choice.model, choice.batch) == (search["model"], search["search"]["batch"])
    assert choices_for(path, choice.model, [], [choice.method]) == {choice.method: choice}


def test_there_are_published_searches():
    assert PUBLISHED


@pytest.mark.parametrize(("said", "read"), [({"batch": 2}, 2), ({"search": {"batch": 3}}, 3), ({}, None)])
def test_the_batch_of_a_search_is_read_where_the_file_says_it(tmp_path, said, read):
    search = {"method": "norm", "chosen": {}, "model": "a", "sources": ["east"]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"k": {**search, **said}}))
    (choice,) = read_choices(tmp_path / "a.yaml")
    assert choice.batch == read


@pytest.mark.parametrize(
    ("batch", "stream", "rate"),
    [(1, "online", 0.1), (1, "folder", 0.2), (4, "online", 0.3), (4, "folder", 0.3)],
)
def test_of_several_searches_that_of_the_batch_size_and_the_stream_counts(tmp_path, batch, stream, rate):
    common = {"method": "tent", "model": "a", "sources": ["east"]}
    found = [(0.1, {"batch": 1}), (0.2, {"batch": 1, "stream": "folder"}), (0.3, {"batch": 4})]
    packed = {str(lr): {**common, "chosen": {"lr": lr}, "search": search} for lr, search in found}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(packed))
    choice = choices_for(tmp_path / "a.yaml", "a", [], ["tent", "norm"], batch, stream)
    assert {name: dict(each.options) for name, each in choice.items()} == {"tent": {"lr": rate}}
    with pytest.raises(UserError, match="several searches of 'tent'"):
        choices_for(tmp_path / "a.yaml", "a", [], ["tent"], 16, "online")


def test_a_torn_choice_is_one_sentence(tmp_path):
    (tmp_path / "a.yaml").write_text("chosen")
    with pytest.raises(UserError, match="does not hold a complete search"):
        chosen(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["", "chosen", "a: [", "chosen: {}\nmethod: tent"])
@pytest.mark.parametrize("name", ["tuned/k.yaml", "tuned.yaml"])
def test_a_torn_search_is_one_sentence(tmp_path, name, text):
    (tmp_path / "tuned").mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"does not hold a complete search.*benchmark again"):
        searches(tmp_path)


def test_a_search_that_a_kill_left_half_written_is_none(tmp_path):
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / ".k-1.yaml").touch()
    assert searches(tmp_path) == {}
