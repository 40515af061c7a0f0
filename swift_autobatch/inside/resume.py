"""Runs inside ``swift`` in a dry run only: reads each checkpoint back as soon as it is written.

Registers the callback ``autoswift_resume``. What it calls is what the trainer itself calls when it resumes, in the same
order, so that a checkpoint that cannot be read, or not in the memory there is, stops the dry run and not the job. The
optimizer's states are dropped first: a job that resumes has none yet. Imports nothing of autoswift.

Source: transformers/trainer.py, ``_prepare_for_training``; DeepSpeed and FSDP read into states that exist already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
import transformers.trainer as engine
from swift.callbacks import TrainerCallback, callbacks_map


class Resume(TrainerCallback):  # type: ignore[misc]
    """Resumes in place, as a phase of the telemetry; an error is the engine's own and ends it."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = str(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        watch = next(one for one in self.trainer.callback_handler.callbacks if type(one).__name__ == "Telemetry")
        watch.within("resume", lambda: self._load(folder))

    def _load(self, folder: str) -> None:
        trainer = self.trainer
        if dist.is_initialized():
            dist.barrier()  # the first rank has written the model by now
        if trainer.is_deepspeed_enabled:
            # Looked up in the trainer's module: the engine puts its own in the place of transformers'.
            adapters = engine._is_peft_model(trainer.model)
            engine.deepspeed_load_checkpoint(trainer.model_wrapped, folder, load_module_strict=not adapters)
        elif trainer.is_fsdp_enabled:
            trainer._load_from_checkpoint(folder, trainer.model_wrapped)
        else:
            trainer._load_from_checkpoint(folder)
            getattr(_bare(trainer.optimizer), "state", {}).clear()  # some fused optimizers keep none
        trainer._load_optimizer_and_scheduler(folder)
        trainer._load_scaler(folder)
        trainer._load_rng_state(folder)


def _bare(optimizer: Any) -> Any:
    while hasattr(optimizer, "optimizer"):  # accelerate's wrapper
        optimizer = optimizer.optimizer
    return optimizer


callbacks_map["autoswift_resume"] = Resume
