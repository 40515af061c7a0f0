"""Public bug reports: each with a small machine, model or file, and what autoswift should do about it.

``report("BR-06")`` names the report; ``make check`` prints how many are decided here. Reports on data are tested beside
the readers. Numbers in comments are the report's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch import differences, doctor
from swift_autobatch.adopt import read
from swift_autobatch.arguments import environment
from swift_autobatch.checkpoints import checkpoint_bytes
from swift_autobatch.errors import MachineError, NothingFitsError, UsageError
from swift_autobatch.facts.driver import DriverCard
from swift_autobatch.facts.hardware import visible_cards
from swift_autobatch.facts.host import read_host
from swift_autobatch.gate.postmortem import explain
from swift_autobatch.planner import make_plan
from swift_autobatch.predict import predict
from swift_autobatch.records import Facts, Plan, Row
from swift_autobatch.render.engine_config import configs
from swift_autobatch.strategies import load_strategies
from swift_autobatch.units import GIB


def planned(facts: Facts, **changes: Any) -> Plan:
    """The plan for these facts; ``pins`` and request fields as in builders.request."""
    return make_plan(builders.request(**changes), facts, load_strategies(Path("/project")), "/project", "/home/u")


def arguments_of(plan: Plan) -> Mapping[str, Any]:
    return {name: value.value for name, value in plan.engine_args.items()}


def with_host(facts: Facts, ram_gib: float) -> Facts:
    size = round(ram_gib * GIB)
    host = replace(facts.machine.host, ram_total_bytes=size, ram_budget_bytes=size)
    return replace(facts, machine=replace(facts.machine, host=host))


def reserved_gib(facts: Facts, **changes: Any) -> float:
    return predict(facts, builders.candidate(**changes)).driver_bytes / GIB


# ------------------------------------------------------------------------------------------------- out of memory


@pytest.mark.report("BR-01")
def test_one_long_row_decides_the_memory_and_is_what_the_gate_trains_on(tmp_path: Path) -> None:
    from swift_autobatch.gate.probe import probe_rows

    lengths = (200,) * 499 + (30_000,)
    long_row = Row(file="rows.jsonl", line=312, tokens=30_000, supervised_tokens=29_000, record={"query": "q"})
    facts = builders.facts(tmp_path, "1xA100-80G", lengths=lengths, costliest=(long_row,))
    plan = planned(facts)
    assert plan.candidate.max_tokens == 30_000
    assert {(row.file, row.line) for row in probe_rows(plan)} == {("rows.jsonl", 312)}
    small = builders.facts(tmp_path, "1x4090", lengths=lengths, costliest=(long_row,))
    with pytest.raises(NothingFitsError) as caught:
        planned(small, pins={"tuner_type": "full"})
    assert "30" in str(caught.value.figures) + str(caught.value.what)


@pytest.mark.report("BR-04")
def test_zero2_keeps_a_copy_of_the_weights_a_rank_when_it_saves(tmp_path: Path) -> None:
    facts = with_host(builders.facts(tmp_path, "4xH100", model="Qwen/Qwen2.5-32B-Instruct"), 256)
    zero2 = builders.candidate(tuner="full", parallel="zero2", world=4, strategy="multi-zero2")
    save = next(phase for phase in predict(facts, zero2).phases if phase.phase == "save")
    assert save.host_bytes / GIB >= 0.9 * 244  # 4 ranks x 61 GiB
    assert not predict(facts, zero2).fits


@pytest.mark.report("BR-05")
def test_a_32b_model_does_not_train_in_full_beside_744_gb_of_ram(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xH100-NVL", model="Qwen/Qwen2.5-32B-Instruct")
    candidate = builders.candidate(tuner="full", parallel="zero3_offload", strategy="zero3-offload")
    assert not predict(with_host(facts, 744e9 / GIB), candidate).fits
    assert predict(with_host(facts, 1000), candidate).fits
    killed = explain("Signal 9 (SIGKILL) received by PID 77\nexitcode: -9\n")
    assert killed.code == "host-kill"


@pytest.mark.report("BR-06")
def test_a_second_card_is_not_less_memory_a_card(tmp_path: Path) -> None:
    one = builders.facts(tmp_path, "1xA800-80G", model="meta-llama/Meta-Llama-3-8B-Instruct", lengths=(4096,) * 64)
    two = builders.facts(tmp_path, "2xA800-80G", model="meta-llama/Meta-Llama-3-8B-Instruct", lengths=(4096,) * 64)
    full: dict[str, Any] = {"tuner": "full", "max_length": 4096, "max_tokens": 4096}
    single = reserved_gib(one, **full)
    ddp = reserved_gib(two, **full, world=2, parallel="ddp")
    zero2 = reserved_gib(two, **full, world=2, parallel="zero2")
    assert single < ddp < zero2
    assert planned(two, pins={"tuner_type": "full"}).candidate.parallel.startswith(("zero3", "fsdp2"))


@pytest.mark.report("BR-71")
def test_offload_needs_total_parameters_of_a_mixture_and_is_not_chosen_where_cards_suffice(tmp_path: Path) -> None:
    facts = with_host(builders.facts(tmp_path, "8xH200", model="Qwen/Qwen3-30B-A3B"), 1500)
    candidate = builders.candidate(tuner="full", parallel="zero2_offload", world=8, strategy="multi-zero2-offload")
    assert predict(facts, candidate).host_bytes / GIB > 16 * 30.5e9 / GIB * 0.7
    assert not planned(facts, pins={"tuner_type": "full"}).candidate.offload


@pytest.mark.report("BR-68")
def test_logits_of_half_a_million_tokens_are_named_and_shared_by_sequence_parallel(tmp_path: Path) -> None:
    facts = builders.facts(
        tmp_path, "8xH100", model="Qwen/Qwen3-0.6B", lengths=(500_000,) * 32, max_supervised_tokens=500_000
    )
    base: dict[str, Any] = {"max_length": 500_000, "max_tokens": 500_000, "world": 8}
    alone = predict(facts, builders.candidate(**base, parallel="zero3_offload", tuner="full"))
    largest = max(alone.terms, key=lambda term: term.bytes)
    assert largest.name == "logits"
    assert largest.bytes / GIB > 280
    shared = predict(facts, builders.candidate(**base, parallel="zero3", tuner="full", sp=8))
    logits = next(term for term in shared.terms if term.name == "logits")
    assert logits.bytes < largest.bytes / 7


@pytest.mark.report("BR-72")
def test_zero_does_not_split_a_sequence_and_sequence_parallel_does(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "4x4090", model="meta-llama/Meta-Llama-3-8B-Instruct", lengths=(8192,) * 64)
    base: dict[str, Any] = {"max_length": 8192, "max_tokens": 8192, "world": 4}
    zero2 = predict(facts, builders.candidate(**base, parallel="zero2"))
    split = predict(facts, builders.candidate(**base, parallel="zero2", sp=4, attn_impl="flash_attention_2"))
    assert split.driver_bytes < zero2.driver_bytes
    qwen = builders.facts(tmp_path, "8x4090", lengths=(8192,) * 64)  # 28 heads, 4 of them KV
    assert planned(qwen).candidate.sp != 8


@pytest.mark.report("BR-42")
def test_memories_of_cards_are_never_added_up(tmp_path: Path) -> None:
    long = builders.facts(tmp_path, "4x3090", model="Qwen/Qwen2.5-32B-Instruct", lengths=(16_384,) * 64)
    plan = planned(long) if _fits(long) else None
    if plan is not None:
        assert plan.prediction.demand_bytes <= plan.prediction.budget_bytes <= 0.9 * 24 * GIB
    short = builders.facts(tmp_path, "4x3090", model="Qwen/Qwen2.5-32B-Instruct", lengths=(2048,) * 64)
    assert planned(short).prediction.budget_bytes <= 0.9 * 24 * GIB


def _fits(facts: Facts) -> bool:
    try:
        planned(facts)
    except NothingFitsError:
        return False
    return True


@pytest.mark.report("BR-40")
def test_the_budget_is_what_the_fullest_card_has_free(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "3xA10", model="THUDM/glm-4-9b-chat")
    gpus = tuple(
        replace(gpu, total_bytes=24 * GIB, free_bytes=free * GIB)
        for gpu, free in zip(facts.machine.gpus, (22, 22, 20), strict=True)
    )
    machine = replace(facts.machine, gpus=gpus)
    prediction = predict(replace(facts, machine=machine), builders.candidate(world=3, parallel="ddp"))
    assert prediction.budget_bytes / GIB == pytest.approx(19.7)
    held = tuple(replace(gpu, free_bytes=(22, 22, 3)[index] * GIB) for index, gpu in enumerate(gpus))
    found = doctor.examine(replace(facts.machine, gpus=held), None)
    assert any(check.id == "devices" and "GPU 2 are in use" in check.text for check in found)


# ----------------------------------------------------------------------------------------------------- precision


@pytest.mark.report("BR-19")
def test_a_gradient_that_is_no_number_fails_the_gate_with_its_precision() -> None:
    found = explain("{'loss': '0.0', 'grad_norm': 'nan', 'global_step/max_steps': '1/2'}\n")
    assert found.code == "nan-loss"
    assert any("bfloat16" in hint for hint in found.hints)


@pytest.mark.report("BR-20")
@pytest.mark.parametrize(
    ("gpus", "dtype"), [("1xV100-32G", "float16"), ("1xT4", "float16"), ("1xA100-80G", "bfloat16")]
)
def test_the_dtype_follows_the_chip_and_is_always_rendered(tmp_path: Path, gpus: str, dtype: str) -> None:
    plan = planned(builders.facts(tmp_path, gpus, model="Qwen/Qwen2.5-1.5B-Instruct"))
    assert arguments_of(plan)["torch_dtype"] == dtype


@pytest.mark.report("BR-20")
def test_no_half_precision_on_a_cpu(tmp_path: Path) -> None:
    plan = planned(builders.facts(tmp_path, None, model="Qwen/Qwen2.5-0.5B-Instruct"), pins={"tuner_type": "lora"})
    assert arguments_of(plan)["torch_dtype"] != "float16"


@pytest.mark.report("BR-21")
def test_full_tuning_in_fp16_never_goes_without_masters(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xV100-32G", model="Qwen/Qwen2.5-0.5B-Instruct")
    pins = {"tuner_type": "full", "torch_dtype": "float16"}
    assert planned(facts, pins=pins).candidate.uses_deepspeed
    with pytest.raises(UsageError, match="fp16"):
        planned(facts, pins=pins, parallel_method="none")


# ----------------------------------------------------------------------------------------------------- DeepSpeed


@pytest.mark.report("BR-24")
def test_qlora_is_never_sharded_by_zero3(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "2x4090", lengths=(12_000,) * 64)
    with pytest.raises(UsageError) as caught:
        planned(facts, pins={"quant_method": "bnb", "quant_bits": "4", "deepspeed": "zero3"})
    assert "ZeRO-3 does not shard quantised weights" in caught.value.what
    assert any("zero2" in hint for hint in caught.value.hints)
    chosen = planned(facts).candidate
    assert not (chosen.quant != "none" and chosen.zero_stage == 3)


@pytest.mark.report("BR-25")
@pytest.mark.report("BR-28")
def test_a_rendered_config_leaves_the_trainers_values_to_it_and_names_no_scheduler(tmp_path: Path) -> None:
    plan = planned(builders.facts(tmp_path, "4xA100-80G"), pins={"tuner_type": "full"}, parallel_method="deepspeed")
    config, _ = configs(plan.candidate, arguments_of(plan))
    assert config is not None
    assert config["gradient_accumulation_steps"] == "auto"
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert not {"scheduler", "optimizer"} & set(config)


@pytest.mark.report("BR-25")
def test_accumulation_written_as_text_is_told(tmp_path: Path) -> None:
    found = _deepspeed(tmp_path, {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": "8"})
    assert any("gradient_accumulation_steps" in text and "text" in text for text in found)


@pytest.mark.report("BR-28")
def test_a_scheduler_of_the_json_is_told(tmp_path: Path) -> None:
    found = _deepspeed(tmp_path, {"zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupDecayLR"}})
    assert any("replaces --lr_scheduler_type" in text for text in found)


def _deepspeed(folder: Path, config: Mapping[str, Any]) -> list[str]:
    (folder / "ds.json").write_text(json.dumps(config))
    return [finding.text for finding in read(folder / "ds.json", "ds.json").findings]


@pytest.mark.report("BR-29")
def test_offload_without_a_toolkit_is_refused_and_the_first_exception_told(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1x4090", lengths=(512,) * 64)
    software = replace(facts.machine.software, nvcc=None, compiler="/usr/bin/g++")
    here = replace(facts, machine=replace(facts.machine, software=software, source="this machine"))
    with pytest.raises(UsageError, match="nvcc"):
        planned(with_host(here, 512), pins={"tuner_type": "full", "deepspeed": "zero3_offload"})
    chained = (
        "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.0"
        " does not match the version torch was compiled with 12.8\n"
        "Exception ignored in: <function DeepSpeedCPUAdam.__del__>\n"
        "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    )
    assert "CUDA toolkit is not the one torch was built with" in explain(chained).text


@pytest.mark.report("BR-30")
def test_deepspeed_always_gets_a_launcher_and_a_free_port(tmp_path: Path) -> None:
    import socket

    from swift_autobatch.process import free_port

    facts = builders.facts(tmp_path, "1x4090", lengths=(512,) * 64)
    plan = planned(facts, pins={"deepspeed": "zero2"})
    assert plan.env["NPROC_PER_NODE"].value == "1"
    with socket.socket() as taken:
        taken.bind(("", 0))
        assert free_port() != taken.getsockname()[1]


@pytest.mark.report("BR-31")
def test_the_rank_that_hangs_is_named() -> None:
    rows = [
        f"[rank{rank}]:[E1130 12:00:00.0 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0 Rank {rank}] Exception (either"
        f" an error or timeout) detected by watchdog at work: {331 if rank == 5 else 332}, last enqueued NCCL work: "
        f"{331 if rank == 5 else 340}, last completed NCCL work: {330 if rank == 5 else 331}."
        for rank in range(8)
    ]
    found = explain("\n".join(rows))
    assert "rank 5" in found.text
    assert found.code == "timeout"


@pytest.mark.report("BR-32")
@pytest.mark.parametrize(
    ("gpus", "driver", "off"),
    [
        ("2x4090", "535.104.05", True),
        ("2x4090", "560.35.03", False),
        ("2x4090", None, True),
        ("1x4090", "535.1", False),
    ],
)
def test_peer_to_peer_is_switched_off_for_old_drivers_only(
    tmp_path: Path, gpus: str, driver: str | None, off: bool
) -> None:
    facts = builders.facts(tmp_path, gpus)
    facts = replace(facts, machine=replace(facts.machine, software=replace(facts.machine.software, driver=driver)))
    candidate = builders.candidate(
        world=len(facts.machine.gpus), parallel="ddp" if len(facts.machine.gpus) > 1 else "none"
    )
    env = environment(candidate, facts)
    assert ("NCCL_P2P_DISABLE" in env) is off
    assert ("NCCL_IB_DISABLE" in env) is off


@pytest.mark.report("BR-34")
def test_an_empty_line_in_a_command_is_told_and_deepspeed_gets_every_card(tmp_path: Path) -> None:
    (tmp_path / "t.sh").write_text("NPROC_PER_NODE=8 \\\n\nswift sft --model m --deepspeed zero2\n")
    found = read(tmp_path / "t.sh", "t.sh")
    assert any(one.level == "error" and one.line == 2 for one in found.findings)
    plan = planned(builders.facts(tmp_path, "8xA100-80G"), pins={"tuner_type": "full"}, parallel_method="deepspeed")
    assert plan.env["NPROC_PER_NODE"].value == "8"
    assert len(plan.env["CUDA_VISIBLE_DEVICES"].value.split(",")) == 8


# ----------------------------------------------------------------------------------------------------- attention


@pytest.mark.report("BR-36")
@pytest.mark.parametrize("gpus", ["1xT4", "1x4090"])
def test_packing_needs_flash_attention(tmp_path: Path, gpus: str) -> None:
    facts = builders.facts(tmp_path, gpus, model="Qwen/Qwen3-0.6B")  # flash-attn is not installed here
    versions = {**facts.machine.software.versions, "flash-attn": None}
    software = replace(facts.machine.software, versions=versions)
    facts = replace(facts, machine=replace(facts.machine, software=software))
    with pytest.raises(UsageError, match=r"[Ff]lash"):
        planned(facts, pins={"packing": "true", "attn_impl": "eager"})
    with pytest.raises(UsageError, match=r"[Ff]lash"):
        planned(facts, pins={"packing": "true"})


@pytest.mark.report("BR-38")
def test_heads_wider_than_256_do_not_get_flash_attention(tmp_path: Path) -> None:
    from swift_autobatch.facts.model import read_model

    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "vocab_size": 32_000,
        "torch_dtype": "bfloat16",
    }
    folder = tmp_path / "wide"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    facts = builders.facts(tmp_path, "1xH100")
    versions = {**facts.machine.software.versions, "flash-attn": "2.8.3"}
    machine = replace(facts.machine, software=replace(facts.machine.software, versions=versions))
    model = read_model(str(folder), builders.environment(tmp_path))
    wide = Facts(machine=machine, model=model, data=builders.data_facts())
    assert planned(wide).candidate.attn_impl in (None, "sdpa")
    with pytest.raises(UsageError, match="256"):
        planned(wide, pins={"attn_impl": "flash_attn"})


# ------------------------------------------------------------------------------------------------------ hardware

_CARDS = tuple(
    DriverCard(index=i, name="A100", uuid=uuid, total_bytes=1, free_bytes=1, compute_capability=(8, 0))
    for i, uuid in enumerate(("GPU-8932f937-aa", "GPU-11", "GPU-22", "GPU-33"))
)


@pytest.mark.report("BR-43")
@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("-1", ()),
        ("1,0", (1, 0)),
        ("0,2,-1,1", (0, 2)),
        ("GPU-8932f937", (0,)),
        ("0,0", ()),
        (" 0, 1", (0, 1)),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value: str | None, indices: tuple[int, ...]) -> None:
    assert tuple(card.index for card in visible_cards(_CARDS, value)) == indices


def test_a_mig_slice_is_never_taken_for_its_card() -> None:
    with pytest.raises(MachineError, match="MIG"):
        visible_cards(_CARDS, "MIG-4f2a")


@pytest.mark.report("BR-46")
def test_three_ways_to_have_no_gpu_are_told_apart(tmp_path: Path) -> None:
    from test_doctor import SOUND, machine

    def text(name: str, **changes: Any) -> str:
        found = doctor.examine(replace(machine(tmp_path), **changes), cpu_build if name == "torch-gpu" else SOUND)
        return next(check.text for check in found if check.id == name)

    cpu_build = replace(SOUND, torch_cuda=None, torch_sees_gpu=False)
    none = text("devices", gpus=(), visible_devices=None)
    hidden = text("devices", gpus=(), visible_devices="")
    build = text("torch-gpu")
    assert len({none, hidden, build}) == 3
    assert "hides" in hidden
    assert "CPU build" in build


@pytest.mark.report("BR-49")
@pytest.mark.parametrize(("limit", "budget_gib"), [("96636764160", 90.0), ("max", 1000.0)])
def test_the_host_budget_is_the_containers(tmp_path: Path, limit: str, budget_gib: float) -> None:
    kib = 1000 * 1024 * 1024
    _write(tmp_path / "proc/meminfo", f"MemTotal: {kib} kB\nMemAvailable: {kib} kB\n")
    _write(tmp_path / "proc/self/cgroup", "0::/\n")
    _write(tmp_path / "sys/fs/cgroup/memory.max", f"{limit}\n")
    _write(tmp_path / "sys/fs/cgroup/memory.current", "0\n")
    found = read_host(builders.environment(tmp_path), tmp_path)
    assert found.ram_budget_bytes / GIB == pytest.approx(budget_gib, rel=0.01)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# --------------------------------------------------------------------------------------------- flags and versions


@pytest.mark.report("BR-54")
@pytest.mark.report("BR-58")
def test_old_names_are_translated_and_unknown_ones_explained(tmp_path: Path) -> None:
    old = (
        "swift sft --model_id_or_path m --sft_type lora --dtype bf16 --batch_size 2 --lora_target_modules ALL "
        "--quantization_bit 4 --use_flash_attn true --deepspeed default-zero3 --per_device_batch_size 1\n"
    )
    (tmp_path / "t.sh").write_text(old)
    found = read(tmp_path / "t.sh", "t.sh")
    flags = {name: setting.words for name, setting in found.flags.items()}
    assert flags == {
        "model": ("m",),
        "tuner_type": ("lora",),
        "torch_dtype": ("bfloat16",),
        "per_device_train_batch_size": ("2",),
        "target_modules": ("all-linear",),
        "quant_method": ("bnb",),
        "quant_bits": ("4",),
        "attn_impl": ("flash_attn",),
        "deepspeed": ("zero3",),
    }
    errors = [one for one in found.findings if one.level == "error"]
    assert len(errors) == 1
    assert "--per_device_batch_size" in errors[0].text
    assert "per_device_train_batch_size" in errors[0].fix


@pytest.mark.report("BR-57")
def test_what_versions_default_differently_is_always_written_out(tmp_path: Path) -> None:
    plan = planned(builders.facts(tmp_path, "1x4090", lengths=tuple(range(100, 9000, 100))))
    written = arguments_of(plan)
    for flag in ("max_length", "gradient_accumulation_steps", "torch_dtype", "per_device_train_batch_size"):
        assert flag in written
    assert int(written["max_length"]) >= plan.candidate.max_tokens
    (tmp_path / "t.sh").write_text("swift sft --model m\n")
    assert any("max_length is left open" in one.text for one in read(tmp_path / "t.sh", "t.sh").findings)


# ------------------------------------------------------------------------------------------------- several nodes


@pytest.mark.report("BR-59")
def test_a_loopback_master_and_what_two_scripts_differ_in(tmp_path: Path) -> None:
    base = "swift sft --model Qwen/Qwen2-VL-7B-Instruct --deepspeed zero3_offload --max_length 2048\n"
    (tmp_path / "a.sh").write_text(f"export MAX_PIXELS=602112\nexport NNODES=2\nexport MASTER_ADDR=10.0.0.1\n{base}")
    (tmp_path / "b.sh").write_text(f"export NNODES=2\nexport MASTER_ADDR=127.0.0.1\n{base}")
    one, other = (read(tmp_path / name, name) for name in ("a.sh", "b.sh"))
    assert any("127.0.0.1" in finding.text and finding.level == "error" for finding in other.findings)
    assert not any(finding.level == "error" for finding in one.findings)
    found = differences.compare("a.sh", "b.sh", {}, builders.environment(tmp_path))
    assert ("MAX_PIXELS", "602112", None) in found.settings


# ------------------------------------------------------------------------------------------------ resume and disk


@pytest.mark.report("BR-63")
def test_weights_alone_cannot_be_resumed_from(tmp_path: Path) -> None:
    from swift_autobatch.request import build_request

    checkpoint = tmp_path / "checkpoint-50"
    checkpoint.mkdir()
    (checkpoint / "adapter_model.safetensors").write_bytes(b"x")
    env = replace(builders.environment(tmp_path), cwd=str(tmp_path))
    with pytest.raises(UsageError) as caught:
        build_request({}, ("--resume_from_checkpoint", "checkpoint-50"), env)
    assert any("--resume_only_model true" in hint for hint in caught.value.hints)
    build_request({}, ("--resume_from_checkpoint", "checkpoint-50", "--resume_only_model", "true"), env)
    (checkpoint / "trainer_state.json").write_text("{}")
    build_request({}, ("--resume_from_checkpoint", "checkpoint-50"), env)


@pytest.mark.report("BR-64")
def test_a_resumed_stream_says_how_many_rows_it_reads_again(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "4xA100-80G")
    pins = {
        "resume_from_checkpoint": "output/checkpoint-2000",
        "streaming": "true",
        "max_steps": "4000",
        "per_device_train_batch_size": "12",
        "gradient_accumulation_steps": "66",
    }
    notes = planned(facts, pins=pins).notes
    assert any("6.34 M rows again" in note for note in notes)  # 2000 x 66 x 12 x 4


@pytest.mark.report("BR-65")
def test_checkpoints_that_do_not_fit_the_disk_are_told_before_the_launch(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "2xA100-80G", model="Qwen/Qwen2.5-3B-Instruct")
    host = replace(facts.machine.host, disk_free_bytes=60 * 10**9)
    facts = replace(facts, machine=replace(facts.machine, host=host))
    pins = {"tuner_type": "full", "deepspeed": "zero2", "save_total_limit": "1"}
    request = builders.request(pins=pins)
    candidate = builders.candidate(tuner="full", parallel="zero2", world=2)
    one = checkpoint_bytes(candidate, facts.model, request)
    assert one == pytest.approx(14 * 3.09e9, rel=0.02)  # the report: about 40 GiB
    assert any("of disk" in note for note in planned(facts, pins=pins).notes)
    assert not any("of disk" in note for note in planned(facts, pins={**pins, "save_only_model": "true"}).notes)


@pytest.mark.report("BR-67")
def test_a_mixture_of_experts_is_not_sharded_by_zero3_for_adapters(tmp_path: Path) -> None:
    plan = planned(builders.facts(tmp_path, "8xH100", model="Qwen/Qwen3-30B-A3B"))
    assert plan.candidate.zero_stage < 3
