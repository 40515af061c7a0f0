"""Runs inside ``swift`` (``--external_plugins``): writes what each rank measures, one JSON object a line.

Registers the callback ``autoswift_telemetry`` (switch it on with ``--callbacks autoswift_telemetry``). Rows go to
``$AUTOSWIFT_TELEMETRY_DIR/telemetry-<rank>.jsonl``::

    {"v":1, "t":s, "rank":r, "phase":"load|first_step|steady|eval|save|resume", "event":.., "step":n, "loss":..,
     "grad_norm":.., "gpu_allocated_bytes":.., "gpu_reserved_bytes":.., "driver_bytes":.., "rss_bytes":..,
     "pinned_bytes":.., "shm_bytes":.., "cgroup_bytes":..}

``t`` is the Unix time; bytes are the peak since the phase began (``driver_bytes``, what the card's driver counts over
all processes, and the last two are readings of the moment, and of the whole machine); unknown is null. Rows are
written as things happen, and once a second while memory grows (``pulse``), so that a process that is killed leaves its
last figures. Evaluation, saving and resuming stand between a ``begin`` row and one with their own name and ``phase_s``.
A ``step`` row adds ``step_s``, ``tokens`` (padded, of this rank's largest micro batch), ``shape`` of that micro batch
and ``supervised_tokens``; the one ``effective`` row says which code paths really run, the one ``observed`` row what
came out of the first forward pass, the one ``imports`` row (with ``pid``) marks the process before it loads a model:
what later phases hold beyond it is the job's own. Imports nothing of autoswift's own package, and never stops a
training: when the file cannot be written it says so once on stderr and is silent from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import autoswift_paths as paths  # type: ignore[import-not-found]  # beside this file in the plugin folder
import torch
from autoswift_meter import Card, Meter, Pulse, Rows, peak_rss  # type: ignore[import-not-found]
from autoswift_stop import Stop  # type: ignore[import-not-found]
from swift.callbacks import TrainerCallback, callbacks_map

_COUNTED_STEPS = 4  # supervised tokens on a GPU cost a synchronisation: counted in the first steps only
_BEGAN = time.time()
_BASE = peak_rss() or 0  # what the imports alone hold


def _mark_imports() -> None:
    """The first row: the engine's modules are imported, no model is loaded yet."""
    rows, meter = Rows(), Meter()
    rows.write({**rows.row("load", "imports", 0), **meter.read(), "pid": os.getpid()})
    meter.restart()


class Telemetry(TrainerCallback):  # type: ignore[misc]
    """The callback; each hook is guarded, because a measuring instrument must not stop what it measures."""

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        self.rows = Rows()
        self.meter = Meter()
        self.card = Card(_BASE)
        self.phase = "load"
        self.first = 0
        self.began = time.time()
        self.batch: dict[str, Any] = {}
        self.needed: int | None = None
        self.stop = Stop(self.rows.rank)
        self._guard(self._row, "init", 0)
        self.meter.restart()  # a resumed run reads its checkpoint from here on
        self._guard(self._watch_batches)
        self._guard(self._watch_phase, "evaluate", "eval")
        self._guard(self._watch_phase, "_save_checkpoint", "save")
        Pulse(lambda: self._guard(self._row, "pulse", self.trainer.state.global_step)).start()

    # ------------------------------------------------------------------------------------------------ hooks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._train_begin, state)
        self._guard(self._say_effective, args, state, kwargs)
        self._guard(self._watch_logits)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._step_end, state)
        self._guard(self.stop.look, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs or "eval_loss" in logs:
            values = {key: _number(logs.get(key)) for key in ("loss", "grad_norm", "token_acc", "eval_loss")}
            self._guard(self._row, "log", state.global_step, **{k: v for k, v in values.items() if k in logs})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._row, "train_end", state.global_step)

    def within(self, phase: str, work: Callable[[], Any]) -> Any:
        """Runs ``work`` as a phase of its own, between two rows; its errors are the caller's."""
        before, began = self.phase, time.time()
        self.phase = phase
        self._guard(self._begin)
        found = work()
        self.card.check(phase)
        self._guard(self._end, phase, time.time() - began)
        self.phase = before
        return found

    # ------------------------------------------------------------------------------------------------- work

    def _guard(self, work: Any, *args: Any, **kwargs: Any) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            self.rows.say(f"{type(error).__name__}: {error}")

    def _row(self, event: str, step: int, **more: Any) -> None:
        self.rows.write({**self.rows.row(self.phase, event, step), **self.meter.read(), **more})

    def _train_begin(self, state: Any) -> None:
        self.meter.wake()
        self.first = state.global_step
        self.phase = "resume" if self.first else "load"
        self._row("train_begin", state.global_step, max_steps=state.max_steps, phase_s=time.time() - _BEGAN)
        self.phase = "first_step"
        self.meter.restart()

    def _say_effective(self, args: Any, state: Any, kwargs: Any) -> None:
        self._row("effective", state.global_step, **paths.effective(args, self.trainer, kwargs))

    def _step_end(self, state: Any) -> None:
        self._row("step", state.global_step, step_s=time.time() - self.began, **self.batch)
        self.batch.clear()
        self.phase = "steady"
        self.meter.restart()

    def _begin(self) -> None:
        self.meter.restart()
        self._row("begin", self.trainer.state.global_step)

    def _end(self, phase: str, seconds: float) -> None:
        self._row(phase, self.trainer.state.global_step, phase_s=seconds)
        self.meter.restart()

    def _watch_phase(self, name: str, phase: str) -> None:
        """Brackets a method of the trainer, on this object only."""
        inner = getattr(self.trainer, name)
        setattr(self.trainer, name, lambda *args, **kwargs: self.within(phase, lambda: inner(*args, **kwargs)))

    def _watch_logits(self) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model, keep_torch_compile=False)

        def say(**found: Any) -> None:
            shape = self.batch.get("shape")
            row_tokens = shape[-1] if shape else None
            self._guard(self._row, "observed", 0, **found, row_tokens=row_tokens, needed_rows=self.needed)

        paths.watch_logits(model, say)  # adapters call the model below them past its hooks

    def _watch_batches(self) -> None:
        """Notes the shape of each micro batch as it enters the trainer, on this object only."""
        inner = self.trainer.training_step

        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._guard(self._note_batch, inputs)
            loss = inner(model, inputs, *args, **kwargs)
            self.card.check(self.phase)
            return loss

        self.trainer.training_step = training_step

    def _note_batch(self, inputs: Any) -> None:
        ids = inputs.get("input_ids")
        if ids is None:
            return
        if ids.numel() > self.batch.get("tokens", 0):
            self.batch.update(tokens=ids.numel(), shape=list(ids.shape))
        labels = inputs.get("labels")
        cheap = labels is not None and (labels.device.type == "cpu" or self.trainer.state.global_step < _COUNTED_STEPS)
        if cheap:
            self.batch["supervised_tokens"] = self.batch.get("supervised_tokens", 0) + int((labels != -100).sum())
            if self.needed is None:
                self.needed = paths.rows_needed(labels)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


callbacks_map["autoswift_telemetry"] = Telemetry
if torch.multiprocessing.parent_process() is None:  # a loader's worker that is spawned imports this file again
    _mark_imports()
