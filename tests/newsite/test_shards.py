"""A folder that is answered in shards has the files of one that is answered by a single process."""

import json
import os
import signal
import threading
import time

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ttdg.bench.executors import ExecutorOptions, Outcome
from ttdg.bench.executors.local import LocalExecutor
from ttdg.checkpoints import load, save
from ttdg.data.unlabelled import InputFile, Stack
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.audit import line_hash, verify_audit
from ttdg.newsite.shards import Sharding, coordinator
from ttdg.newsite.shards.cut import cut_into_shards

PLACE = ("number", "time", "previous", "hash")


class Stop(Exception):
    """Stands for anything that ends a run."""


class Inline:
    """An executor in this very process; workers of the named attempts die before or after their work."""

    slots = 2

    def __init__(self, work, dies_before=(), dies_after=()):
        self.work, self.queue, self.count = work, [], 0
        self.dies_before, self.dies_after = dies_before, dies_after

    def submit(self, key, spec):
        self.queue.append((key, spec))

    def wait(self, seconds):
        key, spec = self.queue.pop(0)
        self.count += 1
        lost = Outcome(key, "its worker died", lost=True)
        if self.count in self.dies_before:
            return [lost]
        outcome = self.work.run(key, spec)
        return [lost if self.count in self.dies_after else outcome]

    def close(self):
        self.queue.clear()


@pytest.fixture
def inline(monkeypatch):
    """`inline(**deaths)` makes every executor one of this process."""

    def use(**deaths):
        monkeypatch.setattr(coordinator, "make_executor", lambda name, work, options: Inline(work, **deaths))

    use()
    return use


@pytest.fixture
def model(disc_model, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    return load(tmp_path / "model", "cpu")


@pytest.fixture
def sharded(tmp_path):
    """`sharded(count)`: that many shards of the model."""
    return lambda count: Sharding(count, str(tmp_path / "model"), threads=1)


@pytest.fixture
def site(images):
    """The images, of which two are unusable: a broken file and a black frame between the others."""
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(images / "01-black.png")
    return images


def facts(out):
    lines = [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in PLACE} for line in lines]


def same(out, whole, written):
    assert written(out) == written(whole)
    assert (out / "review.csv").read_bytes() == (whole / "review.csv").read_bytes()
    stated, expected = (json.loads((f / "manifest.json").read_text()) for f in (out, whole))
    stated["audit"].pop("head"), expected["audit"].pop("head")
    assert stated == expected
    assert facts(out) == facts(whole)
    report = verify_audit(out)
    assert not report.problems
    assert not report.masks
    assert not (out / "shards").exists()
    assert not (out / "state").exists()


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_shards_end_in_the_same_files_manifest_and_audit_log(
    model, site, tmp_path, written, inline, sharded, count
):
    """The method uses the statistics of each batch, so an image in another batch would have another answer."""
    whole = predict(model, site, tmp_path / "whole", method="norm", batch=2)
    parts = predict(model, site, tmp_path / "out", method="norm", batch=2, shards=sharded(count))
    assert (parts.done, parts.kept, parts.set_aside, parts.unusual) == (
        whole.done,
        whole.kept,
        whole.set_aside,
        whole.unusual,
    )
    same(tmp_path / "out", tmp_path / "whole", written)


def test_a_learned_folder_is_answered_in_shards(
    model, site, tmp_path, written, inline, sharded, self_training
):
    self_training(model, site, tmp_path / "whole", "folder")
    self_training(model, site, tmp_path / "out", "folder", shards=sharded(3))
    same(tmp_path / "out", tmp_path / "whole", written)


