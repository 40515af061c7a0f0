"""Beside ``telemetry.py`` inside ``swift``: ends a training early, with a checkpoint, when autoswift asks for it.

autoswift writes the file ``stop`` into the telemetry folder. The first rank answers with ``stop-at``, the step after
which all ranks save and end: far enough ahead that no rank can have passed it, for ranks meet in every step's
all-reduce. Imports nothing of autoswift's own package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_AHEAD = 2  # steps: a rank that ran ahead of its card is at most one step further


class Stop:
    """Looked at after each optimizer step; costs the look for a file."""

    def __init__(self, rank: int) -> None:
        folder = os.environ.get("AUTOSWIFT_TELEMETRY_DIR")
        self.folder = Path(folder) if folder else None
        self.rank = rank
        self.alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        self.at: int | None = None

    def look(self, state: Any, control: Any) -> None:
        if self.folder is None:
            return
        if self.at is None:
            self.at = self._agreed(self.folder, state.global_step)
        if self.at is not None and state.global_step >= self.at:
            control.should_save = control.should_training_stop = True

    def _agreed(self, folder: Path, step: int) -> int | None:
        answer = folder / "stop-at"
        if self.rank == 0 and (folder / "stop").exists():
            at = step if self.alone else step + _AHEAD
            half = answer.with_suffix(".half")
            half.write_text(str(at))
            half.replace(answer)
            return at
        return int(answer.read_text()) if answer.exists() else None
