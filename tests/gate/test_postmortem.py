"""Logs as torch, DeepSpeed and the kernel really write them, and what ended each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from swift_autobatch import api
from swift_autobatch.gate.oom import read_oom
from swift_autobatch.gate.postmortem import explain
from swift_autobatch.units import GIB, MIB
from tests import builders

NEW = (
    "{rank}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total"
    " capacity of 23.64 GiB of which 512.00 MiB is free. {others}Including non-PyTorch memory, this process has"
    " {used} GiB memory in use. Of the allocated memory 19.10 GiB is allocated by PyTorch, and {idle} is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.32 GiB (GPU 1; 15.78 GiB total capacity; 13.10 GiB already"
    " allocated; 1.02 GiB free; 14.20 GiB reserved in total by PyTorch)"
)
SITE = "/usr/lib/python3/site-packages"
FRAMES = {
    "load": [("transformers/modeling_utils.py", "from_pretrained"), ("transformers/core_model_loading.py", "convert")],
    "forward": [
        ("transformers/trainer.py", "training_step"),
        ("transformers/models/qwen2/modeling_qwen2.py", "forward"),
    ],
    "loss": [
        ("transformers/models/qwen2/modeling_qwen2.py", "forward"),
        ("transformers/loss/loss_utils.py", "ForCausalLMLoss"),
        ("torch/nn/functional.py", "cross_entropy"),
    ],
    "backward": [("accelerate/accelerator.py", "backward"), ("torch/autograd/graph.py", "_engine_run_backward")],
    "optimizer": [("accelerate/optimizer.py", "step"), ("torch/optim/adamw.py", "_foreach_adamw")],
    "eval": [
        ("transformers/trainer.py", "evaluation_loop"),
        ("transformers/models/qwen2/modeling_qwen2.py", "forward"),
        ("torch/nn/functional.py", "cross_entropy"),
    ],
    "save": [("transformers/trainer.py", "_save_checkpoint"), ("torch/serialization.py", "save")],
    "resume": [("transformers/trainer.py", "_load_optimizer_and_scheduler"), ("torch/serialization.py", "load")],
}


def log(place: str, *, asked: str = "4.64 GiB", idle: str = "1.20 GiB", others: str = "", rank: str = "") -> str:
    """A log whose last traceback ran through the frames of ``place``."""
    frames = "\n".join(
        f'{rank}  File "{SITE}/{file}", line 10, in {name}\n{rank}    x = y' for file, name in FRAMES[place]
    )
    last = NEW.format(rank=rank, asked=asked, idle=idle, others=others, used="22.90")
    return f"step 3\n{rank}Traceback (most recent call last):\n{frames}\n{last}\n"


@pytest.mark.parametrize("place", FRAMES)
@pytest.mark.parametrize("rank", ["", "[rank0]: "])
def test_an_oom_is_placed_by_its_frames(place: str, rank: str) -> None:
    found = explain(log(place, rank=rank))
    assert (found.code, found.place) == ("gpu-oom", place)
    assert "4.64 GiB" in found.text
    assert found.line is not None
    assert "out of memory" in found.said


def test_the_figures_of_both_formats_are_read() -> None:
    new = read_oom(NEW.format(rank="", asked="928.00 MiB", idle="1.20 GiB", others="", used="22.9"))
    assert new.asked_bytes == 928 * MIB
    assert new.card_bytes == int(23.64 * GIB)
    assert new.free_bytes == 512 * MIB
    assert new.allocated_bytes == int(19.1 * GIB)
    assert new.idle_bytes == int(1.2 * GIB)
    assert new.gpu == 0
    old = read_oom(OLD)
    assert old.asked_bytes == int(2.32 * GIB)
    assert old.gpu == 1
    assert old.card_bytes == int(15.78 * GIB)
    assert old.free_bytes == int(1.02 * GIB)
    assert abs((old.idle_bytes or 0) - 1.1 * GIB) < 0.01 * GIB


def test_fragments_and_neighbours_come_before_changes_of_the_job() -> None:
    fragmented = explain(log("backward", asked="800.00 MiB"))
    assert "expandable_segments" in fragmented.hints[0]
    shared = explain(log("backward", others="Process 4711 has 6.10 GiB memory in use. "))
    assert "other processes hold 6.10 GiB" in shared.hints[0]
    alone = explain(log("backward"))
    assert alone.hints[0] == "--gradient_checkpointing true"


def test_remedies_belong_to_the_place() -> None:
    assert "--use_liger_kernel" in " ".join(explain(log("loss")).hints)
    assert explain(log("eval")).hints[0].startswith("--per_device_eval_batch_size")
    assert "adamw_8bit" in explain(log("optimizer")).hints[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("  exitcode  : -9 (pid: 4711)\nSignal 9 (SIGKILL) received by PID 4711\n", "host-kill"),
        (
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9\n",
            "host-kill",
        ),
        ("train.sh: line 3: 12345 Killed                  swift sft --model x\n", "host-kill"),
        ("Killed\n", "host-kill"),
        ("Killed the warmup early\n", "unknown"),
        ("OSError: [Errno 28] No space left on device\n", "disk-full"),
        ("torch.distributed.DistNetworkError: EADDRINUSE, port 29500\n", "port"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp\n", "environment"),
        ("ModuleNotFoundError: No module named 'flash_attn'\n", "environment"),
        ("ValueError: remaining_argv: ['--sft_type', 'lora']\n", "engine-arguments"),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's"
            " workers are out of shared memory.\n",
            "environment",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.\n", "environment"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered\n", "data"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered\n", "environment"),
        (
            "safetensors_rust.SafetensorError: deserializing header: MetadataIncompleteBuffer\n",
            "environment",
        ),
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0001, 'epoch': 0.1}\n", "nan-loss"),
        ("{'loss': 1.2, 'grad_norm': inf, 'learning_rate': 0.0001, 'epoch': 0.1}\n", "unknown"),
        ("ValueError: something nobody foresaw\n", "engine-error"),
        ("{'loss': 'nan', 'grad_norm': 'nan', 'global_step/max_steps': '2/60'}\n", "nan-loss"),
        ("{'loss': '1.2', 'grad_norm': '0.4', 'global_step/max_steps': '2/60'}\nall is well\n", "unknown"),
        ("", "unknown"),
        ("\x00\xff\ud800 not a log at all", "unknown"),
    ],
)
def test_other_ends(text: str, code: str) -> None:
    assert explain(text).code == code


def test_a_frame_that_calls_compiled_code_is_placed_by_its_line() -> None:
    text = (
        "[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "{SITE}/transformers/trainer.py", line 3730, in training_step\n'
        "[rank0]:     self.accelerator.backward(loss, **kwargs)\n"
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.\n"
    )
    assert explain(text).place == "backward"


def test_a_watchdog_that_names_no_other_rank_still_says_what_was_waited_for() -> None:
    waited = (
        "[rank{0}]:[E1128 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=123, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out.\n"
    )
    alone = explain(waited.format(1))
    assert (alone.code, alone.line) == ("timeout", 1)
    assert "rank 1 waited 600 s for collective 123 (ALLREDUCE)" in alone.text
    assert "ranks 1, 3" in explain(waited.format(3) + waited.format(1)).text


def test_old_flags_that_the_engine_refused_are_named_as_they_are_now() -> None:
    hints = explain("ValueError: remaining_argv: ['--sft_type', 'lora', '--lora_rnk', '8']\n").hints
    assert hints[0] == "--sft_type: write --tuner_type"
    assert hints[1].startswith("--lora_rnk: did you mean --lora_rank")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_a_log_of_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "train.log").write_bytes(f"\u8bad\u7ec3\n{log('loss')}".encode(encoding))
    found = api.explain("train.log", replace(builders.environment(tmp_path), cwd=str(tmp_path)))
    assert (found.code, found.place) == ("gpu-oom", "loss")
