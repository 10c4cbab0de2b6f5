"""Small fakes of the original downloads, and the labels that were drawn in them."""

import csv
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

SIDES = (24, 32)  # height and width of fake images
SHAPE = (6, 5, 4)  # x, y, z of fake volumes
AFFINE = np.array(
    [[-0.5, 0, 0, 10], [0, -0.75, 0, 20], [0, 0, 3, -5], [0, 0, 0, 1.0]]
)  # axes to left, back, head


@dataclass
class Fake:
    """A download, and for each site the label indices of its cases; classes instead of labels in class folders."""

    root: Path
    labels: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)

    def expect(self, site: str, case: str, labels: np.ndarray) -> None:
        self.labels.setdefault(site, {})[case] = labels


def photograph(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (*SIDES, 3), dtype=np.uint8)


def blob(number: int, margin: int = 0) -> np.ndarray:
    """A rectangle whose place tells the number; a margin makes it smaller."""
    inside = np.zeros(SIDES, bool)
    inside[4 + margin : 16 - margin, 2 + number % 3 + margin : 14 - margin] = True
    return inside


def gland(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of a volume and its zones 0, 1 and 2."""
    values = np.random.default_rng(number).integers(0, 900, SHAPE).astype(np.int16)
    zones = np.zeros(SHAPE, np.uint8)
    zones[1:4, 1 + number % 2 : 4, 1:3] = 1
    zones[3:4, 1 + number % 2 : 4, 1:3] = 2
    return values, zones


def save(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def grey(inside: np.ndarray, value: int = 255) -> np.ndarray:
    return np.where(inside, value, 0).astype(np.uint8)


def save_nifti(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, affine), path)


def save_metaimage(path: Path, values: np.ndarray, compressed: bool = False) -> None:
    """The header by hand, in the world of MetaImage: left, back, head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = values.tobytes(order="F")
    data = zlib.compress(data) if compressed else data
    kind = {"int16": "MET_SHORT", "uint8": "MET_UCHAR", "int8": "MET_CHAR"}[str(values.dtype)]
    size = f"CompressedDataSize = {len(data)}\n" if compressed else ""
    header = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n"
        f"CompressedData = {compressed}\n{size}TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = -10 -20 -5\n"
        f"CenterOfRotation = 0 0 0\nAnatomicalOrientation = RAI\nElementSpacing = 0.5 0.75 3\n"
        f"DimSize = {' '.join(map(str, values.shape))}\nElementType = {kind}\nElementDataFile = "
    )
    if path.suffix == ".mha":
        path.write_bytes(f"{header}LOCAL\n".encode() + data)
    else:
        path.with_suffix(".raw").write_bytes(data)
        path.write_text(f"{header}{path.with_suffix('.raw').name}\n")


def save_nrrd(path: Path, values: np.ndarray) -> None:
    import gzip

    path.parent.mkdir(parents=True, exist_ok=True)
    header = (
        "NRRD0004\n# a comment\ntype: unsigned char\ndimension: 3\nspace: left-posterior-superior\n"
        f"sizes: {' '.join(map(str, values.shape))}\nspace directions: (0.5,0,0) (0,0.75,0) (0,0,3)\n"
        "kinds: domain domain domain\nendian: little\nencoding: gzip\nspace origin: (-10,-20,-5)\n"
        "key:=space: a note, not a field\n\n"
    )
    path.write_bytes(header.encode() + gzip.compress(values.tobytes(order="F")))


def promise12(fake: Fake) -> None:
    for number, site in {0: "bidmc", 12: "bidmc", 13: "runmc-promise12", 30: "ucl", 49: "hk"}.items():
        values, zones = gland(number)
        folder = fake.root / "TrainingData_Part1"
        save_metaimage(folder / f"Case{number:02}.mhd", values)
        save_metaimage(folder / f"Case{number:02}_segmentation.mhd", (zones > 0).astype(np.int8))
        fake.expect(site, f"Case{number:02}", (zones > 0).astype(np.uint8))
    save_metaimage(fake.root / "TestData" / "Case00.mhd", values)  # without a mask


def prostate_six(fake: Fake) -> None:
    for number, site in enumerate(("RUNMC", "BMC", "I2CVB", "UCL", "BIDMC", "HK")):
        values, zones = gland(number)
        ending = "_Segmentation" if number % 2 else "_segmentation"
        save_nifti(fake.root / site / "Case00.nii.gz", values)
        save_nifti(fake.root / site / f"Case00{ending}.nii.gz", zones)
        fake.expect(site.lower(), "Case00", (zones > 0).astype(np.uint8))


