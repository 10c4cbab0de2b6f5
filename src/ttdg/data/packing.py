"""Packs: all cases of a site decoded once and stored in one file, which is then memory-mapped.

Measured with benchmarks/data.py on two shared CPU cores, in images with masks per second:

| images | decoded | from a pack |
|---|---|---|
| 256² | 570 to 800 | 5,600 to 5,800 |
| 1024² | 34 to 55 | 1,100 |

A ResNet-50 U-Net predicts 7 images per second on the same cores, so a pack saves little on a CPU. It helps a
GPU, which takes hundreds of images per second, and images much larger than the network's input.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxtyping import Shaped
from torch import Tensor

from ttdg.data.benchmark import Benchmark
from ttdg.data.fingerprints import fingerprint
from ttdg.data.loading import Arrays, load_arrays
from ttdg.data.sites import Site
from ttdg.errors import UserError
from ttdg.files import atomic_file

AGAIN = "pack the site again"


def pack_site(
    site: Site,
    benchmark: Benchmark,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write the pack of a site atomically and return its path, which is `pack_path(site, folder)`."""
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
    metadata["digest"] = _digest(tensors, metadata)
    path = pack_path(site, folder)
    try:
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {path} ({error}); choose a writable folder with enough space"
        ) from None
    return path


def open_pack(site: Site, benchmark: Benchmark, folder: Path | None = None) -> Arrays:
    """Return the memory-mapped arrays of a pack. All of its bytes are read once and compared with their hash.

    Raises:
        UserError: The file is no pack, is damaged, or was made from other files or for another benchmark.
    """
    from safetensors import SafetensorError, safe_open

    path = pack_path(site, folder)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            cases = tuple(json.loads(metadata["cases"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a pack ({error}); {AGAIN}") from None
    if metadata.pop("digest", "") != _digest(tensors, metadata):
        raise UserError(f"{path} is damaged, or was packed by an older version; {AGAIN}")
    if metadata.get("meaning") != _meaning(benchmark):
        raise UserError(f"{path} was packed for another image size or another mask encoding; {AGAIN}")
    if not _same_data(metadata, site):
        raise UserError(f"{path} is stale: the files of site {site.name!r} have changed; {AGAIN}")
    return Arrays(tensors["images"], tensors.get("masks"), cases)


def load_site(
    site: Site, benchmark: Benchmark, folder: Path | None = None, workers: int | None = None
) -> Arrays:
    """Load a site from its pack if there is one, else from its files."""
    if pack_path(site, folder).exists():
        return open_pack(site, benchmark, folder)
    return load_arrays(site.cases, benchmark, workers)


def pack_path(site: Site, folder: Path | None = None) -> Path:
    """Return `folder/SITE.safetensors`; the default folder is the benchmark's, beside the site's folder."""
    if not site.cases:
        raise UserError(f"site {site.name!r} has no cases, so there is nothing to pack")
    return (folder or site.cases[0].image.parents[2]) / f"{site.name}.safetensors"


def _digest(tensors: Mapping[str, Shaped[Tensor, "..."]], metadata: Mapping[str, str]) -> str:
    """Return a hash of everything in the pack."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _same_data(metadata: dict[str, str], site: Site) -> bool:
    """Compare sizes and modification times first; if they differ, compare the bytes, as files may be copies."""
    return metadata.get("quick") == fingerprint(site.cases, quick=True) or (
        metadata.get("content") == fingerprint(site.cases)
    )


def _meaning(benchmark: Benchmark) -> str:
    """Return the entries of the benchmark that determine the packed bytes."""
    fields = benchmark.to_dict()
    clipped = ("normalisation",) if benchmark.normalisation == "clipped-zscore" else ()
    names = ("labels", "size", *clipped, "task" if "task" in fields else "mask")
    return json.dumps({name: fields[name] for name in names}, sort_keys=True)
