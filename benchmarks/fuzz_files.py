"""Fuzz every file that is read besides images, and count what must not happen.

    python benchmarks/fuzz_files.py --count 40000 --seed 0
    python benchmarks/fuzz_files.py --count 2000 --seed 0 --kinds card part --keep findings/

Valid files are written by the package itself (`fuzz_world.py`). Half of the inputs have damaged bytes. In the other
half the content is changed where it has a structure: values of other kinds, absent and repeated entries in JSON, yaml
and safetensors headers. A compressed file is compressed again. Each input is read with what the commands do next:
`fuzz.py` says what is counted. Times and paths are in some of the files, so `--keep` keeps the findings themselves.
"""

import copy
import gzip
import io
import json
import math
import random
import struct
import sys
from pathlib import Path
from typing import Any

import yaml

from fuzz import File, damaged, fuzz
from fuzz_world import KINDS, make_world, read_file, valid_files

ODD = (
    None, True, -1, 0, 1, 3.5, 1e308, -1e308, math.nan, math.inf, 2**31, 2**63, 10**30, "", "x", "x" * 2000, "../..",
    "/", "\x00", "é", "nan", "0", [], {}, [[]], [1, 2, 3], {"a": 1}, [None], {"": {}}, "[bold]", "<b>",
)  # fmt: skip


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of every value below the root of a tree of dicts and lists."""
    found, waiting = [], [tree]
    while waiting:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in items:
            found.append((holder, key))
            if isinstance(value, dict | list):
                waiting.append(value)
    return found


def changed_tree(tree: Any, rng: random.Random) -> Any:
    """Return a tree of dicts and lists after one to three changes of its structure."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not isinstance(tree, dict | list) or not (known := places(tree)):
            return rng.choice(ODD)
        holder, key = rng.choice(known)
        change = rng.randrange(6)
        if change == 0:
            del holder[key]
        elif change == 1:
            other, name = rng.choice(known)
            holder[key] = copy.deepcopy(other[name])
        elif change == 2 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "name", f"{key}s"))] = holder.pop(key)
        elif change == 3:
            holder[key] = [holder[key]] if rng.random() < 0.5 else {"x": holder[key]}
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    return tree


def changed_structure(name: str, content: bytes, rng: random.Random) -> bytes:
    """Return the content of a file after a change of its structure; bytes are damaged where it has none."""
    if name.endswith(".json"):
        return json.dumps(changed_tree(json.loads(content), rng)).encode()
    if name.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(changed_tree(json.loads(lines[at]), rng)).encode() + b"\n"
        return b"".join(lines)
    if name.endswith(".yaml"):
        return yaml.safe_dump(changed_tree(yaml.safe_load(content), rng), allow_unicode=True).encode()
    if name.endswith(".safetensors"):
        return changed_safetensors(content, rng)
    if name.endswith(".gz"):
        first, _, rest = gzip.decompress(content).partition(b"\n")
        if first.startswith(b"#") and rng.random() < 0.5:
            first = b"#" + json.dumps(changed_tree(json.loads(first[1:]), rng)).encode()
            return gzip.compress(first + b"\n" + rest, 1)
        return gzip.compress(damaged(first + b"\n" + rest, rng), 1)
    return damaged(content, rng)


def changed_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change settings, names or shapes in the header; half of the time with a hash that fits the tensors."""
    from safetensors.torch import load, save

    from ttdg.checkpoints import content_hash

    (length,) = struct.unpack("<Q", content[:8])
    header, tensors = json.loads(content[8 : 8 + length]), load(content)
    about = dict(header.get("__metadata__", {}))
    if rng.random() < 0.5:
        text = json.dumps(changed_tree(header, rng)).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]
    name = rng.choice(sorted(tensors))
    change, value = rng.randrange(5), tensors[name]
    if change == 0:
        del tensors[name]
    elif change == 1:
        tensors[name] = value[:0] if value.ndim else value[None]
    elif change == 2:
        tensors[name] = (value.double() if value.is_floating_point() else value.float()).clone()
    elif change == 3:
        tensors[name] = value.flatten()[: rng.randrange(value.numel() + 1)].clone()
    elif "settings" in about:
        about["settings"] = json.dumps(changed_tree(json.loads(about["settings"]), rng))
    if "sha256" in about:
        about["sha256"] = content_hash(tensors)
    return save(tensors, about)


class Files:
    """All files but images."""

    def prepare(self, folder: Path, seed: int) -> None:
        make_world(folder, seed)

    def corpus(self, folder: Path, seed: int) -> dict[str, list[File]]:
        return valid_files(folder)

    def change(self, file: File, rng: random.Random) -> bytes:
        return (
            damaged(file.content, rng)
            if rng.random() < 0.5
            else changed_structure(file.name, file.content, rng)
        )

    def read(self, kind: str, path: Path) -> str:
        folder = path
        while not (folder / "world").is_dir():
            folder = folder.parent
        try:
            sys.stdout, sys.stderr, shown = io.StringIO(), io.StringIO(), (sys.stdout, sys.stderr)
            read_file(kind, path, folder)
        finally:
            sys.stdout, sys.stderr = shown
        return "accepted"


if __name__ == "__main__":
    sys.exit(fuzz(Files(), KINDS, __doc__))
