"""Runs inside ``swift`` (``--external_plugins``): writes what each rank measures, one JSON object a line.

Registers the callback ``autoswift_telemetry`` (switch it on with ``--callbacks autoswift_telemetry``). Rows go to
``$AUTOSWIFT_TELEMETRY_DIR/telemetry-<rank>.jsonl``::

    {"v":1, "t":s, "rank":r, "phase":"load|first_step|steady|eval|save|resume", "event":.., "step":n, "loss":..,
     "grad_norm":.., "gpu_allocated_bytes":.., "gpu_reserved_bytes":.., "driver_bytes":.., "rss_bytes":..}

``t`` is the Unix time; bytes are the peak since the row before (``driver_bytes``, what the card's driver counts over
all processes, is the reading of the moment); unknown is null. A ``step`` row adds ``step_s``, ``tokens`` (padded, of
this rank's largest micro batch), ``shape`` of that micro batch and ``supervised_tokens``; the one ``effective`` row
says which code paths really run, the one ``imports`` row (with ``pid``) marks the process before it loads a model:
what later phases hold beyond it is the job's own. Imports nothing of autoswift, and never stops a training: when the
file cannot be written it says so once on stderr and is silent from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from swift.callbacks import TrainerCallback, callbacks_map

_COUNTED_STEPS = 4  # supervised tokens on a GPU cost a synchronisation: counted in the first steps only


class Rows:
    """The file of one rank. Every write is flushed; the first failure ends the writing."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.error: str | None = None
        self.said: set[str] = set()
        folder = os.environ.get("AUTOSWIFT_TELEMETRY_DIR")
        self.path = Path(folder) / f"telemetry-{self.rank}.jsonl" if folder else None
        if self.path is None:
            self.fail("AUTOSWIFT_TELEMETRY_DIR is not set")

    def fail(self, why: object) -> None:
        self.error = str(why)
        self.say(f"off: {why}")

    def say(self, what: str) -> None:
        if what not in self.said:
            self.said.add(what)
            print(f"autoswift: telemetry of rank {self.rank}: {what}", file=sys.stderr, flush=True)

    def write(self, row: dict[str, Any]) -> None:
        if self.error is None and self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except (OSError, ValueError, TypeError) as error:
                self.fail(error)


