"""Rows of volumes: from slices in any order to scores of the whole."""

import numpy as np
import pytest
import torch

from ttdg.data import Volume
from ttdg.evaluation.records import read_rows, write_rows, write_wide
from ttdg.evaluation.scoring import measure_all, score_streams
from ttdg.evaluation.streams import TargetStream
from ttdg.metrics import volume_dice, volume_surface_scores
from ttdg.types import Batch

REGIONS = {"gland": (1, 2), "zone": (2,)}
SPACING = (3.0, 0.5, 0.5)
DEPTH = 40  # more slices than are scored in one call


class Answers:
    """An adapter that answers with the labels which the images carry."""

    network = torch.nn.Conv2d(1, 1, 1)

    def __call__(self, images):
        return 20.0 * torch.nn.functional.one_hot(images[:, 0].long(), 3).movedim(-1, 1).float()

    def reset(self):
        pass


def drawn(seed):
    """Labels and answers of a volume; its first and last slices are empty."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(np.arange(DEPTH) - DEPTH / 2, np.arange(16) - 8, np.arange(16) - 8, indexing="ij")
    far = np.sqrt((z / 3) ** 2 + y**2 + x**2)
    labels, answers = (
        np.select([far + rng.normal(0, 1, far.shape) < 3, far < rng.uniform(5, 6)], [2, 1], 0)
        for _ in range(2)
    )
    return torch.from_numpy(labels), torch.from_numpy(answers)


def score(numbers, volumes, surfaces=True):
    """The rows of a stream of slices (volume, slice) of two drawn volumes."""
    two = {"p": drawn(0), "q": drawn(1)}
    names = [("s", f"{name}{number:02}") for name, number in numbers]

    def batches():
        for start in range(0, len(numbers), 7):
            part = numbers[start : start + 7]
            labels, answers = (torch.stack([two[name][i][number] for name, number in part]) for i in (0, 1))
            yield Batch(
                answers[:, None].expand(-1, 3, -1, -1).float(),
                labels,
                tuple(n for _, n in names[start : start + 7]),
            )

    target = TargetStream("s", names, batches, volumes=volumes)
    return score_streams(Answers(), [target], "online", REGIONS, measure=measure_all(surfaces, volumes=True))[
        0
    ]


def volume(name, spacing=SPACING):
    return Volume("s", name, tuple(f"{name}{number:02}" for number in range(DEPTH)), spacing)


def of_volumes(rows):
    return {row[2:5]: row[5] for row in rows if row[4].startswith("volume_")}


ALL = [(name, number) for name in "pq" for number in range(DEPTH)]


def test_a_volume_has_the_scores_of_its_stacked_slices():
    found = of_volumes(score(ALL, [volume("p"), volume("q", None)]))
    for name, seed in (("p", 0), ("q", 1)):
        labels, answers = drawn(seed)
        prediction, truth = (torch.stack((mask > 0, mask == 2)) for mask in (answers, labels))
        voxels, physical = (volume_surface_scores(prediction, truth, s) for s in ((1.0, 1.0, 1.0), SPACING))
        for number, region in enumerate(REGIONS):
            assert found[name, region, "volume_dice"] == pytest.approx(
                volume_dice(prediction, truth)[number].item()
            )
            assert found[name, region, "volume_hd95_voxels"] == pytest.approx(voxels.hd95[0, number].item())
            assert found[name, region, "volume_assd_voxels"] == pytest.approx(voxels.assd[0, number].item())
            if name == "p":
                assert found[name, region, "volume_hd95_mm"] == pytest.approx(physical.hd95[0, number].item())
                assert found[name, region, "volume_assd_mm"] == pytest.approx(physical.assd[0, number].item())
    assert not any(name == "q" and metric.endswith("_mm") for name, _, metric in found), (
        "its spacing is unknown"
    )


def test_scores_of_volumes_do_not_depend_on_the_order_of_slices():
    shuffled = [ALL[i] for i in np.random.default_rng(0).permutation(len(ALL))]
    volumes = [volume("p"), volume("q")]
    assert of_volumes(score(shuffled, volumes)) == of_volumes(score(ALL, volumes))


def test_volumes_add_rows_and_change_none_of_the_slices():
    with_volumes, without = score(ALL, [volume("p")]), score(ALL, [])
    rest = [row for row in with_volumes if not row[4].startswith("volume_")]
    assert [row for row in rest if row[4] != "seconds"] == [row for row in without if row[4] != "seconds"]
    assert {row[2] for row in with_volumes} - {row[2] for row in without} == {"p"}


def test_without_surfaces_only_dice_is_measured_on_volumes():
    assert {key[2] for key in of_volumes(score(ALL, [volume("p")], surfaces=False))} == {"volume_dice"}


def test_volumes_have_lines_and_columns_of_their_own_in_the_csv_for_people(tmp_path):
    about = {"method": "source", "stream": "online", "batch": 7, "seed": 0}
    rows = score(ALL, [volume("p")], surfaces=False)
    write_rows(tmp_path / "r.csv.gz", about, rows)
    write_wide(tmp_path / "wide.csv", [(about, read_rows(tmp_path / "r.csv.gz"))])
    header, *lines = [line.split(",") for line in (tmp_path / "wide.csv").read_text().splitlines()]
    assert header[-1] == "volume_dice"
    own = [line for line in lines if line[1] == "p"]
    assert len(own) == len(REGIONS)
    assert all(line[-1] for line in own)
    assert not any(line[-1] for line in lines if line[1] != "p")
