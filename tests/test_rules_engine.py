"""Each rule that says so is shown on the engine itself: one child process tries every case on the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jobs
import pytest

from swift_autobatch import rules
from swift_autobatch.facts import embedded
from swift_autobatch.process import free_port

WORKER = Path(__file__).parent / "engine" / "rule_cases.py"


class Case(NamedTuple):
    """Flags beside a small full-precision LoRA job on a CPU, how far to go, and what the engine answers."""

    argv: str
    answer: str
    stage: str = "arguments"
    distributed: bool = False


CASES: dict[str, Case] = {
    "packing without flash attention": Case("--packing true", "requires a flash attention implementation"),
    "packing with lazy_tokenize": Case(
        "--packing true --attn_impl flash_attn --lazy_tokenize true", "Packing and lazy_tokenize are incompatible"
    ),
    "streaming with lazy_tokenize": Case(
        "--streaming true --lazy_tokenize true", "Streaming and lazy_tokenize are incompatible"
    ),
    "DeepSpeed and FSDP together": Case("--deepspeed zero2 --fsdp fsdp2", "FSDP2 is not compatible with DeepSpeed"),
    "weights alone from the fsdp2 preset": Case(
        "--fsdp fsdp2 --save_only_model true", "is not compatible with save_only_model=True"
    ),
    "fp16 and bf16 together": Case("--fp16 true --bf16 true", "At most one of fp16 and bf16"),
    "bf16 without an accelerator": Case(
        "--torch_dtype bfloat16 --fp16 false --bf16 true --use_cpu false", "Your setup doesn't support bf16/gpu"
    ),
    "tf32 without Ampere": Case("--tf32 true", "--tf32 requires Ampere"),
    "quant_method without bits": Case("--quant_method bnb", "Please set the quant_bits"),
    "bnb with 3 bits": Case("--quant_method bnb --quant_bits 3", "bnb not support quant_bits"),
    "quant_bits alone loads 16-bit weights": Case("--quant_bits 4", "ok quantization=None"),
    "hpz without DeepSpeed is ignored": Case("--zero_hpz_partition_size 2", "ok quantization=None deepspeed=None"),
    "AutoTP without DeepSpeed is ignored": Case("--deepspeed_autotp_size 2", "ok quantization=None deepspeed=None"),
    "warmup given twice": Case("--warmup_ratio 0.1 --warmup_steps 5", "cannot be set at the same time"),
    "warmup ratio of 1": Case("--warmup_ratio 1.0", "must be less than 1"),
    "best model without evaluation": Case(
        "--load_best_model_at_end true", "requires the save and eval strategy to match"
    ),
    "save_steps off eval_steps": Case(
        "--load_best_model_at_end true --split_dataset_ratio 0.2 --save_steps 10 --eval_steps 4",
        "requires the saving steps to be a round multiple",
    ),
    "plateau schedule without evaluation": Case(
        "--lr_scheduler_type reduce_lr_on_plateau", "requires an eval strategy"
    ),
    "save_steps 1.5": Case("--save_steps 1.5", "must be an integer if bigger than 1"),
    "prefetch without workers": Case(
        "--dataloader_num_workers 0 --dataloader_prefetch_factor 2", "can only be set when data is loaded"
    ),
    "liger without the package": Case("--use_liger_kernel true", "use_liger_kernel requires liger_kernels"),
    "flash attention without the package": Case("--attn_impl flash_attention_2", "ImportError", "train"),
    "grouping with lazy_tokenize": Case("--group_by_length true --lazy_tokenize true", "lengths", "train"),
    "grouping without shuffling": Case(
        "--group_by_length true --train_dataloader_shuffle false", "shuffle must be True when group_by_length", "train"
    ),
    "streaming without max_steps": Case("--streaming true --max_steps -1", "max_steps", "train"),
    "split rows in fine-tuning": Case("--truncation_strategy split", "only supported for pre-training", "train"),
    "full tuning of 4-bit weights": Case(
        "--tuner_type full --quant_method bnb --quant_bits 4", "can require gradients", "train"
    ),
    "the muon optimizer": Case("--optimizer muon --tuner_type full", "local_repo_path", "train"),
    "fsdp over one process": Case("--fsdp fsdp2", "Using fsdp only works in distributed training", "train"),
    "sequence parallel 2 over one process": Case("--sequence_parallel_size 2", "AssertionError", "train"),
    "best model from weights alone under DeepSpeed": Case(
        "--deepspeed zero2 --save_only_model true --load_best_model_at_end true --split_dataset_ratio 0.2",
        "along with `load_best_model_at_end`",
        "train",
        True,
    ),
    "AutoTP with ZeRO-3": Case(
        "--deepspeed zero3 --deepspeed_autotp_size 2 --tuner_type full",
        "gather_16bit_weights_on_model_save",
        "train",
        True,
    ),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the engine says to every case; about 25 s together; of two equal flags the last one wins."""
    folder = tmp_path_factory.mktemp("cases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        env = jobs.environment(folder)
        model = embedded.ensure_model(env)
        base = (
            f"--model {model} --model_type qwen2 --template qwen2_5 --check_model false --torch_dtype float32 "
            f"--fp16 false --bf16 false --dataset {embedded.default_dataset()} --max_length 64 --max_steps 1 "
            "--learning_rate 1e-4 --report_to none --use_cpu true --dataloader_num_workers 0 "
            f"--output_dir {folder / 'out'} --add_version false"
        ).split()
        sent: list[dict[str, Any]] = [
            {"stage": case.stage, "argv": [*base, *case.argv.split()], "distributed": case.distributed}
            for case in CASES.values()
        ]
        child = {
            **os.environ,
            "MASTER_PORT": str(free_port()),
            "CUDA_VISIBLE_DEVICES": "",
            "DS_ACCELERATOR": "cpu",
            "MODELSCOPE_CACHE": str(folder / "ms"),
            "OMP_NUM_THREADS": "2",
        }
        done = subprocess.run(
            [sys.executable, str(WORKER)], input=json.dumps(sent), capture_output=True, text=True, check=True, env=child
        )
    found = json.loads(done.stdout.split("ANSWERS ")[1])
    order = sorted(CASES, key=lambda name: CASES[name].distributed)  # stable: the worker keeps those for the end
    return dict(zip(order, found, strict=True))


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_the_engine_does_what_the_rule_says(name: str, answers: dict[str, str]) -> None:
    assert CASES[name].answer in answers[name]


def test_every_run_that_a_rule_names_is_here() -> None:
    assert {rule.reproduced for rule in rules.RULES if rule.reproduced} == set(CASES)