class Meter:
    """Peaks since the last reading, of this process."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()

    def read(self) -> dict[str, int | None]:
        allocated = reserved = driver = None
        if self.cuda:
            allocated = torch.cuda.max_memory_allocated()
            reserved = torch.cuda.max_memory_reserved()
            free, total = torch.cuda.mem_get_info()
            driver = total - free
        peak = _status_bytes("VmHWM")
        return {
            "gpu_allocated_bytes": allocated,
            "gpu_reserved_bytes": reserved,
            "driver_bytes": driver,
            "rss_bytes": peak if peak is not None else _peak_rss_elsewhere(),
        }

    def restart(self) -> None:
        """A new phase: peaks count from here. Linux forgets VmHWM when 5 is written to clear_refs."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(OSError):  # else the resident peak is that of the whole life of the process
            Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(key: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _peak_rss_elsewhere() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _row(rank: int, phase: str, event: str, step: int) -> dict[str, Any]:
    row = {"v": 1, "t": time.time(), "rank": rank, "phase": phase, "event": event, "step": step}
    return {**row, "loss": None, "grad_norm": None}


def _mark_imports() -> None:
    """The first row: the engine's modules are imported, no model is loaded yet."""
    rows, meter = Rows(), Meter()
    rows.write({**_row(rows.rank, "load", "imports", 0), **meter.read(), "pid": os.getpid()})
    meter.restart()


class Telemetry(TrainerCallback):  # type: ignore[misc]
    """The callback; each hook is guarded, because a measuring instrument must not stop what it measures."""

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        self.rows = Rows()
        self.meter = Meter()
        self.phase = "load"
        self.first = 0
        self.began = time.time()
        self.batch: dict[str, Any] = {}
        self._guard(self._row, "init", 0)
        self.meter.restart()  # a resumed run reads its checkpoint from here on
        self._guard(self._watch_batches)

    # ------------------------------------------------------------------------------------------------ hooks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._train_begin, state)
        self._guard(self._say_effective, args, state, kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._step_end, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs or "eval_loss" in logs:
            values = {key: _number(logs.get(key)) for key in ("loss", "grad_norm", "token_acc", "eval_loss")}
            self._guard(self._row, "log", state.global_step, **{k: v for k, v in values.items() if k in logs})

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._aside, "eval", state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._aside, "save", state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard(self._row, "train_end", state.global_step)

    # ------------------------------------------------------------------------------------------------- work

    def _guard(self, work: Any, *args: Any, **kwargs: Any) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            self.rows.say(f"{type(error).__name__}: {error}")

    def _row(self, event: str, step: int, phase: str | None = None, **more: Any) -> None:
        row = _row(self.rows.rank, phase or self.phase, event, step)
        self.rows.write({**row, **self.meter.read(), **more})

    def _train_begin(self, state: Any) -> None:
        self.meter.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.first = state.global_step
        self.phase = "resume" if self.first else "load"
        self._row("train_begin", state.global_step, max_steps=state.max_steps)
        self.phase = "first_step"
        self.meter.restart()

    def _say_effective(self, args: Any, state: Any, kwargs: Any) -> None:
        self._row("effective", state.global_step, **_effective(args, self.trainer, kwargs))

    def _step_end(self, state: Any) -> None:
        self._row("step", state.global_step, step_s=time.time() - self.began, **self.batch)
        self.batch.clear()
        self.phase = "steady"
        self.meter.restart()

    def _aside(self, phase: str, state: Any) -> None:
        """Evaluation and saving come between two steps; their peak is what happened since the step's end."""
        self._row(phase, state.global_step, phase=phase)
        self.meter.restart()

    def _watch_batches(self) -> None:
        """Notes the shape of each micro batch as it enters the trainer, on this object only."""
        inner = self.trainer.training_step

        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._guard(self._note_batch, inputs)
            return inner(model, inputs, *args, **kwargs)

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


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _effective(args: Any, trainer: Any, kwargs: Any) -> dict[str, Any]:
    """What really runs, asked of the objects, not of the flags."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    optimizer = kwargs.get("optimizer") or trainer.optimizer
    while hasattr(optimizer, "optimizer"):  # accelerate's and DeepSpeed's wrappers
        optimizer = optimizer.optimizer
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    quantised = getattr(config, "quantization_config", None)
    return {
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "micro_batch": args.per_device_train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "rows": _length(trainer.train_dataset),
        "dtypes": _dtypes(model),
        "parameters": _count(model, trainable_only=False),
        "trainable_parameters": _count(model, trainable_only=True),
        "attention": getattr(config, "_attn_implementation", None),
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "gradient_checkpointing": bool(getattr(base, "is_gradient_checkpointing", False)),
        "quantised": _quantised(quantised, model),
        "zero_stage": getattr(plugin, "zero_stage", None),
        "fsdp": bool(getattr(trainer, "is_fsdp_enabled", False)) and _spread(model),
        "sequence_parallel": _sequence_parallel(),
        "tensor_parallel": max((getattr(module, "tp_world_size", 1) for module in model.modules()), default=1),
        "mixed_precision": getattr(trainer.accelerator, "mixed_precision", None),
        "liger": bool(getattr(args, "use_liger_kernel", False)),
        "device": str(args.device),
    }


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # a stream
        return None


def _dtypes(model: Any) -> dict[str, int]:
    """Parameters by dtype; the quantised ones count as stored (NF4: two a byte, ``uint8``)."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + int(getattr(parameter, "ds_numel", parameter.numel()))
    return counts


def _count(model: Any, *, trainable_only: bool) -> int:
    """Elements over all ranks where ZeRO-3 has sharded them (``ds_numel``)."""
    return sum(
        int(getattr(p, "ds_numel", p.numel())) for p in model.parameters() if p.requires_grad or not trainable_only
    )


def _spread(model: Any) -> bool:
    """Whether parameters are FSDP's own kind: the trainer's word alone holds where nothing was sharded."""
    return any(type(parameter).__name__ in ("DTensor", "FlatParameter") for parameter in model.parameters())


def _sequence_parallel() -> int:
    """Ranks that share one row, as the engine's own object has it once its mesh exists."""
    shared: Any = getattr(sys.modules.get("swift.sequence_parallel"), "sequence_parallel", None)
    return int(shared.world_size) if getattr(shared, "device_mesh", None) is not None else 1


def _quantised(config: Any, model: Any) -> str | None:
    kinds = {type(parameter).__name__ for parameter in model.parameters()}
    if "Params4bit" in kinds:
        return "nf4" if getattr(config, "bnb_4bit_quant_type", "nf4") == "nf4" else "fp4"
    if "Int8Params" in kinds:
        return "int8"
    return None if config is None else str(getattr(config, "quant_method", "unknown"))


callbacks_map["autoswift_telemetry"] = Telemetry
_mark_imports()
