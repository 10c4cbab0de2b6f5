"""The harness of `fuzz_readers.py` and `fuzz_files.py`: damaged inputs, a watched worker process, and the counts.

Each input is a valid file after a few random changes: bytes, bits, large integers, cuts, repeated and exchanged parts.
A reader may accept it or raise a `UserError`. Counted are

- crash: any other exception, or the death of the process;
- hang: more than 5 seconds of CPU time for one input, or 60 seconds without an answer;
- memory: more than 2 GB of address space over what the process had before, also if the reader catches the error.

A worker process with a limit of address space reads the inputs, and its parent watches its CPU time, because the
machine may be busy. The number of an input and the seed select the changes again.
"""

import argparse
import faulthandler
import multiprocessing
import os
import random
import resource
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Protocol

SECONDS, BYTES = 5.0, 2 << 30
SILENT = 60.0  # seconds without an answer
FINDINGS = ("crash", "hang", "memory")


class File(NamedTuple):
    """A file: its name below the working folder, and its content."""

    name: str
    content: bytes


Corpus = Mapping[str, Sequence[File]]  # valid files by kind


class Target(Protocol):
    """What is fuzzed. Instances are sent to the worker process."""

    def prepare(self, folder: Path, seed: int) -> None:
        """Write what all inputs need into the working folder; called once."""

    def corpus(self, folder: Path, seed: int) -> Corpus:
        """Return valid files by kind."""

    def change(self, file: File, rng: random.Random) -> bytes:
        """Return the content after random changes."""

    def read(self, kind: str, path: Path) -> str:
        """Read a file and return what happened."""


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return the content after one to six random changes, most of them in its first 600 bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        if not data:
            break
        end = min(len(data), 600) if rng.random() < 0.6 else len(data)
        at, change = rng.randrange(end), rng.randrange(7)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            value = rng.choice(
                (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE, rng.getrandbits(31))
            )
            form = rng.choice(("<B", "<H", ">H", "<I", ">I"))
            data[at : at + struct.calcsize(form)] = struct.pack(
                form, value & (256 ** struct.calcsize(form) - 1)
            )
        elif change == 3 and rng.random() < 0.3:
            del data[at:]
        elif change == 4:
            del data[at : at + rng.randint(1, 16)]
        elif change == 5:
            data[at:at] = data[at : at + rng.randint(1, 64)]
        else:
            other = rng.randrange(len(data))
            size = rng.randint(1, 16)
            data[at : at + size] = data[other : other + size]
    return bytes(data)


def made_input(
    target: Target, files: Corpus, kinds: Sequence[str], seed: int, number: int
) -> tuple[str, File]:
    """Return the kind and the damaged file of an input."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(kinds)
    file = rng.choice(files[kind])
    return kind, File(file.name, target.change(file, rng))


def work(connection: Connection, target: Target, kinds: list[str], seed: int, folder: Path) -> None:
    """Read the inputs whose numbers come through the connection."""
    import torch

    from ttdg.errors import UserError

    torch.set_num_threads(1)
    faulthandler.disable()
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries report damage there
    files = target.corpus(folder, seed)
    for kind in kinds:  # import everything before the limit is set
        for file in files[kind]:
            place(folder, file)
            target.read(kind, folder / file.name)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    connection.send(("ready", ""))
    while (number := connection.recv()) is not None:
        kind, file = made_input(target, files, kinds, seed, number)
        path = place(folder, file)
        try:
            outcome = target.read(kind, path), ""
        except UserError as error:
            outcome = "memory" if ran_out(str(error)) else "refused", str(error)
        except MemoryError:
            outcome = "memory", traceback.format_exc(limit=-3)
        except BaseException:  # noqa: BLE001  whatever a reader raises is the finding
            outcome = "crash", traceback.format_exc(limit=-6)
        connection.send((kind, *outcome))
        path.unlink(missing_ok=True)


def ran_out(reason: str) -> bool:
    """Return True if a reader gives failed allocation of memory as its reason. Pillow's error has no text."""
    return any(words in reason for words in ("allocate", "out of memory", "damaged ()", "as NIfTI ()"))


def place(folder: Path, file: File) -> Path:
    """Write a file into the working folder."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    return path


class Worker:
    """A worker process, started again when it dies or hangs."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, *self.arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def outcome(self, number: int) -> tuple[str, str, str]:
        """Return the kind of an input (empty if the process gave no answer), the outcome, and its text."""
        began, used = time.monotonic(), self.cpu_seconds()
        self.connection.send(number)
        try:
            while self.cpu_seconds() - used < SECONDS and time.monotonic() - began < SILENT:
                if self.connection.poll(1.0):
                    return self.connection.recv()
            outcome = "", "hang", ""
        except EOFError:
            outcome = "", "crash", "the process died"
        self.process.kill()
        self.process.join()
        self.start()
        return outcome


def fuzz(target: Target, kinds: Sequence[str], description: str) -> int:
    """Run the campaign of the command line; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="number of inputs")
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--keep", type=Path, help="folder for inputs with a finding")
    options = parser.parse_args()
    counts, by_kind, began = Counter[str](), Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target.prepare(folder, options.seed)
        files = target.corpus(folder, options.seed)
        worker = Worker(target, options.kinds, options.seed, folder)
        for number in range(options.start, options.start + options.count):
            kind, outcome, text = worker.outcome(number)
            counts[outcome] += 1
            if outcome in FINDINGS:
                kind, file = made_input(target, files, options.kinds, options.seed, number)
                print(f"input {number} ({kind}, {file.name}): {outcome}\n{text}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    kept = options.keep / f"{options.seed}-{number}-{Path(file.name).name}"
                    kept.write_bytes(file.content)
            by_kind[f"{kind}: {outcome}"] += 1
            if sum(counts.values()) % 5000 == 0:
                print(f"{number + 1 - options.start:,} inputs: {dict(counts)}", flush=True)
            if time.monotonic() - began > options.seconds:
                break
        worker.connection.send(None)
        worker.process.join(SECONDS)
    total = sum(counts.values())
    for line, count in sorted(by_kind.items()):
        print(f"{line} {count:,}")
    print(f"{total:,} inputs in {time.monotonic() - began:.0f} s, seed {options.seed}: {dict(counts)}")
    return int(any(counts[finding] for finding in FINDINGS))
