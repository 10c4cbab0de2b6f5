"""The protocols of the paper: which sites train a source model and which sites it is tested on.

A protocol turns names of sites into transfers. A transfer is one source model and its targets, in order. The stream
(`ttdg.evaluation.streams`) decides whether the model is reset between targets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ttdg.errors import UserError, suggestion


@dataclass(frozen=True)
class Target:
    """Images scored as one set: a site, or several sites mixed."""

    name: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Transfer:
    """One source model and the targets it is tested on."""

    sources: tuple[str, ...]
    targets: tuple[Target, ...]


Protocol = Callable[[Sequence[str], Sequence[str], Sequence[str]], list[Transfer]]


def leave_one_out(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """Train on all sites but one, test on that one (Tables 1, 2). `sources` narrows what is trained on."""
    pool = sources or sites
    rounds = [(tuple(site for site in pool if site != left), left) for left in targets or sites]
    return [Transfer(train, (Target(left, (left,)),)) for train, left in rounds if train]


def single_to_each(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """Train on one site, test on each other (Table 3)."""
    return [
        Transfer((source,), tuple(Target(site, (site,)) for site in targets or sites if site != source))
        for source in sources or sites
    ]


def single_to_mixture(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """Train on one site, test on all others shuffled into one set (appendix)."""
    others = {s: tuple(site for site in targets or sites if site != s) for s in sources or sites}
    return [Transfer((s,), (Target("+".join(rest), rest),)) for s, rest in others.items() if rest]


def fixed_source(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """One fixed set of sources, and every other site a target (prostate)."""
    if not sources:
        raise UserError("protocol fixed-source needs `sources:`, the sites the one model is trained on")
    chosen = [site for site in targets or sites if site not in sources]
    return [Transfer(tuple(sources), tuple(Target(site, (site,)) for site in chosen))]


def ceiling(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """Train on a site and test on its held-out patients: what a labelled training set of the target would give."""
    return [Transfer((site,), (Target(site, (site,)),)) for site in targets or sources or sites]


def home(sites: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> list[Transfer]:
    """Train as leave-one-out does, test on held-out patients of each source site: what a method changes at home."""
    return [
        replace(transfer, targets=tuple(Target(site, (site,)) for site in transfer.sources))
        for transfer in leave_one_out(sites, sources, targets)
    ]


PROTOCOLS: Mapping[str, Protocol] = {
    "leave-one-out": leave_one_out,
    "single-to-each": single_to_each,
    "single-to-mixture": single_to_mixture,
    "fixed-source": fixed_source,
    "ceiling": ceiling,
    "home": home,
}
ON_TRAINED_SITES = ("ceiling", "home")  # tested on sites of the training, so on held-out patients only


def transfers(
    protocol: str, sites: Sequence[str], sources: Sequence[str] = (), targets: Sequence[str] = ()
) -> list[Transfer]:
    """Return the transfers of a protocol over the available sites.

    Raises:
        UserError: If a name is unknown, or if no target is left.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}{suggestion(protocol, PROTOCOLS)}")
    for name in (*sources, *targets):
        if name not in sites:
            raise UserError(f"no site {name!r}{suggestion(name, sites)}")
    found = [t for t in PROTOCOLS[protocol](sites, sources, targets) if t.targets]
    if not found:
        raise UserError(f"protocol {protocol} leaves nothing to test on {', '.join(sites)}; add a site")
    return found


STREAMS: Mapping[str, str] = {  # how tables describe each stream; `ttdg.evaluation.streams` implements them
    "online": "online, reset per target",
    "episodic": "episodic, reset per batch",
    "continual": "continual, never reset",
    "offline": "offline, two passes: adapted to the whole target before any of it is scored",
    "folder": "folder, the whole unlabelled target is learned before any of it is scored",
}
