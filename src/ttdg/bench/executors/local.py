"""Worker processes on this machine. A process runs many jobs; with GPUs, each process is assigned one GPU."""

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ttdg.bench.executors import Outcome, Work


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    key: str | None = None
    since: float = 0.0
    model: str | None = None  # model of its last job, which may still be in memory


class LocalExecutor:
    """Runs jobs in `slots` processes. A process that dies is replaced, and its job is reported as lost."""

    def __init__(self, work: Work, slots: int, gpus: int = 0) -> None:
        self.work, self.slots, self.gpus = work, slots, gpus
        self.workers: list[_Worker] = []

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Send a job to an idle worker, preferably one with the job's model; start a worker if none is idle."""
        model, idle = spec.get("training", key), [w for w in self.workers if w.key is None]
        worker = next((w for w in idle if w.model == model), idle[0] if idle else None)
        if worker is None:
            worker = self._start(len(self.workers))
            self.workers.append(worker)
        worker.key, worker.model, worker.since = key, model, time.perf_counter()
        worker.pipe.send((key, dict(spec)))

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of the jobs that end within `seconds`."""
        busy = [worker for worker in self.workers if worker.key is not None]
        ready = wait([worker.pipe for worker in busy], seconds) if busy else []
        return [self._outcome(worker) for worker in busy if worker.pipe in ready]

    def close(self) -> None:
        """Terminate busy workers, and let idle workers exit."""
        for worker in self.workers:
            if worker.key is not None:
                worker.process.terminate()
            worker.pipe.close()  # an idle worker exits when its pipe is closed
        for worker in self.workers:
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.kill()

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        gpu = visible_gpus(self.gpus)[number % self.gpus] if self.gpus else None
        process = context.Process(target=_serve, args=(theirs, self.work, gpu, os.getpid()), daemon=True)
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
            return Outcome(key, f"its worker {why}, possibly because it ran out of memory", took, lost=True)


def visible_gpus(count: int) -> list[str]:
    """Return the name of each GPU for CUDA_VISIBLE_DEVICES, using the names already in that variable if it is set."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named if len(named) == count else [str(number) for number in range(count)]


def _serve(pipe: Connection, work: Work, gpu: str | None, parent: int) -> None:
    """Run jobs from the pipe until it is closed, or until the parent process ends."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(work.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow down the other workers
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    while True:
        try:
            key, spec = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # all output is written; a normal exit would spend a second in torch
        pipe.send(work.run(key, spec))


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
