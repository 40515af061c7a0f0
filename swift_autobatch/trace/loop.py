"""The training loop of ms-swift 4.6 on meta tensors: two optimizer steps, then one evaluation, recorded.

What Trainer (transformers), Accelerator and ms-swift's seq2seq_trainer.py do to memory, in their order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from swift_autobatch.records import FootprintKey, Phase
from swift_autobatch.trace import calls, fused, quantised
from swift_autobatch.trace.build import DTYPES
from swift_autobatch.trace.optimizers import optimizer
from swift_autobatch.trace.recorder import Recorder, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size to trace at: ``b`` rows of ``s`` tokens, of each of which the last ``t`` reach the projection."""

    b: int
    s: int
    t: int

    @property
    def k(self) -> int:
        return self.b * self.t


def record(model: Any, key: FootprintKey, point: Point, device: str, notes: set[str]) -> Recording:
    """Runs the loop once.

    Args:
        model: from build.py; its gradients are dropped, its weights are not changed.
        key: the variant.
        point: sizes of every batch.
        device: ``cuda`` or ``cpu``: whose kernels are emulated.
        notes: receives what could not be modelled.
    """
    cuda = device == "cuda"
    emulation = calls.Calls(
        device=device,
        kernel=key.attention if cuda or key.attention == "eager" else "cpu",
        masked=key.masked,
    )
    recorder = Recorder("meta", {"bitsandbytes::gemm_4bit": quantised.gemm_4bit} if cuda else None)
    with _no_collection(), calls.emulated(emulation), fused.liger(model, key, notes):
        run = _Run(model, key, point, recorder, emulation, device, notes)
        recorder.mark("load", "load")
        run.load()
        with recorder:
            run.train_step("first_step")
            run.train_step("steady")
            run.evaluate()
            recording = recorder.close()
        del run
    notes |= emulation.notes
    model.zero_grad(set_to_none=True)
    return recording


@contextmanager
def _no_collection() -> Iterator[None]:
    """Reference counts alone decide when a storage dies, so that two traces are the same."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Run:
    """Model, optimizer and recorder of one recorded run."""

    def __init__(
        self,
        model: Any,
        key: FootprintKey,
        point: Point,
        recorder: Recorder,
        emulation: calls.Calls,
        device: str,
        notes: set[str],
    ) -> None:
        self.model, self.key, self.point, self.recorder, self.emulation = model, key, point, recorder, emulation
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(key.optimizer, self.trained, device, notes)
        mixed = key.dtype != "float32" and not key.deepspeed
        self.autocast = DTYPES[key.dtype] if mixed else None

    def load(self) -> None:
        """Counts what is on the device before the first step."""
        adapted = self.key.tuner == "lora"
        for parameter in self.model.parameters():
            self.recorder.see(parameter, "adapters" if adapted and parameter.requires_grad else "weights")
        self.recorder.see_all(self.model.buffers(), "weights")
        self.recorder.see_all(quantised.state_tensors(self.model), "weights")

    def train_step(self, phase: Phase) -> None:
        self.model.train()
        times = 2 if self.key.accumulates else 1
        items = None
        for _ in range(times):
            batch = self._batch(phase)
            if items is None:
                items = torch.empty((), dtype=torch.int64, device="meta")
            loss = self._loss(batch, items, phase)
            self.recorder.mark(phase, "backward")
            _backward(loss)
            del loss
            for parameter in self.trained:
                if parameter.grad is not None:
                    self.recorder.see(parameter.grad, "gradients")
        if not self.key.deepspeed:
            self.recorder.mark(phase, "clipping")
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.recorder.mark(phase, "optimizer")
        self.optimizer.step()
        for state in self.optimizer.state.values():
            self.recorder.see_all(state.values(), "optimizer")
        self.model.zero_grad(set_to_none=True)

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self._loss(self._batch("eval"), torch.empty((), dtype=torch.int64, device="meta"), "eval")

    def _batch(self, phase: Phase) -> dict[str, Any]:
        """What the collator sends to the device."""
        self.recorder.mark(phase, "inputs")
        shape = (self.point.b, self.point.s)
        names = ("input_ids", "attention_mask", "labels")
        return {name: torch.empty(shape, dtype=torch.int64, device="meta") for name in names}

    def _loss(self, batch: dict[str, Any], items: Any, phase: Phase) -> Any:
        """seq2seq_trainer.py `compute_loss`: forward, loss inside the model, token accuracy on the logits."""
        self.recorder.mark(phase, "forward")
        inputs = dict(batch)
        inputs["labels"] = inputs["labels"][:, -self.point.t :]
        inputs["logits_to_keep"] = self.point.t
        labels = inputs.pop("labels") if self.key.loss == "bf16_logits" else None
        outputs = self._forward(inputs, items)
        if labels is None:
            loss = outputs["loss"]
        else:
            self.recorder.mark(phase, "loss")
            loss = _own_loss(outputs["logits"], labels)
        logits = outputs.get("logits")
        if logits is not None:
            logits.argmax(dim=-1)
        return loss if loss.requires_grad or phase == "eval" else loss.requires_grad_()

    def _forward(self, inputs: dict[str, Any], items: Any) -> Any:
        """Accelerator's wrapping: autocast around the forward, and 16-bit outputs made fp32."""
        from accelerate.utils.operations import convert_to_fp32

        if "labels" in inputs:
            inputs["num_items_in_batch"] = items
        with self.emulation.autocast(self.autocast):
            outputs = self.model(**inputs)
        return outputs if self.autocast is None else convert_to_fp32(outputs)


def _backward(loss: Any) -> None:
    """``loss.backward()``, by way of the engine: a torch function mode is off while a call it handles runs, and
    recomputation of checkpointed layers needs it."""
    run = torch.autograd.graph._engine_run_backward
    run((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _own_loss(logits: Any, labels: Any) -> Any:
    """trainers/utils.py `per_token_loss_func_sp`: no upcast, one loss a token."""
    loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.flatten(), reduction="none")
    return loss.sum() / labels.numel()
