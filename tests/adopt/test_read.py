"""Files of every kind, and every oddity that people's files have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch import review
from swift_autobatch.adopt import foreign, read, shell, today
from swift_autobatch.adopt.found import Adopted
from swift_autobatch.deepspeed_config import ZERO_KEYS
from swift_autobatch.errors import AutoswiftError, InputError, UsageError
from swift_autobatch.request import build_request
from swift_autobatch.tables import dialect
from tests import builders


def adopted(tmp_path: Path, text: str, name: str = "job.sh") -> Adopted:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read(path, name)


def said(found: Adopted, level: str) -> list[tuple[int, str]]:
    return [(one.line, one.text) for one in found.findings if one.level == level]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("swift sft \\\n  --model m \\ \n  --dataset d\n", 2, "blank after the line continuation"),
        ("CUDA_VISIBLE_DEVICES=0 \\\n\nswift sft --model m\n", 2, "empty line ends the command"),
        ("swift sft \\\n  --model m \\\n  # --lora_rank 8 \\\n  --dataset d\n", 3, "a comment between"),
        ("swift sft --model m --sft_tpye lora\n", 1, "has a flag --sft_tpye"),
        ("swift sft --model m --gradient_acc 4\n", 1, "abbreviation"),
        ("swift sft --model m --lora_rank eight\n", 1, "needs a whole number"),
        ("swift sft --model m --tuner_type 'lora\n", 1, "the shell could not read this"),
        ("swift sft m --dataset d\n", 1, "belongs to no flag"),
        ("swift sft \\\n  --model m\n  --dataset d\n", 2, "without a continuation"),
    ],
)
def test_what_would_not_run_is_an_error_on_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    errors = said(adopted(tmp_path, text), "error")
    assert any(at == line and says in what for at, what in errors), errors


@pytest.mark.parametrize(
    "text",
    [
        "swift sft \\\n  --model m\n  --dataset d\n",
        "swift sft --model m\n\n  # the data\n  --dataset d\n",
        "swift sft \\\n  --model m \\ \n  --dataset d\n",
        "swift sft \\\n  --model m \\\n  # --lora_rank 8 \\\n  --dataset d\n",
        "swift sft \\\n  --model m \\\n\n  --dataset d\n",
        "swift sft ^\r\n  --model m\r\n  --dataset d\r\n",
    ],
)
def test_a_command_that_is_cut_short_is_read_as_it_was_meant(tmp_path: Path, text: str) -> None:
    found = adopted(tmp_path, text)
    assert {name: setting.words for name, setting in found.flags.items()} == {"model": ("m",), "dataset": ("d",)}
    assert found.as_meant
    assert len(said(found, "error")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "cd . && swift sft --model m --dataset d",
        "source env.sh; nohup swift sft --model m --dataset d > log 2>&1 &",
        "if true; then swift sft --model m --dataset d; fi",
        "train() { swift sft --model m --dataset d; }\ntrain",
        "(cd job && swift sft --model m --dataset d)",
        'ARGS=(--model m)\nswift sft "${ARGS[@]}" --dataset d',
        "ARGS=(\n  --model m\n  --dataset d\n)\nswift sft ${ARGS[@]}",
        "ARGS=(--model m)\nARGS+=(--dataset d)\nswift sft ${ARGS[*]}",
        "for M in m n; do swift sft --model $M --dataset d; done",
        "for M in m n\ndo\n  swift sft --model $M --dataset d\ndone",
        "M=m\nswift sft --model ${M:?no model} --dataset d; echo done",
    ],
)
def test_a_call_is_found_wherever_a_shell_would_run_it(tmp_path: Path, text: str) -> None:
    found = adopted(tmp_path, text + "\n")
    assert {name: setting.words for name, setting in found.flags.items()} == {"model": ("m",), "dataset": ("d",)}
    assert not said(found, "error")
    assert any("runs 2 jobs" in what for _, what in said(found, "note")) == text.startswith("for ")


def test_what_stands_in_quotes_parts_no_command(tmp_path: Path) -> None:
    found = adopted(tmp_path, "swift sft --model m --dataset d --system 'a; b && c (d'\n")
    assert found.flags["system"].words == ("a; b && c (d",)


def test_a_whole_command_is_not_called_cut_short(tmp_path: Path) -> None:
    found = adopted(tmp_path, "# a job\nswift sft \\\n  --model m \\\n  --dataset d\n\n# --lora_rank 8\necho done\n")
    assert not found.as_meant
    assert not said(found, "error")


def test_the_environment_fills_in_what_a_script_takes_from_it(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("swift sft --model $M --dataset ${D:-d} --lora_rank $RANK --seed $SEED_KEY\n")
    found = read(tmp_path / "job.sh", "job.sh", {"M": "m", "RANK": "8", "SEED_KEY": "1"})
    assert {name: setting.words for name, setting in found.flags.items() if name != "seed"} == {
        "model": ("m",),
        "dataset": ("d",),
        "lora_rank": ("8",),
    }
    assert "$M is 'm' here, from the environment" in [one.text for one in found.findings if one.level == "note"]
    assert any("$SEED_KEY is set neither" in text for _, text in said(found, "warn"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("swift sft --model m --quant_bits 4 --max_length 9\n", "silently ignored"),
        ("swift sft --model m\n", "max_length is left open"),
        ("swift sft --model m --packing true --max_length 9\n", "packing needs FlashAttention"),
        ("swift sft --model m --use_liger_kernel true --sequence_parallel_size 2\n", "off under sequence parallel"),
        ("swift sft --model m --lora_rank 8 --lora_rank 16\n", "given twice"),
        ("swift sft --model $MODEL\n", "$MODEL is set neither in this script nor"),
    ],
)
def test_what_runs_and_surprises_is_a_warning(tmp_path: Path, text: str, says: str) -> None:
    assert any(says in what for _, what in said(adopted(tmp_path, text), "warn"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--sft_type lora", {"tuner_type": ("lora",)}),
        ("--train_type full", {"tuner_type": ("full",)}),
        ("--sft_type qlora", {"tuner_type": ("lora",), "quant_method": ("bnb",), "quant_bits": ("4",)}),
        ("--quantization_bit 8", {"quant_method": ("bnb",), "quant_bits": ("8",)}),
        ("--dtype bf16", {"torch_dtype": ("bfloat16",)}),
        ("--dtype AUTO", {}),
        ("--use_flash_attn true", {"attn_impl": ("flash_attn",)}),
        ("--lora_target_modules ALL", {"target_modules": ("all-linear",)}),
        ("--lora_target_modules q_proj v_proj", {"target_modules": ("q_proj", "v_proj")}),
        ("--deepspeed default-zero3", {"deepspeed": ("zero3",)}),
        ("--self_cognition_sample 500", {"dataset": ("swift/self-cognition#500",)}),
        ("--template_type qwen", {"template": ("qwen",)}),
        ("--truncation_strategy truncation_left", {"truncation_strategy": ("left",)}),
        ("--batch_size 4", {"per_device_train_batch_size": ("4",)}),
        ("--test_oom_error true", {}),
    ],
)
def test_names_of_older_engines_become_todays(tmp_path: Path, old: str, new: dict[str, tuple[str, ...]]) -> None:
    found = adopted(tmp_path, f"swift sft {old}\n")
    assert {name: setting.words for name, setting in found.flags.items()} == new
    assert not said(found, "error")


def test_every_row_of_the_tables_ends_in_flags_of_todays_engine() -> None:
    rows = {**today.renames(), **{k: v for name in foreign.FORMATS for k, v in foreign.table(name)["keys"].items()}}
    assert len(rows) > 80
    for name, row in rows.items():
        targets = [row["to"]] if "to" in row else []
        for case in (*row.get("cases", {}).values(), *row.get("also", {}).values()):
            targets += list(case)
        for flag in targets:
            assert flag in dialect().flags, (name, flag)


@pytest.mark.parametrize(
    ("line", "nproc"),
    [
        ("NPROC_PER_NODE=4 swift sft --model m", 4),
        ("torchrun --nproc_per_node=2 swift/cli/sft.py --model m", 2),
        ("torchrun --nproc_per_node 8 --master_port 1 /a/swift/cli/sft.py --model m", 8),
        ("python -m swift.cli.main sft --model m", None),
        ("python swift/cli/main.py sft --model m", None),
        ("/opt/bin/swift sft --model m", None),
        ("n=4\nNPROC_PER_NODE=${n} swift sft --model m", 4),
        ("export NPROC_PER_NODE=${WORLD:-2}\nswift sft --model m", 2),
        ("torchrun --nproc_per_node 2 $(which swift) sft --model m", 2),
        ("`which swift` sft --model m", None),
    ],
)
def test_launchers(tmp_path: Path, line: str, nproc: int | None) -> None:
    found = adopted(tmp_path, line + "\n")
    assert found.flags["model"].words == ("m",)
    assert found.nproc == nproc


def test_a_launcher_says_what_the_nodes_are(tmp_path: Path) -> None:
    found = adopted(
        tmp_path, "torchrun --nnodes=2 --nproc_per_node 8 --master_addr 127.0.0.1 swift/cli/sft.py --model m\n"
    )
    assert {name: setting.words for name, setting in found.env.items()} == {
        "NNODES": ("2",),
        "NPROC_PER_NODE": ("8",),
        "MASTER_ADDR": ("127.0.0.1",),
    }
    assert any("cannot reach it" in text for _, text in said(found, "error"))


def test_a_shell_computes_what_it_can(tmp_path: Path) -> None:
    found = adopted(
        tmp_path, "n=4\nswift sft --model m --gradient_accumulation_steps $(expr 32 / $n) --lora_rank $((4*2))\n"
    )
    assert found.flags["gradient_accumulation_steps"].words == ("8",)
    assert found.flags["lora_rank"].words == ("8",)


def test_what_is_no_sft_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="swift rlhf"):
        adopted(tmp_path, "swift rlhf --model m\n")
    with pytest.raises(UsageError, match="this is `megatron sft`"):
        adopted(tmp_path, "megatron sft --model m\n")
    with pytest.raises(InputError, match="no call of swift"):
        adopted(tmp_path, "echo hello\n")


LLAMAFACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
quantization_bit: 4
dataset: identity,alpaca_en_demo
cutoff_len: 2048
bf16: true
flash_attn: fa2
deepspeed: examples/deepspeed/ds_z3_offload_config.json
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
neat_packing: true
resize_vocab: true
"""
AXOLOTL = """\
base_model: NousResearch/Llama-2-7b-hf
load_in_4bit: true
adapter: qlora
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 4
optimizer: paged_adamw_32bit
bf16: auto
flash_attention: true
deepspeed: deepspeed_configs/zero2.json
"""


