"""Processes of this machine, kept from job to job; on a machine with GPUs each is given one of them."""

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ttdg.bench.executors import Outcome
from ttdg.bench.folder import RunFolder
from ttdg.bench.worker import run_job


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    key: str | None = None
    since: float = 0.0
    model: str | None = None  # of its last job: it may still have it open


class Local:
    """`slots` worker processes. One that dies is replaced, and its job reported as lost."""

    def __init__(self, place: RunFolder, slots: int, gpus: int = 0) -> None:
        self.place, self.slots, self.gpus = place, slots, gpus
        self.workers: list[_Worker] = []

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        model, idle = spec.get("training", key), [w for w in self.workers if w.key is None]
        worker = next((w for w in idle if w.model == model), idle[0] if idle else None)
        if worker is None:
            worker = self._start(len(self.workers))
            self.workers.append(worker)
        worker.key, worker.model, worker.since = key, model, time.perf_counter()
        worker.pipe.send((key, dict(spec)))

    def wait(self, seconds: float) -> list[Outcome]:
        busy = [worker for worker in self.workers if worker.key is not None]
        ready = wait([worker.pipe for worker in busy], seconds) if busy else []
        return [self._outcome(worker) for worker in busy if worker.pipe in ready]

    def close(self) -> None:
        for worker in self.workers:
            if worker.key is not None:
                worker.process.terminate()
            worker.pipe.close()  # an idle worker ends at the end of its pipe
        for worker in self.workers:
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.kill()

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        gpu = visible(self.gpus)[number % self.gpus] if self.gpus else None
        process = context.Process(target=_serve, args=(theirs, self.place, gpu, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _outcome(self, worker: _Worker) -> Outcome:
        key, worker.key = worker.key, None
        assert key is not None
        try:
            return worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(10)
            number = self.workers.index(worker)
            self.workers[number] = self._start(number)
            took, code = time.perf_counter() - worker.since, worker.process.exitcode
            why = f"was killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
            return Outcome(key, f"its worker {why}; out of memory, perhaps", took, lost=True)


def visible(count: int) -> list[str]:
    """What names each of this process's GPUs in CUDA_VISIBLE_DEVICES, which may be set already."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named if len(named) == count else [str(number) for number in range(count)]


def _serve(pipe: Connection, place: RunFolder, gpu: str | None, parent: int) -> None:
    """Jobs until the pipe ends. A worker does not outlive the run that started it."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(place.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin starve the other workers
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    while True:
        try:
            key, spec = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # nothing is left to write, and taking torch down takes a second
        pipe.send(run_job(key, spec, place))


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
