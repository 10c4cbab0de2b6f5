from pathlib import Path

import pytest

from ttdg.bench.config import parse_config, read_config
from ttdg.errors import UserError

FIELDS = {"name": "t", "experiments": [{"name": "a", "protocol": "leave-one-out"}]}
SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


def wrong(**fields):
    with pytest.raises(UserError) as error:
        parse_config(FIELDS | fields, "t.yaml")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_experiment_that_is_shipped_can_be_read(path):
    assert read_config(path).experiments


@pytest.mark.parametrize(
    ("fields", "key", "meant"),
    [
        ({"seed": [1]}, "seed", "seeds"),
        ({"experiments": [{"name": "a", "protocol": "leave-one-out", "batch": 4}]}, "batch", "batches"),
        ({"synthetic": {"variant": "fundus", "case": 3}}, "case", "cases"),
        (
            {"experiments": [{"name": "a", "protocol": "leave-one-out",
                              "methods": [{"method": "tent", "option": {}}]}]}, "option", "options",
        ),
    ],
)  # fmt: skip
def test_an_unknown_key_is_answered_with_the_nearest(fields, key, meant):
    assert f"unknown key {key!r}; did you mean {meant!r}?" in wrong(**fields)


def test_a_wrong_value_is_named_with_its_place():
    assert "experiments: 0: protocol" in wrong(experiments=[{"name": "a", "protocol": "leave-two-out"}])
    assert "seeds" in wrong(seeds=[])
    assert "'a' is given twice" in wrong(experiments=FIELDS["experiments"] * 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batches", [4, 1, 4]), ("streams", ["online", "online"]), ("views", ["flips", "flips"]), ("seeds", [0, 1, 0]),
     ("targets", ["east", "east"]), ("sources", ["east", "east"])],
)  # fmt: skip
def test_a_value_that_is_given_twice_would_count_twice_and_is_refused(field, value):
    experiment = {"name": "a", "protocol": "leave-one-out", field: value}
    assert f"{value[0]!r} is given twice" in wrong(experiments=[experiment])


def test_repeated_and_missing_seeds_are_refused():
    assert "0 is given twice" in wrong(seeds=[0, 1, 0])
    assert "seeds" in wrong(experiments=[{"name": "a", "protocol": "leave-one-out", "seeds": []}])


def test_a_tuned_row_needs_a_tuned_experiment():
    methods = ["source", {"method": "tent", "options": {"steps": 1}, "tuned": True}]
    experiment = {"name": "a", "protocol": "leave-one-out", "methods": methods}
    assert "'tent' has `tuned: true`, but its experiment 'a' has not" in wrong(experiments=[experiment])


def test_a_file_that_is_none_is_said_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("name: [")
    with pytest.raises(UserError, match="is not a yaml file"):
        read_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("just words")
    with pytest.raises(UserError, match="must hold the fields name"):
        read_config(tmp_path / "b.yaml")


@pytest.mark.parametrize("protocol", ["ceiling", "home"])
def test_a_model_is_scored_on_its_own_sites_with_held_out_patients_only(protocol):
    experiment = {"name": "best", "protocol": protocol, "methods": ["source"]}
    with pytest.raises(UserError, match="trains on its targets; add `cases: held-out`"):
        parse_config({"name": "t", "experiments": [experiment]}, "t.yaml")
    config = parse_config({"name": "t", "experiments": [experiment | {"cases": "held-out"}]}, "t.yaml")
    assert config.experiments[0].protocol == protocol
    tuned = experiment | {"cases": "held-out", "tuned": True}
    with pytest.raises(UserError, match="on which options are tuned; remove `tuned`"):
        parse_config({"name": "t", "tune": {}, "experiments": [tuned]}, "t.yaml")


def test_a_number_that_is_not_finite_is_named():
    assert "recipe: universe: a number must be finite" in wrong(recipe={"universe": float("inf")})
    methods = ["source", {"method": "judge", "options": {"margin": float("nan")}}]
    experiment = {"name": "a", "protocol": "leave-one-out", "methods": methods}
    assert "experiments: 0: methods: 1: options: margin" in wrong(experiments=[experiment])