def test_llamafactory(tmp_path: Path) -> None:
    found = adopted(tmp_path, LLAMAFACTORY, "job.yaml")
    flags = {name: setting.words for name, setting in found.flags.items()}
    assert found.kind == "LLaMA-Factory YAML"
    assert flags["dataset"] == ("identity", "alpaca_en_demo")
    assert (flags["quant_method"], flags["quant_bits"]) == (("bnb",), ("4",))
    assert flags["deepspeed"] == ("zero3_offload",)
    assert flags["max_length"] == ("2048",)
    assert flags["packing"] == ("true",)
    assert (16, "resize_vocab has no counterpart here and is left out") in said(found, "warn")


def test_axolotl(tmp_path: Path) -> None:
    found = adopted(tmp_path, AXOLOTL, "job.yml")
    flags = {name: setting.words for name, setting in found.flags.items()}
    assert found.kind == "axolotl YAML"
    assert flags["tuner_type"] == ("lora",)
    assert flags["quant_bits"] == ("4",)
    assert flags["dataset"] == ("mhenrichsen/alpaca_2k_test",)
    assert flags["per_device_train_batch_size"] == ("2",)
    assert flags["attn_impl"] == ("flash_attn",)
    assert flags["deepspeed"] == ("zero2",)
    assert not said(found, "error")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"bf16": {"enabled": "auto"}}, "no zero_optimization block"),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "no key overlap_com"),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "deprecated"),
        ({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 8}, "the trainer stops when it differs"),
        ({"zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupLR"}}, "replaces --lr_scheduler_type"),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both on"),
    ],
)
def test_a_deepspeed_config(tmp_path: Path, config: dict[str, object], says: str) -> None:
    found = adopted(tmp_path, json.dumps(config, indent=2), "ds.json")
    assert any(says in one.text for one in found.findings)


