"""Sites, benchmarks and what becomes of their pictures on the way to a network."""

from ttdg.data.augmentation import AUGMENTATIONS, Augmentation, AugmentParameters, draw
from ttdg.data.benchmark import Benchmark, Exact, Threshold, builtin_benchmarks, load_benchmark
from ttdg.data.casetable import Problem
from ttdg.data.check import Report, SiteReport, check, render
from ttdg.data.fingerprints import fingerprint
from ttdg.data.loading import Arrays, Loaded, load_arrays, stream, to_batch
from ttdg.data.packing import load_site, open_pack, pack_path, pack_site
from ttdg.data.readers import READERS, Reader, read_image, read_mask
from ttdg.data.sampling import balanced_indices
from ttdg.data.sites import Case, Site, find_sites, open_folder, split
from ttdg.data.spec import Normalisation
from ttdg.data.transforms import augment, normalise

__all__ = [
    "AUGMENTATIONS",
    "READERS",
    "Arrays",
    "AugmentParameters",
    "Augmentation",
    "Benchmark",
    "Case",
    "Exact",
    "Loaded",
    "Normalisation",
    "Problem",
    "Reader",
    "Report",
    "Site",
    "SiteReport",
    "Threshold",
    "augment",
    "balanced_indices",
    "builtin_benchmarks",
    "check",
    "draw",
    "find_sites",
    "fingerprint",
    "load_arrays",
    "load_benchmark",
    "load_site",
    "normalise",
    "open_folder",
    "open_pack",
    "pack_path",
    "pack_site",
    "read_image",
    "read_mask",
    "render",
    "split",
    "stream",
    "to_batch",
]
