"""Which checkpoints of a run folder are whole: a job that died while it saved leaves one cut short."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

# Not "*.bin": training_args.bin, optimizer.bin and pytorch_model_fsdp.bin lie beside, with or without a model.
_WEIGHTS = ("*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin", "adapter_model.bin")
_PICKLED = (".pt", ".pth", ".bin")  # torch.save writes a zip file, whose directory stands at its end
_STATE = "trainer_state.json"  # written last (transformers/trainer.py, `_save_checkpoint`)


def checkpoints(run: Path) -> tuple[tuple[int, Path], ...]:
    """(step, folder) of every ``checkpoint-N``, newest first, whole or not."""
    found = []
    for folder in run.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
        if match and folder.is_dir():
            found.append((int(match[1]), folder))
    return tuple(sorted(found, reverse=True))


def broken(folder: Path) -> str | None:
    """Why a checkpoint cannot be gone on from: the file that is missing or cut short, in words; None: it is whole."""
    try:
        json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except OSError:
        return f"{_STATE}, which is written last, is missing"
    except ValueError:
        return f"{_STATE} is cut short"
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _cut(path):
            return f"{path.relative_to(folder)} is cut short"
    return None


def _cut(path: Path) -> bool:
    try:
        if path.suffix == ".safetensors":
            return path.stat().st_size != _safetensors_bytes(path)
        return path.suffix in _PICKLED and not zipfile.is_zipfile(path)
    except (OSError, ValueError, KeyError, AttributeError):
        return True


def _safetensors_bytes(path: Path) -> int:
    """How long the file says it is: 8 bytes, a header of that length in JSON, and the tensors that it lists."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def last_whole(run: Path) -> Path | None:
    """The newest checkpoint that a job can go on from."""
    return next((folder for _, folder in checkpoints(run) if broken(folder) is None), None)


def last_with_weights(run: Path) -> Path | None:
    """The newest checkpoint that holds a model to use: no file of it is cut short."""
    for _, folder in checkpoints(run):
        weights = [path for pattern in _WEIGHTS for path in folder.glob(pattern)]
        if weights and not any(_cut(path) for path in weights):
            return folder
    return None
