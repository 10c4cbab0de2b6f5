import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttdg.bench.protocols import ON_TRAINED_SITES, PROTOCOLS, Target, transfers
from ttdg.errors import UserError

SITES = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=6, unique=True)


@given(SITES, st.sampled_from(sorted(PROTOCOLS.keys() - set(ON_TRAINED_SITES))))
def test_no_target_is_among_its_sources(sites, protocol):
    sources = sites[:1] if protocol == "fixed-source" else ()
    for transfer in transfers(protocol, sites, sources):
        tested = {site for target in transfer.targets for site in target.sites}
        assert transfer.sources
        assert tested
        assert not tested & set(transfer.sources)


@given(SITES)
def test_leaving_one_out_tests_every_site_once_on_a_model_of_all_others(sites):
    found = transfers("leave-one-out", sites)
    assert [t.targets for t in found] == [(Target(site, (site,)),) for site in sites]
    assert all(set(t.sources) | set(t.targets[0].sites) == set(sites) for t in found)


@given(SITES)
def test_a_ceiling_is_trained_on_its_own_target(sites):
    found = transfers("ceiling", sites)
    assert [(t.sources, t.targets) for t in found] == [((site,), (Target(site, (site,)),)) for site in sites]


@given(SITES)
def test_at_home_the_models_of_leaving_one_out_meet_each_of_their_own_sources(sites):
    found, left_out = transfers("home", sites), transfers("leave-one-out", sites)
    assert [t.sources for t in found] == [t.sources for t in left_out]
    assert all(t.targets == tuple(Target(site, (site,)) for site in t.sources) for t in found)


@given(SITES)
def test_a_single_source_meets_every_ordered_pair_once(sites):
    pairs = [(t.sources[0], target.name) for t in transfers("single-to-each", sites) for target in t.targets]
    assert sorted(pairs) == sorted((a, b) for a in sites for b in sites if a != b)


@given(SITES)
def test_a_mixture_is_one_target_of_all_others(sites):
    for transfer in transfers("single-to-mixture", sites):
        (target,) = transfer.targets
        assert {*target.sites, *transfer.sources} == set(sites)


def test_a_fixed_source_must_be_named():
    with pytest.raises(UserError, match="fixed-source needs `sources:`"):
        transfers("fixed-source", ["a", "b"])
    (only,) = transfers("fixed-source", ["a", "b", "c"], ["a"])
    assert [target.name for target in only.targets] == ["b", "c"]


def test_wrong_names_are_answered_with_the_right_ones():
    with pytest.raises(UserError, match="did you mean 'etis'"):
        transfers("leave-one-out", ["etis", "kvasir"], targets=["etsi"])
    with pytest.raises(UserError, match="did you mean 'leave-one-out'"):
        transfers("leave-one-ot", ["etis", "kvasir"])
    with pytest.raises(UserError, match="leaves nothing to test on etis; add a site"):
        transfers("leave-one-out", ["etis"])
