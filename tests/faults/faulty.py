"""An engine plugin that breaks a real training at a chosen moment: ``FAULT=name@step[,name@step ...]``.

Each fault happens once in a project folder: a marker file remembers it, so that a job that is gone on with meets the
next one. What breaks is real: the process is killed, the disk filled, the allocator asked for more than there is.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from swift.callbacks import TrainerCallback, callbacks_map

RANK = int(os.environ.get("RANK", "0"))
LAST = int(os.environ.get("WORLD_SIZE", "1")) - 1
FAULTS = [fault.partition("@")[::2] for fault in os.environ["FAULT"].split(",")]


def due(name: str, step: int) -> bool:
    """Whether the fault is to happen now; true once only, and on the last rank only."""
    marker = Path(f"{name}.happened")
    if (name, str(step)) not in FAULTS or RANK != LAST or marker.exists():
        return False
    marker.touch()
    return True


def oom(trainer: Any) -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is "
        "free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 0.60 GiB is reserved by PyTorch but "
        "unallocated."
    )


def killed(trainer: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_saving(trainer: Any) -> None:
    """Killed while the newest checkpoint is written: its optimizer is there by half, what follows is not."""
    newest = max(Path(trainer.args.output_dir).glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    with (newest / "optimizer.pt").open("r+b") as file:
        file.truncate((newest / "optimizer.pt").stat().st_size // 2)
    (newest / "trainer_state.json").unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def launcher(trainer: Any) -> None:
    """Kills what started the workers; they live on without it for a moment."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def hang(trainer: Any) -> None:
    time.sleep(600)


def terminate(trainer: Any) -> None:
    """What a cluster does to autoswift itself; its process id is handed in by the test."""
    os.kill(int(Path("autoswift.pid").read_text()), signal.SIGTERM)
    time.sleep(2)  # it is heard before this step ends


def fill_disk(trainer: Any) -> None:
    with Path(trainer.args.output_dir, "somebody-elses").open("wb") as file:
        while True:
            try:
                os.write(file.fileno(), bytes(1 << 16))
            except OSError:
                return


def greedy_save(trainer: Any) -> None:
    """From now on a save takes 3 GiB of RAM first, as gathering a sharded model on one rank does."""
    inner = trainer.save_model

    def save_model(*args: Any, **kwargs: Any) -> Any:
        whole = torch.ones(3 << 30, dtype=torch.uint8)
        saved = inner(*args, **kwargs)
        del whole
        return saved

    trainer.save_model = save_model


WORK = {
    "oom": oom,
    "greedy-save": greedy_save,
    "killed": killed,
    "killed-saving": killed_saving,
    "launcher": launcher,
    "hang": hang,
    "terminate": terminate,
    "fill-disk": fill_disk,
}


class Faulty(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, work in WORK.items():
            if due(name, state.global_step):
                work(self.trainer)


if ("no-telemetry", "0") in FAULTS and "AUTOSWIFT_TELEMETRY_DIR" in os.environ:
    telemetry = Path(os.environ["AUTOSWIFT_TELEMETRY_DIR"], f"telemetry-{RANK}.jsonl")
    telemetry.unlink(missing_ok=True)
    telemetry.mkdir()

callbacks_map["faulty"] = Faulty
