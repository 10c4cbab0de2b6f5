"""Source sites made ready for training: split by patient, decoded once, with a note of what they were."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttdg.data import Arrays, Benchmark, Case, Site, fingerprint, load_arrays, open_pack, pack_path, split
from ttdg.errors import UserError


@dataclass(frozen=True)
class Sources:
    train: Mapping[str, Arrays]
    held_out: Mapping[str, Arrays]
    provenance: Mapping[str, Mapping[str, Any]]


def load_sources(
    sites: Mapping[str, Site],
    benchmark: Benchmark,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Sources:
    """8:2 by patient within each site; the held-out fifth is never trained on. A site with a pack is read from it."""
    train, held_out, provenance, count = {}, {}, {}, itertools.count(1)
    for name, site in sites.items():
        kept, out = split(site.cases)
        if pack_path(site).exists():
            packed = open_pack(site, benchmark)
            train[name], held_out[name] = (_subset(packed, cases) for cases in (kept, out))
        else:
            train[name], held_out[name] = (
                load_arrays(cases, benchmark, workers, lambda _: progress(next(count)))
                for cases in (kept, out)
            )
        sizes = {"cases": len(site.cases), "trained": len(kept), "held_out": len(out)}
        provenance[name] = {**sizes, "fingerprint": fingerprint(site.cases)}
    return Sources(train, held_out, provenance)


def check_provenance(found: Mapping[str, Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Are these the images a model was trained on? With others, held-out ones would no longer be held out."""
    for site, about in found.items():
        wanted = known.get(site, {}).get("fingerprint")
        if wanted is not None and wanted != about["fingerprint"]:
            raise UserError(
                f"site {site!r} holds {about['cases']} cases that are not those the model was trained on "
                f"({known[site].get('cases', 'unknown')} cases, another fingerprint); give --data the folder it was "
                "trained from, or choose other sites with --sources"
            )


def _subset(arrays: Arrays, cases: Sequence[Case]) -> Arrays:
    row = {name: number for number, name in enumerate(arrays.cases)}
    rows = [row[case.name] for case in cases]
    masks = None if arrays.masks is None else arrays.masks[rows]
    return Arrays(arrays.images[rows], masks, tuple(case.name for case in cases))
