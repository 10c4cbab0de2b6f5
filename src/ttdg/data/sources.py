"""Source sites prepared for training: split by patient, decoded once, with a record of the data."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ttdg.data.benchmark import Benchmark
from ttdg.data.fingerprints import fingerprint
from ttdg.data.loading import Arrays, load_arrays, subset
from ttdg.data.packing import open_pack, pack_path
from ttdg.data.sites import Site, split
from ttdg.errors import UserError


@dataclass(frozen=True)
class Sources:
    """Images and masks of the source sites, by site name."""

    train: Mapping[str, Arrays]
    held_out: Mapping[str, Arrays]
    provenance: Mapping[str, Mapping[str, Any]]  # numbers of cases, and a fingerprint of the files


def load_sources(
    sites: Mapping[str, Site],
    benchmark: Benchmark,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Sources:
    """Load sites, each split 8:2 by patient into training and held-out cases.

    A packed site is read from its pack. `progress` receives the number of cases decoded so far.
    """
    train, held_out, provenance, count = {}, {}, {}, itertools.count(1)
    for name, site in sites.items():
        kept, out = split(site.cases)
        if pack_path(site).exists():
            packed = open_pack(site, benchmark)
            train[name], held_out[name] = (subset(packed, cases) for cases in (kept, out))
        else:
            train[name], held_out[name] = (
                load_arrays(cases, benchmark, workers, lambda _: progress(next(count)))
                for cases in (kept, out)
            )
        sizes = {"cases": len(site.cases), "trained": len(kept), "held_out": len(out)}
        provenance[name] = {**sizes, "fingerprint": fingerprint(site.cases)}
    return Sources(train, held_out, provenance)


def check_provenance(
    provenance: Mapping[str, Mapping[str, Any]], trained_on: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise if a site's files, or the number of cases held out, differ from those of the model's training.

    With other files or another split, held-out images might have been trained on. Sites without a recorded fingerprint
    pass.
    """
    for site, data in provenance.items():
        expected = trained_on.get(site, {}).get("fingerprint")
        if expected is not None and expected != data["fingerprint"]:
            raise UserError(
                f"site {site!r} holds {data['cases']} cases that are not those the model was trained on "
                f"({trained_on[site].get('cases', 'unknown')} cases, another fingerprint); "
                "use the data folder the model was trained from, or choose other source sites"
            )
        recorded = trained_on.get(site, {}).get("held_out")
        if recorded is not None and recorded != data.get("held_out", recorded):
            raise UserError(
                f"site {site!r} holds out {data['held_out']} cases, but {recorded} when the model was trained: this "
                "version splits it in another way, so held-out cases were trained on; train the model again"
            )
