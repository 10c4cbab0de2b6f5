"""The demo's promise, on fewer images: the model is good at home, fails at the new hospital, and is partly mended."""

import pytest
from PIL import Image

from ttdg.report.demo import SHOWN, run_demo
from ttdg.report.figures.site_answers import FOLDER


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Without the methods that learn a whole folder: those take minutes."""
    methods = [method for method in SHOWN if method not in FOLDER]
    return run_demo(tmp_path_factory.mktemp("demo"), methods, cases=12)


def dice(demo, method, home):
    about = [(e.about["site"] != demo.target, e.about["method"], e.rows) for e in demo.evaluations]
    rows = [row for at_home, name, rows in about if name == method and at_home is home for row in rows]
    values = [value for *_, metric, value in rows if metric == "dice"]
    return 100 * sum(values) / len(values)


def test_the_model_is_good_at_its_own_hospitals_and_worse_at_the_new_one(demo):
    assert dice(demo, "source", home=True) > 85
    assert dice(demo, "source", home=False) < dice(demo, "source", home=True) - 10


def test_two_simple_adapters_mend_part_of_it(demo):
    unadapted = dice(demo, "source", home=False)
    assert dice(demo, "norm", home=False) > unadapted + 3
    assert dice(demo, "tent", home=False) > unadapted + 3


def test_the_judge_mends_it_too_and_leaves_the_model_alone_where_it_was_right(demo):
    assert dice(demo, "judge", home=False) > dice(demo, "source", home=False) + 3
    assert dice(demo, "judge", home=True) > dice(demo, "source", home=True) - 1


@pytest.mark.slow
def test_the_universe_learns_the_new_hospital_and_leaves_the_others_alone(tmp_path):
    demo = run_demo(tmp_path, cases=12)
    assert demo.conclusion.method == "universe"
    assert dice(demo, "universe", home=False) > dice(demo, "judge", home=False) + 1
    assert dice(demo, "universe", home=True) > dice(demo, "source", home=True) - 0.3


def test_its_conclusion_is_the_gain_at_the_new_hospital_and_the_cost_at_home_of_one_method(demo):
    found = demo.conclusion
    assert found.method == "judge"  # the recommended method is not among these
    assert found.adapted == pytest.approx(dice(demo, "judge", home=False))
    assert found.home_adapted == pytest.approx(dice(demo, "judge", home=True))
    assert f"from {dice(demo, 'source', home=False):.1f} to {found.adapted:.1f}" in demo.page.read_text()


def test_it_leaves_a_picture_and_one_self_contained_page(demo):
    assert Image.open(demo.picture).width > 500
    page = demo.page.read_text()
    assert "data:image/png;base64," in page
    assert demo.target in page
    assert "http" not in page.replace("http-equiv", "")
    assert f"{dice(demo, 'source', home=False):.1f}" in page