def test_the_keys_of_zero_are_the_installed_engines() -> None:
    code = (
        "import json; from deepspeed.runtime.zero.config import DeepSpeedZeroConfig as C\n"
        "f = C.model_fields; print(json.dumps(sorted(set(f) | {v.alias for v in f.values() if v.alias})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    installed = set(json.loads(done.stdout.splitlines()[-1]))
    known = {key for key, kind in ZERO_KEYS.items() if kind != "removed"} | {"stage"}
    assert installed == known


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader_of_scripts(text: str) -> None:
    shell.read_calls("swift sft " + text)
    shell.read_calls(text)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(dialect().flags) + sorted(dialect().renamed) + ["foo", "gradient_acc"]),
            st.lists(
                st.text(st.characters(categories=("L", "N"), include_characters=" -_./{}:,$'\"\\"), max_size=12),
                max_size=3,
            ),
        ),
        max_size=6,
    ),
    st.sampled_from(["job.sh", "job.yaml", "job.json"]),
)
def test_whatever_stands_in_a_file_ends_in_a_job_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, flags: list[tuple[str, list[str]]], name: str
) -> None:
    folder = tmp_path_factory.mktemp("job")
    if name == "job.sh":
        text = "swift sft " + " ".join(f"--{flag} {' '.join(words)}" for flag, words in flags)
    else:
        text = json.dumps({"model": "m", **dict(flags)})
    (folder / name).write_text(text, encoding="utf-8", errors="replace")
    try:
        found = read(folder / name, name)
        build_request({}, review.argv(found), builders.environment(folder))
    except AutoswiftError:
        return
    assert set(found.flags) <= set(dialect().flags)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "none.sh", "none.sh")
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe\x00swift sft")
    with pytest.raises(InputError, match="not UTF-8"):
        read(tmp_path / "binary.sh", "binary.sh")
