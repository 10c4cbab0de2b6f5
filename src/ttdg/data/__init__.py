"""Sites, benchmarks and what becomes of their pictures on the way to a network."""

from ttdg.data.augmentation import AUGMENTATIONS, Augmentation, AugmentParameters, draw
from ttdg.data.benchmark import Benchmark, Exact, Threshold, builtin_benchmarks, load_benchmark
from ttdg.data.case_table import Problem
from ttdg.data.check import CheckReport, SiteCheck, check_benchmark, check_table
from ttdg.data.fingerprints import fingerprint
from ttdg.data.loading import Arrays, Loaded, load_arrays, stream, to_batch
from ttdg.data.packing import load_site, open_pack, pack_path, pack_site
from ttdg.data.readers import READERS, Reader, read_image, read_mask
from ttdg.data.sampling import balanced_indices
from ttdg.data.schema import Normalisation
from ttdg.data.sites import Case, Site, find_sites, open_folder, split
from ttdg.data.transforms import augment, normalise

__all__ = [
    "AUGMENTATIONS",
    "READERS",
    "Arrays",
    "AugmentParameters",
    "Augmentation",
    "Benchmark",
    "Case",
    "CheckReport",
    "Exact",
    "Loaded",
    "Normalisation",
    "Problem",
    "Reader",
    "Site",
    "SiteCheck",
    "Threshold",
    "augment",
    "balanced_indices",
    "builtin_benchmarks",
    "check_benchmark",
    "check_table",
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
    "split",
    "stream",
    "to_batch",
]
