import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from typer.testing import CliRunner

from ttdg.adaptation import METHODS, adapt, defaults
from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.cli.tune import small_hospitals_note
from ttdg.data import Arrays, find_sites, load_benchmark, load_sources, split
from ttdg.errors import UserError
from ttdg.evaluation import tuning
from ttdg.evaluation.scoring import measure_dice, score_streams
from ttdg.evaluation.tuning import BUDGET, Search, configurations, grid_of, hospital_stream

SMALL = Search(hospitals=2, images=4, batch=2)


@pytest.fixture
def held_out(discs):
    return list(load_sources(find_sites(discs), load_benchmark(None, discs)).held_out.values())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_method_gets_more_than_the_budget(method):
    points = configurations(method)
    assert 1 <= len(points) <= BUDGET
    assert all(set(point) <= set(defaults(method)) for point in points)
    assert len({tuple(point.items()) for point in points}) == len(points)


def test_a_gradient_method_is_tried_at_three_rates_and_two_numbers_of_steps():
    assert grid_of("tent") == {"lr": (1e-5, 1e-4, 1e-3), "steps": (1, 3)}
    assert configurations("tent")[0] == {"lr": 1e-4, "steps": 1}, "the defaults come first"
    assert configurations("source") == [{}]


def test_a_hospital_is_the_same_every_time_and_has_one_shift(held_out, disc_model):
    benchmark, device = disc_model.card.benchmark, torch.device("cpu")
    search = Search(images=2, batch=1)

    def images(number):
        return torch.cat(
            [b.images for b in hospital_stream(number, held_out, benchmark, search, device).batches()]
        )

    assert torch.equal(images(0), images(0))
    assert not torch.equal(images(0), images(3))  # the same site under another shift


def test_hospitals_stand_evenly_from_near_to_the_farthest(held_out, disc_model, monkeypatch):
    strengths, plain = [], tuning.simulate
    monkeypatch.setattr(
        tuning,
        "simulate",
        lambda images, masks, generator, strength, **kw: (
            strengths.append(strength) or plain(images, masks, generator, strength, **kw)
        ),
    )
    search = Search(hospitals=4, images=1, batch=1, farthest=0.8)
    for number in range(4):
        list(
            hospital_stream(
                number, held_out, disc_model.card.benchmark, search, torch.device("cpu")
            ).batches()
        )
    assert strengths == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_hospitals_hold_held_out_source_images_alone(held_out, disc_model):
    known = {case for arrays in held_out for case in arrays.cases}
    batches = hospital_stream(1, held_out, disc_model.card.benchmark, SMALL, torch.device("cpu")).batches()
    assert {case for batch in batches for case in batch.cases} <= known


def test_the_best_trial_is_chosen_and_a_tie_goes_to_the_defaults(held_out, disc_model, monkeypatch):
    scores = {0.05: 0.3, 0.1: 0.5, 0.4: 0.9}

    def attempt(model, method, options, held_out, search):
        return tuning.Trial(options, scores.get(options["alpha"], 0.5) if method == "alpha-bn" else 0.5, 0.0)

    monkeypatch.setattr(tuning, "run_trial", attempt)
    assert tuning.tune(disc_model, "alpha-bn", held_out, SMALL).chosen == {"alpha": 0.4}
    scores.clear()
    assert tuning.tune(disc_model, "alpha-bn", held_out, SMALL).chosen == {
        "alpha": defaults("alpha-bn")["alpha"]
    }


def test_a_trial_is_reset_at_the_start_of_each_hospital(held_out, disc_model):
    together = tuning.run_trial(disc_model, "tent", {"lr": 1e-2}, held_out, SMALL)
    benchmark, dice = disc_model.card.benchmark, []
    for number in range(2):
        target = hospital_stream(number, held_out, benchmark, SMALL, torch.device("cpu"))
        adapter = adapt(disc_model, "tent", lr=1e-2)  # a fresh adapter for each hospital
        rows, _ = score_streams(adapter, [target], "online", benchmark.regions, measure=measure_dice)
        dice += [value for *_, metric, value in rows if metric == "dice"]
    assert together.dice == pytest.approx(sum(dice) / len(dice))


def run(*arguments):
    return CliRunner().invoke(
        app, ["tune", *(str(a) for a in arguments)], env={"COLUMNS": "200", "TERM": "dumb"}
    )


def test_choices_and_trials_are_written_as_yaml_and_a_stopped_search_goes_on(
    tmp_path, discs, disc_model, monkeypatch
):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--hospitals", 2, "--images", 2,
              "--batch", 2, "--device", "cpu")  # fmt: skip
    result = run(*common, "--method", "norm", "--method", "sar")
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert written["sources"] == ["east"]
    assert set(written["methods"]) == {"norm", "sar"}
    sar = written["methods"]["sar"]
    assert len(sar["trials"]) == 6
    assert sar["dice"] == max(trial["dice"] for trial in sar["trials"])
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it was tuned already"))
    assert run(*common, "--method", "norm").exit_code == 0
    assert yaml.safe_load((tmp_path / "t.yaml").read_text()) == written


