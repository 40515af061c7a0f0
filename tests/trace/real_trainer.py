"""A child process: two real optimizer steps of transformers.Trainer on the CPU, every storage counted.

``python real_trainer.py CASE.json`` prints the peak bytes of each phase as one JSON object. CASE holds ``config``
(config.json's content), ``key`` (a FootprintKey as an object) and ``b``, ``s``, ``t``.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

from swift_autobatch.trace.recorder import Recorder

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random rows of one length."""

    def __init__(self, vocab: int, tokens: int, rows: int) -> None:
        self.ids = torch.randint(0, vocab, (rows, tokens))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        return self.ids[index]


class Marks(TrainerCallback):
    """Tells the recorder where the run is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recorder.mark("first_step" if state.global_step == 0 else "steady", "step")

    def on_evaluate_begin(self) -> None:
        self.recorder.mark("eval", "step")


def built(case: dict[str, Any]) -> Any:
    key = case["key"]
    values = dict(case["config"])
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=DTYPES[key["dtype"]], attn_implementation="eager" if key["attention"] == "eager" else "sdpa"
    )
    model.config.use_cache = False
    if key["quant"] == "nf4":
        model = quantised(model, DTYPES[key["dtype"]])
    if key["tuner"] == "full":
        return model
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(False)
    dropout = 0.05 if key["dropout"] else 0.0
    lora = LoraConfig(r=key["lora_rank"], target_modules="all-linear", lora_dropout=dropout, task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def quantised(model: Any, dtype: Any) -> Any:
    """Saves and loads through transformers' own NF4 path, as the engine does."""
    from transformers import BitsAndBytesConfig

    bnb = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, quantization_config=bnb, device_map="cpu"
        )


def run(case: dict[str, Any]) -> dict[str, int]:
    key, b, s, t = case["key"], case["b"], case["s"], case["t"]
    model = built(case)
    times = 2 if key["accumulates"] else 1

    def collate(rows: list[Any]) -> dict[str, Any]:
        ids = torch.stack(rows)
        mask = torch.ones_like(ids)
        if key["masked"]:
            mask[0, -1] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, -t:].clone(), "logits_to_keep": t}

    rows = Rows(model.config.vocab_size, s, 2 * b * times)
    recorder = Recorder("cpu")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=key["dtype"] == "bfloat16",
            per_device_train_batch_size=b,
            per_device_eval_batch_size=b,
            gradient_accumulation_steps=times,
            gradient_checkpointing=key["checkpointing"],
            gradient_checkpointing_kwargs={"use_reentrant": True},
            optim={"fused-adamw": "adamw_torch_fused", "foreach-adamw": "adamw_torch"}.get(
                key["optimizer"], key["optimizer"]
            ),
            max_steps=2,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            prediction_loss_only=True,
        )
        marks = Marks(recorder)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=Rows(model.config.vocab_size, s, b),
            data_collator=collate,
            callbacks=[marks],
        )
        for parameter in model.parameters():
            recorder.see(parameter)
            state = getattr(parameter, "quant_state", None)
            if state is not None:
                recorder.see_all([state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code])
        recorder.see_all(model.buffers())
        recorder.mark("load", "load")
        with recorder:
            trainer.train()
            recorder.mark("eval", "eval")
            trainer.evaluate()
            recording = recorder.close()
    recording.marks.insert(0, (0, "load", "load"))
    return {phase: recording.peak_bytes(phase) for phase in ("load", "first_step", "steady", "eval")}  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
