"""Sites and benchmarks on disk, and everything between an image file and a network's input.

A *case* is an image with its mask, a *site* is the cases of one hospital, and a *benchmark* describes the labels
that several sites share.
"""

# Augmentations of training images.
from ttdg.data.augmentation import AUGMENTATIONS, Augmentation, AugmentParameters, draw

# The description of a benchmark and its label encodings; loading it by name or from a yaml file.
from ttdg.data.benchmark import Benchmark, Exact, Threshold, builtin_benchmarks, load_benchmark

# A problem with a file, and the check of a whole benchmark folder.
from ttdg.data.case_table import Problem
from ttdg.data.check import CheckReport, SiteCheck, check_benchmark, check_table, first_problems

# A hash of the files of some cases.
from ttdg.data.fingerprints import fingerprint

# Cases as tensors: all at once (`load_arrays`), or in batches (`stream`).
from ttdg.data.loading import Arrays, Loaded, load_arrays, stream, to_batch

# The folder of a benchmark: named, found by the benchmark's name, or in $TTDG_DATA. What jobs depend on in its data.
from ttdg.data.lookup import DataSummary, find_benchmark_folder, summarise_data

# Packs: a decoded site in one memory-mapped file.
from ttdg.data.packing import load_site, open_pack, pack_path, pack_site

# Image and mask files as arrays; `READERS` lists the file formats.
from ttdg.data.readers import READERS, Reader, read_image, read_mask

# Random training cases, balanced over the sites.
from ttdg.data.sampling import balanced_indices

# How images are normalised: "minmax", "imagenet", "zscore", "clipped-zscore", or as another network expects them.
from ttdg.data.schema import NetworkInput, Normalisation

# Listing sites and folders, and splitting cases by patient.
from ttdg.data.sites import Case, Site, find_sites, open_folder, split

# Source sites for training, split into training and held-out cases; the check that files are those of a training.
from ttdg.data.sources import Sources, check_provenance, load_sources

# Operations on batches of images.
from ttdg.data.transforms import augment, normalise

# The volumes of a stream of slices, and orders of slices.
from ttdg.data.volumes.grouping import ORDERS, Order, Volume, complete_volumes, ordered

__all__ = [
    "AUGMENTATIONS",
    "ORDERS",
    "READERS",
    "Arrays",
    "AugmentParameters",
    "Augmentation",
    "Benchmark",
    "Case",
    "CheckReport",
    "DataSummary",
    "Exact",
    "Loaded",
    "NetworkInput",
    "Normalisation",
    "Order",
    "Problem",
    "Reader",
    "Site",
    "SiteCheck",
    "Sources",
    "Threshold",
    "Volume",
    "augment",
    "balanced_indices",
    "builtin_benchmarks",
    "check_benchmark",
    "check_provenance",
    "check_table",
    "complete_volumes",
    "draw",
    "find_benchmark_folder",
    "find_sites",
    "fingerprint",
    "first_problems",
    "load_arrays",
    "load_benchmark",
    "load_site",
    "load_sources",
    "normalise",
    "open_folder",
    "open_pack",
    "ordered",
    "pack_path",
    "pack_site",
    "read_image",
    "read_mask",
    "split",
    "stream",
    "summarise_data",
    "to_batch",
]
