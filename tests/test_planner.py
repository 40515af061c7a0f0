"""The planner's promises: deterministic, within budget, in the order of choice, explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_autobatch.cli import show
from swift_autobatch.errors import InputError, NothingFitsError, UsageError
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Plan, Problem
from swift_autobatch.strategies import load_strategies

TABLE = load_strategies()
SHORT = (60, 80, 100, 120) * 25


def plan(tmp_path: Path, gpus: str | None = "1x4090", model: str = "Qwen/Qwen2.5-7B-Instruct", **changes: Any) -> Plan:
    lengths = changes.pop("lengths", SHORT)
    facts = builders.facts(tmp_path, gpus, model, lengths, **changes.pop("facts", {}))
    return make_plan(builders.request(**changes), facts, TABLE, "/project", "/home/user")


def args(decided: Plan) -> dict[str, Any]:
    return {flag: arg.value for flag, arg in decided.engine_args.items()}


def test_planning_twice_gives_the_same_digest(tmp_path: Path) -> None:
    assert plan(tmp_path).digest == plan(tmp_path).digest


def test_one_card_takes_lora_in_16_bit_before_4_bit(tmp_path: Path) -> None:
    decided = plan(tmp_path)
    assert decided.candidate.strategy == "single-lora"
    assert decided.candidate.effective_batch == 16
    lost = {item.candidate.strategy: item.why for item in decided.runners_up}
    assert lost["single-qlora"].startswith("4-bit only when nothing better fits")


def test_every_value_has_a_source(tmp_path: Path) -> None:
    decided = plan(tmp_path)
    assert all(arg.source for arg in decided.engine_args.values())
    assert all(variable.source for variable in decided.env.values())


def test_a_pinned_flag_is_never_changed(tmp_path: Path) -> None:
    pins = {"per_device_train_batch_size": "2", "learning_rate": "3e-4", "seed": "7", "lora_rank": "64"}
    decided = plan(tmp_path, pins=pins)
    assert {flag: args(decided)[flag] for flag in pins} == pins
    assert decided.candidate.micro_batch == 2
    assert decided.candidate.accumulation == 8
    assert decided.engine_args["learning_rate"].source == "flag --learning_rate"


def test_three_cards_round_the_batch_up_and_scale_the_learning_rate(tmp_path: Path) -> None:
    decided = plan(tmp_path, "3x4090")
    assert decided.candidate.effective_batch == 18
    assert float(args(decided)["learning_rate"]) == pytest.approx(1e-4 * (18 / 16) ** 0.5, rel=1e-2)
    assert decided.notes[0].startswith("effective batch 18 instead of 16")


def test_a_batch_that_the_pins_make_is_the_pins_doing(tmp_path: Path) -> None:
    pins = {"per_device_train_batch_size": "8", "gradient_accumulation_steps": "4"}
    both = plan(tmp_path, pins=pins).notes[0]
    assert "32 instead of 16: pinned to 8 x 1 x 4 by --per_device_train_batch_size and --gradient_acc" in both
    one = plan(tmp_path, pins={"per_device_train_batch_size": "3"}).notes[0]
    assert "18 instead of 16: the least multiple of 3 x 1 rank, 3 being pinned by --per_device_train_batch_size" in one
    fixed = plan(tmp_path, pins={**pins, "learning_rate": "1e-4"}).notes[0]
    assert "learning rate" not in fixed


@pytest.mark.parametrize(
    ("rows", "spec", "asked", "pins", "batch"),
    [
        (50, "1x4090", 1_000_000, {}, 50),
        (3, "1x4090", 16, {}, 3),
        (10, "4x4090", 16, {}, 8),  # two rows a rank; the engine leaves the odd ones out
        (3, "1x4090", 16, {"per_device_train_batch_size": "8", "gradient_accumulation_steps": "4"}, 3),
    ],
)
def test_no_step_holds_more_rows_than_there_are(
    tmp_path: Path, rows: int, spec: str, asked: int, pins: dict[str, str], batch: int
) -> None:
    decided = plan(tmp_path, spec, lengths=(120,) * rows, global_batch=asked, pins=pins)
    assert decided.notes[0].startswith(f"effective batch {batch} instead of ")
    assert f"an epoch has {batch // decided.candidate.dp} rows" in decided.notes[0]
    assert float(args(decided)["learning_rate"]) == pytest.approx(1e-4 * (batch / 16) ** 0.5, rel=1e-2)
    assert (decided.steps_per_epoch, decided.total_steps) == (1, 3)
    assert decided.prediction.epoch_s == pytest.approx(decided.prediction.step_s, rel=0.3)
    assert decided.prediction.epoch_s >= decided.prediction.step_s
    assert {flag: args(decided)[flag] for flag in pins} == pins


def test_four_a100_at_64_as_the_article_has_it(tmp_path: Path) -> None:
    decided = plan(
        tmp_path, "4xA100-80G", lengths=(120,) * 640, global_batch=64, pins={"per_device_train_batch_size": "2"}
    )
    assert decided.candidate.accumulation == 8


def test_t4_gets_float16(tmp_path: Path) -> None:
    decided = plan(tmp_path, "1xT4")
    assert decided.candidate.torch_dtype == "float16"
    assert args(decided)["torch_dtype"] == "float16"


def test_lr_scaling_forms(tmp_path: Path) -> None:
    rates = {
        scaling: float(args(plan(tmp_path, lengths=(120,) * 640, global_batch=64, lr_scaling=scaling))["learning_rate"])
        for scaling in ("none", "sqrt", "linear")
    }
    assert rates == {"none": 1e-4, "sqrt": 2e-4, "linear": 4e-4}
    base = plan(tmp_path, lr_base=(2e-4, 256))
    assert float(args(base)["learning_rate"]) == pytest.approx(2e-4 * (16 / 256) ** 0.5)


def test_warmup_grows_with_large_batches(tmp_path: Path) -> None:
    assert args(plan(tmp_path))["warmup_ratio"] == "0.05"
    assert args(plan(tmp_path, lengths=(120,) * 640, global_batch=128))["warmup_ratio"] == "0.1"
    assert "warmup_ratio" not in args(plan(tmp_path, pins={"warmup_steps": "3"}))


def test_a_strategy_can_be_forced_and_says_why_not(tmp_path: Path) -> None:
    assert plan(tmp_path, strategy="single-qlora-offload").candidate.parallel == "zero2_offload"
    with pytest.raises(UsageError, match="needs 2 devices"):
        plan(tmp_path, strategy="multi-zero2")
    with pytest.raises(UsageError, match="no strategy is called") as caught:
        plan(tmp_path, strategy="single-lorra")
    assert "single-lora" in caught.value.hints[0]


def test_a_pinned_combination_that_no_rule_allows_names_the_rule(tmp_path: Path) -> None:
    pins = {"quant_method": "bnb", "quant_bits": "4", "deepspeed": "zero3"}
    with pytest.raises(UsageError, match="rule quant-zero3") as caught:
        plan(tmp_path, "2x4090", pins=pins)
    assert "--deepspeed zero2" in caught.value.hints[0]


def test_quant_bits_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="silently ignored"):
        plan(tmp_path, pins={"quant_bits": "4"})


def test_megatron_is_refused_with_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="megatron sft is not rendered"):
        plan(tmp_path, "4x4090", parallel_method="megatron")


def test_megatron_is_predicted_and_its_degrees_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, "8xH100", "Qwen/Qwen2.5-32B-Instruct", parallel_method="megatron", pins={"tuner_type": "full"})
    told = " | ".join(caught.value.figures)
    assert "predicted: tp " in told
    assert "GiB" in told
    assert "tokens/s" in told
    assert caught.value.hints == ("--parallel-method deepspeed", "--parallel-method fsdp")


def test_fewest_gpus_leaves_cards_free(tmp_path: Path) -> None:
    decided = plan(tmp_path, "8xH100", prefer="fewest-gpus")
    assert decided.candidate.world == 1
    assert decided.machine_class.startswith("1xh100")
    assert decided.env["NPROC_PER_NODE"].value == "1"
    full = plan(tmp_path, "8xA6000,ram=96", prefer="fewest-gpus", pins={"tuner_type": "full"})
    assert full.candidate.world == 4
    with pytest.raises(UsageError, match="needs 2 devices"):
        plan(tmp_path, "1xH100", prefer="fewest-gpus", strategy="multi-zero2")


def test_what_had_to_give_is_said_first_with_its_cost(tmp_path: Path) -> None:
    four_bit = plan(tmp_path, "1xT4")
    assert four_bit.notes[0].startswith("4-bit weights: in 16-bit the model does not fit on the card, this batch needs")
    small = plan(tmp_path, "1x4090,ram=16", "Qwen/Qwen2.5-3B-Instruct", pins={"tuner_type": "full"})
    assert small.notes[0] == "what is learned changes: 8-bit optimizer states; nothing else fits"
    assert args(small)["optim"] == "paged_adamw_8bit"
    streamed = plan(tmp_path, "1x4090,ram=256", pins={"tuner_type": "full"})
    assert "x a step), but nothing else fits" in streamed.notes[0]


def test_full_tuning_in_fp16_on_one_turing_card_keeps_its_weights_there(tmp_path: Path) -> None:
    decided = plan(tmp_path, "1xT4", "Qwen/Qwen2.5-0.5B-Instruct", pins={"tuner_type": "full"})
    assert (decided.candidate.strategy, decided.candidate.parallel) == ("single-zero2", "zero2")
    assert decided.candidate.torch_dtype == "float16"


def test_a_pinned_bucket_is_the_one_that_is_costed(tmp_path: Path) -> None:
    config = '{{"zero_optimization": {{"stage": 2, "reduce_bucket_size": {size}}}}}'
    pins = {"tuner_type": "full", "per_device_train_batch_size": "1", "gradient_checkpointing": "true"}
    small, large = (
        plan(tmp_path, "4xA100-80G", pins={**pins, "deepspeed": config.format(size=size)}) for size in ("1e7", "8e8")
    )
    assert (small.candidate.bucket_elements, large.candidate.bucket_elements) == (10_000_000, 800_000_000)
    assert large.prediction.demand_bytes - small.prediction.demand_bytes > 790_000_000 * 2


def test_an_offload_that_is_not_needed_must_pay(tmp_path: Path) -> None:
    """DeepSpeed trains 16-bit adapters, about a tenth faster than fp32 ones: no reason to compile a host optimizer."""
    decided = plan(tmp_path, "1x3090", "meta-llama/Meta-Llama-3-8B", pins={"quant_method": "bnb", "quant_bits": "4"})
    assert decided.candidate.strategy == "single-qlora"
    for item in decided.runners_up:
        if item.candidate.strategy == "single-qlora-offload" and item.prediction is not None:
            ratio = item.prediction.epoch_s / decided.prediction.epoch_s
            assert ratio * 1.15 > 0.97
    fastest = plan(tmp_path, "4xA100-80G", pins={"tuner_type": "full"})
    assert not fastest.candidate.offload


def test_one_switch_changes_the_engine(tmp_path: Path) -> None:
    assert plan(tmp_path, "2x4090", parallel_method="fsdp").candidate.parallel == "fsdp2"
    assert plan(tmp_path, "2x4090", parallel_method="deepspeed").candidate.parallel.startswith("zero")


def test_full_7b_on_one_24gb_card_does_not_fit_and_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(NothingFitsError) as caught:
        plan(tmp_path, pins={"tuner_type": "full"})
    hints = " ".join(caught.value.hints)
    assert "ram=" in hints
    assert "--tuner_type lora" in hints


def test_full_7b_on_one_24gb_card_with_256_gib_host(tmp_path: Path) -> None:
    decided = plan(tmp_path, "1x4090,ram=256", pins={"tuner_type": "full"})
    assert decided.candidate.parallel == "zero3_offload"
    assert decided.engine_args["deepspeed"].value == "$RUN/autoswift/ds.json"


def test_rows_that_cannot_train_are_dropped_only_when_nothing_else_fits(tmp_path: Path) -> None:
    lengths = (200,) * 990 + (120_000,) * 10
    decided = plan(tmp_path, "1x3090", lengths=lengths)
    assert decided.candidate.max_length < 120_000
    assert any("dropped" in note for note in decided.notes)


def test_self_cognition_data_gets_a_system_prompt_proposed(tmp_path: Path) -> None:
    decided = plan(tmp_path, facts={"self_cognition": True, "persona": "Ember"})
    assert any("--system" in offer and "Ember" in offer for offer in decided.proposals)
    assert "system" not in args(decided)


def test_master_port_and_devices_are_left_to_launch(tmp_path: Path) -> None:
    decided = plan(tmp_path, "4x4090")
    assert decided.env["MASTER_PORT"].value == "${MASTER_PORT:-free}"
    assert decided.env["CUDA_VISIBLE_DEVICES"].value == "${CUDA_VISIBLE_DEVICES:-0,1,2,3}"
    assert decided.env["NPROC_PER_NODE"].value == "4"


def test_free_memory_shared_with_others_shrinks_the_budget(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1x4090", lengths=(2048,) * 50)
    gpu = replace(facts.machine.gpus[0], free_bytes=facts.machine.gpus[0].total_bytes // 2)
    busy = replace(facts, machine=replace(facts.machine, gpus=(gpu,)))
    decided = make_plan(builders.request(), busy, TABLE, "/project", "/home/user")
    assert decided.candidate.quant == "nf4"


@settings(max_examples=25, deadline=None)
@given(
    spec=st.sampled_from(["1x3090", "2x4090", "4xA100-80G", "1xT4", "8xH100", "1xL4"]),
    model=st.sampled_from(["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-32B-Instruct"]),
    tuner=st.sampled_from(["lora", "full"]),
    length=st.integers(16, 6000),
    batch=st.sampled_from([1, 8, 16, 60, 128]),
)
def test_no_chosen_plan_is_above_its_budget(
    tmp_path_factory: pytest.TempPathFactory, spec: str, model: str, tuner: str, length: int, batch: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("plan")
    try:
        decided = plan(tmp_path, spec, model, lengths=(length,) * 64, global_batch=batch, pins={"tuner_type": tuner})
    except NothingFitsError as error:
        assert error.figures
        return
    assert decided.prediction.fits
    assert decided.candidate.effective_batch >= min(batch, 64)


def test_the_gain_and_the_cost_of_an_offload_are_said(tmp_path: Path) -> None:
    decided = plan(tmp_path, "1x3090", "meta-llama/Meta-Llama-3-8B", strategy="single-qlora-offload")
    assert any("offload frees" in note and "a step" in note for note in decided.notes)


def test_a_plan_that_drops_every_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every row is longer") as caught:
        plan(tmp_path, lengths=(3000,) * 40, pins={"max_length": "1024"})
    assert any("--max_length 3072" in hint for hint in caught.value.hints)
    with pytest.raises(InputError, match="the model can take"):
        plan(tmp_path, "4xA100-80G", lengths=(40_000,) * 40)


def test_rows_without_a_tokenizer_are_cut_at_their_bound_and_costed_at_their_estimate(tmp_path: Path) -> None:
    decided = plan(tmp_path, lengths=(500,) * 40, facts={"exact": False, "tokenizer": "assumed", "bound_tokens": 1600})
    assert decided.candidate.max_length == 1792
    assert decided.candidate.max_tokens == 500


def test_a_cpu_strategy_is_not_for_cards(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without an accelerator"):
        plan(tmp_path, "4xA100-80G", strategy="cpu-ddp")


def test_several_cards_can_pack_where_flash_attention_is_installed(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "4xA100-80G", lengths=SHORT)
    software = replace(facts.machine.software, versions={**facts.machine.software.versions, "flash-attn": "2.8.3"})
    ready = replace(facts, machine=replace(facts.machine, software=software))
    decided = make_plan(builders.request(strategy="packing"), ready, TABLE, "/project", "/home/user")
    assert decided.candidate.packing
    assert decided.candidate.world == 4
    assert args(decided)["attn_impl"] == "flash_attention_2"
    with pytest.raises(UsageError, match="flash-attn package is not installed"):
        make_plan(builders.request(strategy="packing"), facts, TABLE, "/project", "/home/user")


def test_rows_that_teach_nothing_and_images_are_said(tmp_path: Path) -> None:
    empty = Problem(code="empty-answer", file="/project/rows.jsonl", line=7, text="", drops_row=False)
    decided = plan(tmp_path, facts={"problems": (empty,), "media_rows": 3})
    assert any("empty-answer" in line and "rows.jsonl:7" in line for line in show.plan(decided, columns=200))
    assert any("images" in note and "text model" in note for note in decided.notes)


def test_a_mixture_of_experts_that_does_not_fit_says_why_4_bit_does_not_help(tmp_path: Path) -> None:
    with pytest.raises(NothingFitsError) as caught:
        plan(tmp_path, "1x4090", "Qwen/Qwen3-30B-A3B")
    assert any("experts" in figure for figure in caught.value.figures)


@pytest.mark.parametrize("stage", ['"three"', "7", "true", "null", "[2]", "2.0"])
def test_a_deepspeed_config_of_no_stage_is_one_error(tmp_path: Path, stage: str) -> None:
    with pytest.raises(InputError, match="DeepSpeed has 0, 1, 2 and 3") as caught:
        plan(tmp_path, pins={"deepspeed": f'{{"zero_optimization": {{"stage": {stage}}}}}'})
    assert caught.value.where == "--deepspeed"
