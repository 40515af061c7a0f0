"""Which plan is tried next, and which one stands in the end; the dry runs themselves are in tests/gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch import calibration, proving
from swift_autobatch.planner import make_plan
from swift_autobatch.progress import Silent
from swift_autobatch.records import Artefacts, Measured, Plan, Reason, Request, Verdict, VerdictWord, replace
from swift_autobatch.strategies import load_strategies


def plan(tmp_path: Path, request: Request, gpus: str = "1x3060") -> Plan:
    facts = builders.facts(tmp_path, gpus, "Qwen/Qwen2.5-0.5B-Instruct", lengths=(512,) * 64)
    return make_plan(request, facts, load_strategies(tmp_path), str(tmp_path), "/home/u")


def verdict(word: VerdictWord, code: str, reserved: int | None = None, **changes: Any) -> Verdict:
    seen = Measured(
        phase="steady",
        gpu_allocated_bytes=None,
        gpu_reserved_bytes=reserved,
        driver_bytes=None,
        rss_bytes=None,
        rss_sum_bytes=None,
        seconds=1.0,
    )
    fields: dict[str, Any] = {
        "verdict": word,
        "reason": Reason(code=code, text=code),
        "measured": (seen,),
        "steps": (),
        "child_exit": 0,
        "seconds": 1.0,
        "folder": "/run/autoswift/gate/1",
        "rows": (),
    }
    return Verdict(**{**fields, **changes})


def following(tmp_path: Path, made: Plan, found: Verdict, request: Request) -> Plan | None:
    learned = calibration.learn(made, found)
    table, env = load_strategies(tmp_path), builders.environment(tmp_path)
    return proving._next(made, found, learned, request, table, env, Silent())


def test_room_to_spare_makes_a_larger_micro_batch_worth_a_try_where_it_is_faster(tmp_path: Path) -> None:
    asked = builders.request()
    made = plan(tmp_path, asked)
    found = following(tmp_path, made, verdict("pass", "pass", made.prediction.needs_p50_bytes), asked)
    assert found is not None
    assert found.candidate.micro_batch > made.candidate.micro_batch
    assert found.candidate.effective_batch == made.candidate.effective_batch
    assert found.prediction.epoch_s < 0.98 * made.prediction.epoch_s
    same = {"micro_batch": made.candidate.micro_batch, "accumulation": made.candidate.accumulation}
    assert replace(found.candidate, **same) == made.candidate


def test_a_measured_machine_that_is_as_full_as_predicted_is_left_alone(tmp_path: Path) -> None:
    asked = builders.request()
    made = plan(tmp_path, asked)
    assert following(tmp_path, made, verdict("pass", "pass", made.prediction.needs_p99_bytes), asked) is None


@pytest.mark.parametrize("code", sorted(calibration.MEMORY_CODES))
def test_a_refusal_leads_to_another_plan(tmp_path: Path, code: str) -> None:
    asked = builders.request()
    made = plan(tmp_path, asked)
    found = following(tmp_path, made, verdict("fail", code), asked)
    assert found is None or found.candidate != made.candidate
    if code == "gpu-oom":
        assert found is not None


def test_pinned_numbers_leave_nothing_to_try(tmp_path: Path) -> None:
    pins = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "8", "gradient_checkpointing": "false"}
    asked = replace(builders.request(pins=pins), strategy=builders.request(strategy="single-lora").strategy)
    made = plan(tmp_path, asked)
    again = following(tmp_path, made, verdict("fail", "gpu-oom"), asked)
    assert again is None or again.candidate.micro_batch == 2


def test_the_plan_that_passed_stands_when_a_bolder_one_did_not(tmp_path: Path) -> None:
    asked = builders.request()
    made = plan(tmp_path, asked)
    bold = replace(made, digest="b" * 64)
    nothing = Artefacts(files={}, argv=(), env={})
    back: list[tuple[Plan, Path | None]] = []

    def write(one: Plan, before: Path | None) -> proving.Written:
        back.append((one, before))
        return proving.Written(plan=one, folder=Path("/again"), artefacts=nothing)

    now = proving.Written(plan=bold, folder=Path("/run"), artefacts=nothing)
    tried = (verdict("pass", "pass"), verdict("fail", "gpu-oom", folder="/run/autoswift/gate/2"))
    settled = proving._settled(now, tried, made, write)
    assert back == [(made, Path("/run"))]
    assert settled.written.plan is made
    assert settled.verdict.verdict == "pass"
    assert settled.verdict.folder == "/again/autoswift/gate/1"
    assert [one.reason.code for one in settled.verdict.earlier] == ["gpu-oom"]