def test_another_search_in_the_file_is_not_written_over(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--images", 2, "--device", "cpu",
              "--method", "norm")  # fmt: skip
    assert run(*common, "--hospitals", 2).exit_code == 0
    before = (tmp_path / "t.yaml").read_text()
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it must be refused before the search"))
    with pytest.raises(UserError, match=r"holds another search \(hospitals 2\); choose another file"):
        raise run(*common, "--hospitals", 3).exception
    assert (tmp_path / "t.yaml").read_text() == before
    for text in ("notes to keep", "[1]", "a: {method: tent}", "a: [", ""):
        (tmp_path / "t.yaml").write_text(text)
        with pytest.raises(UserError, match="holds no search"):
            raise run(*common, "--hospitals", 2).exception
        assert (tmp_path / "t.yaml").read_text() == text


def test_the_images_each_hospital_really_had_are_counted(held_out, disc_model):
    sizes = [len(arrays.cases) for arrays in held_out]
    for images in (1, *sizes, 99):
        search = Search(hospitals=4, images=images, batch=2)
        streams = (
            hospital_stream(n, held_out, disc_model.card.benchmark, search, torch.device("cpu"))
            for n in range(4)
        )
        counts = tuple(sum(len(batch.cases) for batch in stream.batches()) for stream in streams)
        assert tuning.images_found(held_out, search) == counts
    assert max(counts) < 99


def test_fewer_images_than_asked_for_are_written_and_said_once(tmp_path, discs, disc_model):
    card = replace(disc_model.card, sources={"east": {"cases": 10}, "south": {"cases": 10}})
    save(tmp_path / "model", disc_model.network, card)
    east, south = (len(split(find_sites(discs)[name].cases)[1]) for name in ("east", "south"))
    common = ("-m", tmp_path / "model", "-d", discs, "--device", "cpu", "--method", "norm,source", "--method", "norm",
              "--site", "east", "--site", "south", "--site", "east", "--batch", 1)  # fmt: skip
    result = run(*common, "-o", tmp_path / "t.yaml", "--hospitals", 3, "--images", 99)
    assert result.exit_code == 0, result.exception
    assert result.stderr.count("\n") == 1
    assert f"no more: {east} of east, {south} of south, {east} of east" in result.stderr
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert (written["images"], written["sources"]) == (99, ["east", "south"])
    assert [each["found"] for each in written["methods"].values()] == [{1: east, 2: south, 3: east}] * 2
    enough = run(*common, "-o", tmp_path / "u.yaml", "--hospitals", 3, "--images", min(east, south))
    assert enough.stderr == ""


def test_a_search_on_single_batches_is_said_to_be_blind_to_rates():
    search, sites = Search(hospitals=2, images=12, batch=4), ["east", "south"]
    assert "alike at every rate" in small_hospitals_note((4, 12), sites, search)
    assert "alike at every rate" not in small_hospitals_note((5, 12), sites, search)
    assert small_hospitals_note((12, 12), sites, search) is None


def test_a_search_written_before_images_were_counted_goes_on(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--hospitals", 1, "--images", 1,
              "--device", "cpu", "--method", "norm")  # fmt: skip
    assert run(*common).exit_code == 0
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    del written["methods"]["norm"]["found"]
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(written))
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it was tuned already"))
    assert run(*common).exit_code == 0


def test_a_missing_part_is_said_before_any_search(tmp_path, discs, disc_model, monkeypatch):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    monkeypatch.setattr(tuning, "tune", lambda *_: pytest.fail("it must be refused before the search"))
    with pytest.raises(UserError, match="'deynet' needs the part 'deynet'"):
        raise run("-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--device", "cpu",
                  "--method", "norm", "--method", "deynet").exception  # fmt: skip


def nothing_of(arrays):
    return Arrays(arrays.images[[]], arrays.masks[[]], ())


def test_a_site_that_holds_out_nothing_is_no_hospital(held_out, disc_model):
    one, *rest = held_out
    some = tuning.tune(disc_model, "alpha-bn", [nothing_of(one), *rest], SMALL)
    assert [t.dice for t in some.trials] == [
        t.dice for t in tuning.tune(disc_model, "alpha-bn", rest, SMALL).trials
    ]
    with pytest.raises(UserError, match="no source site has held-out images"):
        tuning.tune(disc_model, "alpha-bn", [nothing_of(one)], SMALL)


def test_the_command_leaves_sites_out_that_hold_out_nothing_and_says_so(tmp_path, discs, disc_model):
    shutil.copytree(discs, tmp_path / "data")
    for part in ("images", "masks"):
        for case in split(find_sites(discs)["south"].cases)[1]:
            (tmp_path / "data" / "south" / part / f"{case.name}.png").unlink()
    card = replace(disc_model.card, sources={"east": {"cases": 10}, "south": {"cases": 10}})
    save(tmp_path / "model", disc_model.network, card)
    common = ("-m", tmp_path / "model", "-d", tmp_path / "data", "-o", tmp_path / "t.yaml", "--hospitals", 2,
              "--images", 2, "--device", "cpu", "--method", "norm")  # fmt: skip
    with pytest.raises(UserError, match="no source site has held-out images"):
        raise run(*common, "--site", "south").exception
    result = run(*common)
    assert result.exit_code == 0, result.exception
    assert "without south: no held-out images" in result.output
    assert yaml.safe_load((tmp_path / "t.yaml").read_text())["sources"] == ["east"]


def test_a_target_is_never_tuned_on(tmp_path, discs, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    result = run(
        "-m", tmp_path / "model", "-d", discs, "-o", tmp_path / "t.yaml", "--site", "west", "--device", "cpu"
    )
    assert isinstance(result.exception, UserError)
    assert "no source of this model" in str(result.exception)