def nci_isbi(fake: Fake) -> None:
    for number, patient in enumerate(("Prostate3T-01-0001", "ProstateDx-01-0006")):
        values, zones = gland(number)
        save_nifti(fake.root / "Image" / f"{patient}.nii.gz", values)
        corrected = "_correctedLabels" if number else ""
        save_nrrd(fake.root / "Mask" / "Training" / f"{patient}{corrected}.nrrd", zones)
        fake.expect(("runmc", "bmc")[number], patient, (zones > 0).astype(np.uint8))


def i2cvb(fake: Fake) -> None:
    values, zones = gland(1)
    save_nifti(fake.root / "Image" / "Patient 383.nii.gz", values)
    save_nifti(fake.root / "Mask" / "Patient 383.nii.gz", zones * np.uint8(100))
    fake.expect("i2cvb", "Patient_383", (zones > 0).astype(np.uint8))


def prostatex(fake: Fake) -> None:
    values, zones = gland(0)
    folder = fake.root / "Files" / "prostate"
    save_nifti(folder / "Images" / "ProstateX-0005_t2_tse_tra_4.nii.gz", values)
    save_nifti(folder / "mask_prostate" / "ProstateX-0005.nii.gz", (zones > 0).astype(np.uint8))
    fake.expect("prostatex", "ProstateX-0005", (zones > 0).astype(np.uint8))


def prostate158(fake: Fake) -> None:
    for number, split in enumerate(("train", "test")):
        values, zones = gland(number)
        folder = fake.root / f"prostate158_{split}" / split / "020"
        save_nifti(folder / "t2.nii.gz", values)
        save_nifti(folder / "adc.nii.gz", values)
        save_nifti(folder / "t2_anatomy_reader1.nii.gz", zones.astype(np.float32))
        fake.expect("prostate158", f"{split}-020", (zones > 0).astype(np.uint8))


def refuge(fake: Fake) -> None:
    places = {
        "g0001": ("Training400/Glaucoma", "Annotation-Training400/Disc_Cup_Masks/Glaucoma", "refuge"),
        "n0001": ("Training400/Non-Glaucoma", "Annotation-Training400/Disc_Cup_Masks/Non-Glaucoma", "refuge"),
        "V0001": ("REFUGE-Validation400", "REFUGE-Validation400-GT/Disc_Cup_Masks", "refuge-test"),
        "T0001": ("Test400", "REFUGE-Test-GT/Disc_Cup_Masks/G", "refuge-test"),
    }
    for number, (case, (images, masks, site)) in enumerate(places.items()):
        labels = blob(number) + blob(number, 3).astype(np.uint8)
        save(fake.root / images / f"{case}.jpg", photograph(number))
        save(fake.root / masks / f"{case}.bmp", np.array([255, 128, 0], np.uint8)[labels])
        fake.expect(site, case, labels)


def rimone(fake: Fake) -> None:
    for number, (folder, case) in enumerate(
        (("Healthy", "N-1-L"), ("Healthy", "N-1-R"), ("Glaucoma and suspects", "G-7-L"))
    ):
        root = fake.root / "RIM-ONE r3" / folder
        save(root / "Stereo Images" / f"{case}.jpg", np.concatenate([photograph(number), photograph(99)], 1))
        for part, margin in (("Disc", 0), ("Cup", 3)):
            pair = np.concatenate([blob(number, margin), np.zeros(SIDES, bool)], 1)
            save(root / "Average_masks" / f"{case}-{part}-Avg.png", grey(pair))
            save(root / "Expert1_masks" / f"{case}-1-{part}-exp1.png", grey(np.roll(pair, 1, 0)))
            save(root / "Expert1_masks" / f"{case}-2-{part}-exp1.png", grey(np.roll(pair, 2, 0)))
        fake.expect("rimone", case, blob(number) + blob(number, 3).astype(np.uint8))


