"""Runs inside ``swift`` (``--external_plugins``): counts the bytes of live tensors of the whole training.

Registers the callback ``counting``. From the start of training to its end every operator of the process goes through
the tracer's own recorder, on real CPU tensors; the sizes of the batches and the peak of each phase are written to
``$AUTOSWIFT_TELEMETRY_DIR/counted.json``.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

from swift.callbacks import TrainerCallback, callbacks_map

from swift_autobatch.trace.recorder import Recorder


class Counting(TrainerCallback):
    """Enters the recorder when training begins, leaves it when it ends."""

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        self.recorder = Recorder("cpu")
        self.batches: list[dict[str, int]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        model.register_forward_pre_hook(self._note_batch, with_kwargs=True)
        gc.collect()
        self.recorder.mark("load", "load")
        for parameter in model.parameters():
            self.recorder.see(parameter)
            for value in _quantisation(parameter):
                self.recorder.see(value)
        self.recorder.see_all(model.buffers())
        gc.disable()  # reference counts alone decide when a storage dies, as in the trace
        self.recorder.mark("first_step", "step")
        self.recorder.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recorder.mark("steady", "step")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recorder.__exit__(None, None, None)
        gc.enable()
        counted = self.recorder.close()
        phases = ("load", "first_step", "steady")
        report = {"batches": self.batches, "peaks": {phase: counted.peak_bytes(phase) for phase in phases}}
        Path(os.environ["AUTOSWIFT_TELEMETRY_DIR"], "counted.json").write_text(json.dumps(report))

    def _note_batch(self, model: Any, args: Any, kwargs: Any) -> None:
        rows, tokens = kwargs["input_ids"].shape
        self.batches.append({"b": rows, "s": tokens, "t": int(kwargs["logits_to_keep"])})


def _quantisation(parameter: Any) -> list[Any]:
    """The tensors beside a 4-bit weight: scales, their own scales, offset and codes."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    inner = getattr(state, "state2", None)
    return [state.absmax, state.code, state.offset, *([] if inner is None else [inner.absmax, inner.code])]


callbacks_map["counting"] = Counting
