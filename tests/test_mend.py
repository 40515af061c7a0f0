"""What makes a refused combination legal: few flags, planned, and true when it is followed to the letter."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import builders
import pytest

from swift_autobatch import mend, rules
from swift_autobatch.errors import NotLegalError
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Facts, Request, Sourced
from swift_autobatch.review import review
from swift_autobatch.strategies import load_strategies

Pins = dict[str, str]
REFUSED: list[tuple[str, Pins, str]] = [
    ("2x4090", {"quant_method": "bnb", "quant_bits": "4", "deepspeed": "zero3"}, "quant-zero3"),
    ("1x4090", {"quant_bits": "4"}, "quant-bits-alone"),
    ("1x4090", {"quant_method": "bnb"}, "quant-method-alone"),
    ("1x4090", {"quant_method": "hqq", "quant_bits": "4"}, "quant-kind"),
    ("2x4090", {"deepspeed": "zero2", "fsdp": "fsdp2"}, "deepspeed-and-fsdp"),
    ("1x4090", {"fp16": "true", "bf16": "true"}, "fp16-and-bf16"),
    ("1x4090", {"warmup_ratio": "0.1", "warmup_steps": "5"}, "warmup-twice"),
    ("1x4090", {"load_best_model_at_end": "true"}, "load-best-unevaluated"),
    ("1x4090", {"optimizer": "muon"}, "muon-broken"),
    ("1x4090", {"truncation_strategy": "split"}, "truncation-split"),
    ("1xT4", {"torch_dtype": "bfloat16"}, "bf16-needs-ampere"),
    ("1xT4", {"attn_impl": "flash_attn"}, "flash-needs-ampere"),
    ("4x4090", {"sequence_parallel_size": "3"}, "sp-divides-world"),
    ("2x4090", {"zero_hpz_partition_size": "2", "deepspeed": "zero2"}, "hpz-without-zero3"),
    ("2x4090", {"deepspeed": "zero2_offload", "optim": "adamw_8bit"}, "offload-8bit-optimizer"),
    ("2x4090", {"deepspeed": "zero3", "auto_find_batch_size": "true"}, "auto-find-batch-zero3"),
    ("2x4090", {"device_map": "auto"}, "device-map-parallel"),
    ("1x4090", {"warmup_ratio": "1.5", "optimizer": "muon", "quant_bits": "8"}, "quant-bits-alone"),
]


def refused(tmp_path: Path, spec: str, pins: Pins, *, fix: bool = False) -> tuple[Request, Facts, NotLegalError]:
    facts = builders.facts(tmp_path, spec)
    request = replace(builders.request(pins=pins), fix=fix)
    with pytest.raises(NotLegalError) as caught:
        make_plan(request, facts, load_strategies(), str(tmp_path), str(tmp_path))
    return request, facts, caught.value


def typed(hint: str, pins: Pins) -> Pins:
    """The flags after a hint was followed to the letter."""
    edited = dict(pins)
    for edit in hint.split(": ")[0].split(" and "):
        gone = re.fullmatch(r"(?:drop )?--(\w+)", edit)
        if gone:
            del edited[gone[1]]
            continue
        written = re.fullmatch(r"--(\w+) (\S+)(?: instead of (\S+))?", edit)
        assert written, edit
        assert edited.get(written[1]) == written[3]
        edited[written[1]] = written[2]
    return edited


@pytest.mark.parametrize(("spec", "pins", "rule"), REFUSED, ids=[rule for *_, rule in REFUSED])
def test_every_hint_works_when_it_is_followed(spec: str, pins: Pins, rule: str, tmp_path: Path) -> None:
    _, facts, error = refused(tmp_path, spec, pins)
    assert f"(rule {rule})" in error.what
    offers = [hint for hint in error.hints if " a step" in hint]
    assert offers, error.hints
    for hint in offers:
        edited = builders.request(pins=typed(hint, pins))
        decided = make_plan(edited, facts, load_strategies(), str(tmp_path), str(tmp_path))
        assert decided.candidate.strategy in hint
        assert decided.prediction.fits
        assert rules.check(decided.candidate, facts, rules.Flags(edited.pins)) is None


def test_quantised_weights_under_zero_3_have_two_ways_out(tmp_path: Path) -> None:
    spec, pins, _ = REFUSED[0]
    request, facts, error = refused(tmp_path, spec, pins)
    to_zero2, without = error.hints[:2]
    assert re.fullmatch(
        r"--deepspeed zero2 instead of zero3: multi-zero2, [\d.]+ GiB a card, [\d.]+ s a step", to_zero2
    )
    assert re.fullmatch(
        r"drop --quant_method and --quant_bits: multi-zero3, [\d.]+ GiB a card, [\d.]+ s a step", without
    )
    assert error.hints[2:] == ("--fix applies the first of these",)
    applied, done = mend.fixed(replace(request, fix=True), facts, load_strategies(), tmp_path)
    assert done.startswith("fixed: --deepspeed zero2 instead of zero3, because ZeRO-3 does not shard")
    decided = make_plan(applied, facts, load_strategies(), str(tmp_path), str(tmp_path))
    assert (decided.candidate.parallel, decided.candidate.quant) == ("zero2", "nf4")


def test_a_fix_never_trains_something_else(tmp_path: Path) -> None:
    pins = {"tuner_type": "full", "quant_method": "bnb", "quant_bits": "4"}
    request, facts, error = refused(tmp_path, "1x4090", pins, fix=True)
    assert error.hints[0].startswith("--tuner_type lora instead of full: single-qlora")
    assert error.hints[-1] == "--fix changes nothing that would train something else"
    assert mend.fixed(request, facts, load_strategies(), tmp_path) == (request, "")


def test_nothing_is_fixed_unasked_or_where_nothing_is_wrong(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path)
    legal = replace(builders.request(), fix=True)
    assert mend.fixed(legal, facts, load_strategies(), tmp_path) == (legal, "")
    asked = builders.request(pins={"quant_bits": "4"})
    assert mend.fixed(asked, facts, load_strategies(), tmp_path) == (asked, "")


def test_a_forced_strategy_that_does_not_apply_is_given_up(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path)
    asked = replace(builders.request(), strategy=Sourced(value="multi-ddp", source="flag --strategy"), fix=True)
    applied, done = mend.fixed(asked, facts, load_strategies(), tmp_path)
    assert applied.strategy.value is None
    assert done.startswith("fixed: drop --strategy multi-ddp, because strategy multi-ddp cannot be used here")


def test_check_costs_a_job_after_its_fix_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"query": "a", "response": "b"}\n' * 40)
    job = "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset rows.jsonl --max_length 512"
    (tmp_path / "job.sh").write_text(f"{job} --quant_method bnb --quant_bits 4 --deepspeed zero3\n")
    env = builders.environment(tmp_path)
    found = review("job.sh", {"gpus": "2x4090"}, env)
    assert found.as_written is None
    assert re.search("--deepspeed zero[12] instead of zero3", found.why)
    found = review("job.sh", {"gpus": "2x4090", "fix": True}, env)
    assert found.as_written is not None
    assert found.as_written.candidate.zero_stage in (1, 2)
    assert found.as_written.candidate.quant == "nf4"
    assert re.match("fixed: --deepspeed zero[12] instead of zero3", found.assumed[0])
