"""Peak memory of answers."""

from pathlib import Path

import torch


def reset_peak(device: torch.device) -> None:
    """Reset the peak-memory counter of the GPU, or of this process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif (refs := Path("/proc/self/clear_refs")).exists():
        try:
            refs.write_text("5")
        except OSError:
            return  # some containers forbid it; the peak then covers the whole life of the process


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`: bytes allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
