"""One point of gpu_truth.py through transformers and peft, for want of ms-swift: gpu_truth_child.py JOB.json.

Writes the telemetry rows of swift_autobatch/inside/telemetry.py, as far as they are read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainerCallback, TrainingArguments

_DROPOUT = 0.05  # the engine's default


class Telemetry(TrainerCallback):
    """Peaks of each step since the one before."""

    def __init__(self, file: Path) -> None:
        self.file, self.phase, self.began = file, "first_step", time.time()

    def write(self, phase: str, event: str, step: int, **more: Any) -> None:
        row = {"v": 1, "t": time.time(), "rank": 0, "phase": phase, "event": event, "step": step, **_peaks(), **more}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        _restart()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.write("load", "train_begin", 0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.write(self.phase, "step", state.global_step, step_s=time.time() - self.began)
        self.phase = "steady"


def _peaks() -> dict[str, int | None]:
    memory: dict[str, int | None] = dict.fromkeys(("gpu_allocated_bytes", "gpu_reserved_bytes", "driver_bytes"))
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        memory = {"gpu_allocated_bytes": allocated, "gpu_reserved_bytes": reserved, "driver_bytes": total - free}
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return {**memory, "rss_bytes": resident}


def _restart() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Rows of one length, every token supervised but the first sixteen, as a short question leaves them."""

    def __init__(self, count: int, tokens: int) -> None:
        self.count, self.tokens = count, tokens

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(self.tokens) % 1000
        labels = ids.clone()
        labels[:16] = -100
        return {"input_ids": ids, "labels": labels}


def _deepspeed(parallel: str) -> dict[str, Any]:
    """ms-swift's presets, as far as they decide memory (swift/config/*.json)."""
    stage, offload = int(parallel[4]), parallel.endswith("_offload")
    place = {"device": "cpu" if offload else "none", "pin_memory": True}
    zero: dict[str, Any] = {"stage": stage, "offload_optimizer": place, "overlap_comm": False}
    zero |= {"contiguous_gradients": True}
    if stage == 3:
        zero |= {"offload_param": place, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
        zero |= {"stage3_param_persistence_threshold": "auto", "sub_group_size": 1_000_000_000}
        zero |= {"stage3_max_live_parameters": 1_000_000_000, "stage3_max_reuse_distance": 1_000_000_000}
    else:
        zero |= {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}
    auto = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")
    return {"bf16": {"enabled": "auto"}, "zero_optimization": zero, **dict.fromkeys(auto, "auto")}


def _arguments(job: dict[str, Any]) -> TrainingArguments:
    return TrainingArguments(
        output_dir=job["output"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=1,
        gradient_checkpointing=job["checkpointing"],
        gradient_checkpointing_kwargs={"use_reentrant": True},
        use_liger_kernel=job["liger"],
        deepspeed=_deepspeed(job["deepspeed"]) if job["deepspeed"] else None,
        bf16=True,
        use_cpu=job["device"] == "cpu",
        optim="adamw_torch_fused",
        learning_rate=1e-4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=1,
    )


def _model(job: dict[str, Any]) -> Any:
    quantised = None
    if job["tuner"] == "nf4":
        quantised = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    on_card = job["device"] == "cuda" and not job["deepspeed"]
    model = AutoModelForCausalLM.from_pretrained(
        job["folder"],
        dtype=torch.bfloat16,
        quantization_config=quantised,
        device_map={"": 0} if on_card else None,
    )
    model.config.use_cache = False
    if job["tuner"] == "full":
        return model
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    return get_peft_model(
        model, LoraConfig(r=8, lora_alpha=32, lora_dropout=_DROPOUT, target_modules="all-linear", task_type="CAUSAL_LM")
    )


def main() -> None:
    """Trains the job's steps."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    arguments = _arguments(job)  # before the model: under ZeRO-3 it is built sharded
    rows = Rows(job["steps"] * job["micro_batch"], job["tokens"])
    trainer = Trainer(
        model=_model(job),
        args=arguments,
        train_dataset=rows,
        callbacks=[Telemetry(Path(job["telemetry"]))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