def test_volumes_are_not_cut(model, site, tmp_path, discs, inline, sharded):
    slices = [np.asarray(Image.open(discs / f"west/images/{n:02}.png").convert("L")) for n in range(5)]
    for name in ("a", "b"):
        nibabel.save(
            nibabel.Nifti1Image(np.stack(slices, -1).astype(np.float32), np.eye(4)), site / f"{name}.nii"
        )
    predict(model, site, tmp_path / "whole", method="norm", batch=2)
    predict(model, site, tmp_path / "out", method="norm", batch=2, shards=sharded(3))
    for name in ("manifest.csv", "masks/a.nii", "masks/b.nii"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert facts(tmp_path / "out") == facts(tmp_path / "whole")


@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
def test_a_shard_whose_worker_died_runs_again_and_nothing_is_doubled(
    model, site, tmp_path, written, inline, sharded, when
):
    inline(**{when: (1, 3, 4)})
    predict(model, site, tmp_path / "whole", method="norm", batch=2)
    predict(model, site, tmp_path / "out", method="norm", batch=2, shards=sharded(3))
    same(tmp_path / "out", tmp_path / "whole", written)


def test_an_interrupted_prediction_in_shards_is_continued(model, site, tmp_path, written, inline, sharded):
    predict(model, site, tmp_path / "whole", method="norm", batch=2)
    out, count = tmp_path / "out", [0]

    def stop(done, total):
        count[0] += 1
        if count[0] == 3:
            raise Stop

    def run(**more):
        return predict(model, site, out, method="norm", batch=2, **more)

    with pytest.raises(Stop):
        run(shards=sharded(3), progress=stop)
    with pytest.raises(UserError, match="unfinished prediction in shards"):
        run()
    resumed = run(shards=sharded(3))
    assert resumed.kept >= 2
    assert resumed.done >= 2
    assert written(out) == written(tmp_path / "whole")
    assert facts(out)[0] == facts(out)[1]  # both calls state their run
    assert facts(out)[1:-1] == facts(tmp_path / "whole")[:-1]
    assert not verify_audit(out).problems
    again = run()
    assert (again.done, again.kept) == (0, 8)


def test_shards_add_new_files_and_keep_masks_that_were_changed_by_hand(
    model, site, tmp_path, inline, sharded
):
    out = tmp_path / "out"
    predict(model, site, out, method="norm", batch=2, shards=sharded(2))
    changed = out / "masks" / "03.png"
    Image.fromarray(np.zeros((45, 67), np.uint8)).save(changed)
    before = changed.read_bytes()
    Image.open(site / "00.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(site / "99.png")
    second = predict(model, site, out, method="norm", batch=2, shards=sharded(2))
    assert (second.done, second.kept, second.edited) == (1, 8, ("03.png",))
    assert changed.read_bytes() == before
    assert (out / "masks" / "99.png").exists()


def test_a_changed_line_in_the_log_of_a_shard_is_found(model, site, tmp_path, monkeypatch, sharded):
    class Tampering(Inline):
        def wait(self, seconds):
            (outcome,) = super().wait(seconds)
            log = self.work.folder / outcome.key / "audit.jsonl"
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            lines[1]["weights"] = "0" * 64
            lines[1]["hash"] = line_hash(lines[1])
            log.write_text("".join(json.dumps(line) + "\n" for line in lines))
            return [outcome]

    monkeypatch.setattr(coordinator, "make_executor", lambda name, work, options: Tampering(work))
    with pytest.raises(UserError, match=r"audit log of shard .* is broken"):
        predict(model, site, tmp_path / "out", method="norm", batch=2, shards=sharded(2))


def test_a_method_with_memory_is_refused_online(model, images, tmp_path, inline, sharded):
    with pytest.raises(UserError, match=r"keeps what it learns .* use the stream 'folder'"):
        predict(model, images, tmp_path / "out", method="tent", shards=sharded(2))
    with pytest.raises(UserError, match="cannot save what it learned"):
        predict(model, images, tmp_path / "out", method="tent", stream="folder", shards=sharded(2))
    assert not (tmp_path / "out").exists()


def test_a_shard_that_fails_is_named_with_its_log(model, images, tmp_path, inline):
    other = Sharding(2, str(tmp_path / "absent"), threads=1)
    with pytest.raises(UserError, match=r"2 of 2 shards failed .*no checkpoint at.*shards/\w+/log.txt"):
        predict(model, images, tmp_path / "out", method="norm", batch=2, shards=other)


def test_a_process_answers_shards_though_one_is_killed(
    model, site, tmp_path, written, monkeypatch, sharded, until
):
    """A real process gets SIGKILL when it has written a mask, and another takes its place."""
    predict(model, site, tmp_path / "whole", method="norm", batch=1)
    executors, killed, out = [], [], tmp_path / "out"

    def make(name, work, options):
        assert options == ExecutorOptions(workers=min(2, os.cpu_count() or 1))
        executors.append(LocalExecutor(work, 1))
        return executors[0]

    def kill():
        until(lambda: any(out.glob("masks/*.png")))
        busy = [worker for worker in executors[0].workers if worker.key is not None]
        killed.append(busy[0].process.pid)
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(coordinator, "make_executor", make)
    threading.Thread(target=kill, daemon=True).start()
    predict(model, site, out, method="norm", batch=1, shards=sharded(2))
    assert killed
    same(out, tmp_path / "whole", written)


@pytest.fixture
def until():
    def wait(condition, seconds=120.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.01)

    return wait


def batches(groups, batch, unusable):
    """The usable images of each batch, as `read_new_images` makes them."""
    found = []
    for group in groups:
        usable = [image.file for image in group if image.file not in unusable]
        found += [tuple(usable[start : start + batch]) for start in range(0, len(usable), batch)]
    return found


@given(st.data(), st.integers(1, 5), st.integers(1, 9))
def test_a_cut_keeps_order_batches_and_volumes(tmp_path_factory, data, batch, count):
    """Groups of single images, and volumes of one group each."""
    groups, number = [], 0
    path = tmp_path_factory.getbasetemp() / "x.png"
    for volume, size in data.draw(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=6)):
        stack = Stack(f"v{number}", path, max(size, 2)) if volume else None
        groups.append([InputFile(f"{number + i:03}", path, stack=stack, number=i) for i in range(size)])
        number += size
    files = [image.file for group in groups for image in group]
    unusable = set(data.draw(st.lists(st.sampled_from(files)))) if files else set()
    shards = cut_into_shards(groups, batch, count, unusable)
    assert len(shards) <= count
    assert [file for shard in shards for file in shard.files] == files
    assert [b for shard in shards for b in batches(shard.groups, batch, unusable)] == batches(
        groups, batch, unusable
    )
    homes = {image.stack.name: set() for group in groups for image in group if image.stack}
    for place, shard in enumerate(shards):
        for image in (image for group in shard.groups for image in group if image.stack):
            homes[image.stack.name].add(place)
    assert all(len(places) == 1 for places in homes.values())
    blocks = max([batch, *(len(group) for group in groups)], default=1) + len(unusable)
    assert all(len(shard.files) <= len(files) / count + blocks for shard in shards)


@pytest.mark.slow
def test_a_ray_cluster_answers_shards_though_a_node_is_killed(model, site, tmp_path, written, until):
    ray = pytest.importorskip("ray", reason="ray is not installed: `make test-ray` installs and runs it")
    from ray.cluster_utils import Cluster

    predict(model, site, tmp_path / "whole", method="norm", batch=1)
    out, killed = tmp_path / "out", []
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    def kill():
        until(lambda: any(out.glob("masks/*.png")))
        cluster.remove_node(nodes[0], allow_graceful=False)
        killed.append(cluster.add_node(num_cpus=1))

    try:
        threading.Thread(target=kill, daemon=True).start()
        sharding = Sharding(4, str(tmp_path / "model"), "ray", threads=1, address=cluster.address)
        predict(model, site, out, method="norm", batch=1, shards=sharding)
        assert killed
        same(out, tmp_path / "whole", written)
    finally:
        ray.shutdown()
        cluster.shutdown()
