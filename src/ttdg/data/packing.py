"""A site decoded once into one file, which is then mapped into memory instead of read.

Measured with benchmarks/data.py on two shared CPU cores, images with masks a second: pictures of 256² are
decoded at 570 to 800 and drawn from a pack at 5,600 to 5,800; pictures of 1024² at 34 to 55, from their pack
at 1,100. A ResNet-50 U-Net on the same cores predicts 7. So decoding does not dominate on a CPU, and there a
pack saves little; it is for a GPU that takes hundreds of images a second, and for pictures much larger than
what the network sees.
"""

import json
from collections.abc import Callable
from pathlib import Path

from ttdg.data.benchmark import Benchmark
from ttdg.data.fingerprints import fingerprint
from ttdg.data.loading import Arrays, load_arrays
from ttdg.data.sites import Site
from ttdg.errors import UserError
from ttdg.files import atomic_file

AGAIN = "pack it again with `ttdg data pack`"


def pack_site(
    site: Site,
    benchmark: Benchmark,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes the site's `pack_path`, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    arrays = load_arrays(site.cases, benchmark, workers, progress)
    tensors = {"images": arrays.images} | ({} if arrays.masks is None else {"masks": arrays.masks})
    metadata = {
        "cases": json.dumps(arrays.cases),
        "meaning": _meaning(benchmark),
        "quick": fingerprint(site.cases, quick=True),
        "content": fingerprint(site.cases),
    }
    path = pack_path(site, folder)
    try:
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {path} ({error}); choose a folder with room that you may write to"
        ) from None
    return path


def open_pack(site: Site, benchmark: Benchmark, folder: Path | None = None) -> Arrays:
    """The arrays of `pack_site`, read from disk where they are touched. A pack of other data is refused."""
    from safetensors import SafetensorError, safe_open

    path = pack_path(site, folder)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            cases = tuple(json.loads(metadata["cases"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a pack ({error}); {AGAIN}") from None
    if metadata.get("meaning") != _meaning(benchmark):
        raise UserError(f"{path} was packed for another size or another reading of the masks; {AGAIN}")
    if not _same_data(metadata, site):
        raise UserError(f"{path} is stale: the files of site {site.name!r} have changed since; {AGAIN}")
    return Arrays(tensors["images"], tensors.get("masks"), cases)


def load_site(
    site: Site, benchmark: Benchmark, folder: Path | None = None, workers: int | None = None
) -> Arrays:
    """From its pack, if there is one, else from its files."""
    if pack_path(site, folder).exists():
        return open_pack(site, benchmark, folder)
    return load_arrays(site.cases, benchmark, workers)


def pack_path(site: Site, folder: Path | None = None) -> Path:
    """`folder/SITE.safetensors`; by default in the benchmark's own folder, beside the site's."""
    if not site.cases:
        raise UserError(f"site {site.name!r} has no cases; there is nothing to pack")
    return (folder or site.cases[0].image.parents[2]) / f"{site.name}.safetensors"


def _same_data(metadata: dict[str, str], site: Site) -> bool:
    """By lengths and times or, since files that were only copied have new times, by their bytes."""
    return metadata.get("quick") == fingerprint(site.cases, quick=True) or (
        metadata.get("content") == fingerprint(site.cases)
    )


def _meaning(benchmark: Benchmark) -> str:
    """What of the benchmark the packed bytes depend on."""
    fields = benchmark.to_dict()
    return json.dumps({name: fields[name] for name in ("labels", "mask", "size")}, sort_keys=True)