def drishti(fake: Fake) -> None:
    for number, (images, truth) in enumerate(
        (("Training/Images/GLAUCOMA", "Training/GT"), ("Test/Images", "Test/Test_GT"))
    ):
        case = f"drishtiGS_{number:03}"
        root = fake.root / "Drishti-GS1_files"
        save(root / images / f"{case}.png", photograph(number))
        for part, margin in (("OD", 0), ("cup", 3)):
            soft = np.where(blob(number, margin + 1), 191, np.where(blob(number, margin), 128, 64)).astype(
                np.uint8
            )
            save(root / truth / case / "SoftMap" / f"{case}_{part}segSoftmap.png", soft)
        fake.expect("drishti", case, blob(number) + blob(number, 3).astype(np.uint8))


def origa(fake: Fake) -> None:
    for number in (1, 2):
        labels = blob(number) + blob(number, 3).astype(np.uint8)
        save(fake.root / "Images" / f"00{number}.jpg", photograph(number))
        save(fake.root / "Images_Cropped" / f"00{number}.jpg", photograph(number))
        (fake.root / "Semi-automatic-annotations").mkdir(exist_ok=True)
        if number == 1:
            save(fake.root / "Masks" / "001.png", labels)
        else:
            savemat(fake.root / "Semi-automatic-annotations" / "002.mat", {"mask": labels})
        fake.expect("origa", f"00{number}", labels)


def bkai(fake: Fake) -> None:
    for number, case in enumerate(("beefcafe", "0badf00d")):
        colour = np.zeros((*SIDES, 3), np.uint8)
        colour[blob(number), number] = 255  # red, then green
        save(fake.root / "train" / "train" / f"{case}.jpeg", photograph(number))
        save(fake.root / "train_gt" / "train_gt" / f"{case}.jpeg", colour, quality=100, subsampling=0)
        fake.expect("bkai", case, blob(number).astype(np.uint8))
    save(fake.root / "test" / "test" / "unlabelled.jpeg", photograph(9))


def clinicdb(fake: Fake) -> None:
    for kind, ending in (("PNG", "png"), ("TIF", "tif")):  # both copies of the same frames
        for number in (1, 2, 3):
            save(fake.root / kind / "Original" / f"{number}.{ending}", photograph(number))
            save(fake.root / kind / "Ground Truth" / f"{number}.{ending}", grey(blob(number)))
            fake.expect("clinicdb", str(number), blob(number).astype(np.uint8))
    with (fake.root / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("frame_id", "sequence_id"), (1, 1), (2, 1), (3, 2)])


def etis(fake: Fake) -> None:
    for number in (1, 2):
        save(fake.root / "ETIS-LaribPolypDB" / f"{number}.tif", photograph(number))
        save(fake.root / "Ground Truth" / f"p{number}.tif", grey(blob(number)))
        fake.expect("etis", str(number), blob(number).astype(np.uint8))


def kvasir(fake: Fake) -> None:
    for number, case in enumerate(("cju0", "cju1")):
        for part in ("", "sessile-main-"):
            save(fake.root / f"{part}Kvasir-SEG" / "images" / f"{case}.jpg", photograph(number))
            colour = np.repeat(grey(blob(number))[..., None], 3, 2)
            save(fake.root / f"{part}Kvasir-SEG" / "masks" / f"{case}.jpg", colour, quality=100)
        fake.expect("kvasir", case, blob(number).astype(np.uint8))


def pacs(fake: Fake) -> None:
    for number, place in enumerate(("art_painting/dog", "cartoon/horse", "photo/house", "sketch/person")):
        save(fake.root / "PACS" / "kfold" / place / f"pic_{number}.jpg", photograph(number))
        fake.classes.add(f"{place}/pic_{number}.jpg")


def vlcs(fake: Fake) -> None:
    for number, (place, kept) in enumerate(
        {
            "Caltech101/bird": "Caltech101/bird",
            "LabelMe/car": "LabelMe/car",
            "SUN/full/4": "SUN09/person",
        }.items()
    ):
        save(fake.root / "VLCS" / place / f"{number}.jpg", photograph(number))
        fake.classes.add(f"{kept}/{number}.jpg")


FAKES: dict[str, Callable[[Fake], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        promise12, prostate_six, nci_isbi, i2cvb, prostatex, prostate158, refuge, rimone, drishti, origa, bkai,
        clinicdb, etis, kvasir, pacs, vlcs,
    )
}  # fmt: skip


@pytest.fixture
def make_fake(tmp_path: Path) -> Callable[[str], Fake]:
    def make(name: str) -> Fake:
        fake = Fake(tmp_path / f"{name}-download")
        fake.root.mkdir()
        FAKES[name](fake)
        return fake

    return make
