"""What is learned of a machine from dry runs, from records alone: constants of the device, and how wide the band is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch import calibration
from swift_autobatch.planner import make_plan
from swift_autobatch.predict import predict
from swift_autobatch.predict.job import check_calibration
from swift_autobatch.records import Measured, Phase, Plan, Reason, Verdict, VerdictWord
from swift_autobatch.strategies import load_strategies
from swift_autobatch.units import GIB

LENGTHS = tuple(range(200, 2048, 37))


def plan(tmp_path: Path, gpus: str | None = "1x4090", **changes: Any) -> Plan:
    model = "Qwen/Qwen2.5-7B-Instruct" if gpus else "Qwen/Qwen2.5-0.5B-Instruct"
    facts = builders.facts(tmp_path, gpus, model, lengths=LENGTHS)
    return make_plan(builders.request(**changes), facts, load_strategies(tmp_path), str(tmp_path), "/home/u")


def measured(reserved: float, *, phase: Phase = "steady", outside: float = 0.4, **changes: Any) -> Measured:
    """A card's figures in GiB; 0.95 of what is reserved is allocated."""
    fields: dict[str, Any] = {
        "phase": phase,
        "gpu_allocated_bytes": round(0.95 * reserved * GIB),
        "gpu_reserved_bytes": round(reserved * GIB),
        "driver_bytes": round((reserved + outside) * GIB),
        "rss_bytes": 2 * GIB,
        "rss_sum_bytes": 2 * GIB,
        "seconds": 1.0,
    }
    return Measured(**{**fields, **changes})


def verdict(word: VerdictWord, code: str, *seen: Measured, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {
        "verdict": word,
        "reason": Reason(code=code, text=code),
        "measured": seen,
        "steps": (),
        "child_exit": 0,
        "seconds": 1.0,
        "folder": "/run",
        "rows": (),
    }
    return Verdict(**{**fields, **changes})


def learned(made: Plan, found: Verdict) -> dict[str, float]:
    names = {one.name: one.value for one in calibration.learn(made, found)}
    check_calibration(names)  # nothing that the predictor does not know
    return names


def test_the_context_is_what_the_driver_counts_beyond_the_reserve(tmp_path: Path) -> None:
    made = plan(tmp_path)
    before = max(gpu.total_bytes - gpu.free_bytes for gpu in made.facts.machine.gpus) / GIB
    found = learned(made, verdict("pass", "pass", measured(16, outside=before + 0.31)))
    assert found["context_gib"] == pytest.approx(0.31, abs=0.001)
    assert found["gpu_process_gib"] == 2.0
    another = learned(made, verdict("pass", "pass", measured(16, outside=before + 8)))
    assert "context_gib" not in another  # another process came: that is no context


def test_nccl_is_what_is_left_on_several_cards(tmp_path: Path) -> None:
    made = plan(tmp_path, "2x4090")
    assert made.candidate.world == 2
    before = max(gpu.total_bytes - gpu.free_bytes for gpu in made.facts.machine.gpus) / GIB
    found = learned(made, verdict("pass", "pass", measured(16, outside=before + 0.9)))
    assert found["nccl_gib"] == pytest.approx(0.4, abs=0.001)  # beside 0.5 of context
    assert "context_gib" not in found


def test_a_pass_makes_the_band_of_its_kind_as_wide_as_it_was_and_leaves_others_alone(tmp_path: Path) -> None:
    made = plan(tmp_path)
    p50 = made.prediction.needs_p50_bytes / GIB
    exact = learned(made, verdict("pass", "pass", measured(p50)))
    more = learned(made, verdict("pass", "pass", measured(1.1 * p50)))
    (name,) = [name for name in exact if name.startswith("moving_p99")]
    assert name == "moving_p99:lora-whole-closed-form"
    assert exact[name] < more[name]
    narrow = predict(made.facts, made.candidate, exact)
    assert p50 * GIB <= narrow.needs_p99_bytes
    full = builders.candidate(tuner="full", torch_dtype="bfloat16")
    apart = {name: exact[name]}
    assert predict(made.facts, full, apart).needs_p99_bytes == predict(made.facts, full).needs_p99_bytes


CASES: tuple[tuple[str | None, dict[str, Any]], ...] = (
    ("1x4090", {}),
    ("1x3060", {}),
    ("2x4090", {"strategy": "multi-zero2"}),
    ("8xH100", {"pins": {"tuner_type": "full"}}),
    ("1xT4", {}),
)


@pytest.mark.parametrize(("gpus", "changes"), CASES)
@pytest.mark.parametrize("code", sorted(calibration.MEMORY_CODES))
def test_a_plan_that_did_not_fit_is_not_judged_to_fit_again(
    tmp_path: Path, gpus: str, changes: dict[str, Any], code: str
) -> None:
    """Otherwise the next try would be the same one."""
    made = plan(tmp_path, gpus, **changes)
    found = calibration.learn(made, verdict("fail", code, oom={"allocated_bytes": GIB, "asked_bytes": GIB}))
    assert found
    facts = calibration.with_learned(made.facts, found)
    assert not predict(facts, made.candidate).fits
    assert all(one.refused for one in found)


def test_the_allocators_last_words_widen_further_than_the_least_that_refuses(tmp_path: Path) -> None:
    made = plan(tmp_path)
    least = learned(made, verdict("fail", "gpu-oom"))
    said = {"allocated_bytes": made.prediction.budget_bytes, "asked_bytes": GIB}
    assert learned(made, verdict("fail", "gpu-oom", oom=said)).popitem()[1] > least.popitem()[1]


def test_a_training_that_took_more_than_the_band_widens_it_and_one_that_took_less_does_not(tmp_path: Path) -> None:
    """Its dearest rows need not have met in one micro batch: a small figure promises nothing."""
    made = plan(tmp_path)
    needs = made.prediction.needs_p99_bytes / GIB
    assert calibration.learn_from_training(made, (measured(0.8 * needs),), None) == ()
    (wider,) = calibration.learn_from_training(made, (measured(needs + 1),), None)
    after = predict(calibration.with_learned(made.facts, (wider,)), made.candidate)
    assert after.needs_p99_bytes >= (needs + 1) * GIB


@pytest.mark.parametrize("code", ["gpu-oom", "host-kill"])
def test_a_training_that_died_for_lack_of_memory_is_not_judged_to_fit_again(tmp_path: Path, code: str) -> None:
    made = plan(tmp_path)
    full = measured(made.prediction.budget_bytes / GIB, rss_sum_bytes=made.prediction.host_budget_bytes)
    assert calibration.learn_from_training(made, (measured(2),), code) == ()  # somebody else took the memory
    found = calibration.learn_from_training(made, (full,), code)
    assert not predict(calibration.with_learned(made.facts, found), made.candidate).fits


def test_other_failures_teach_nothing_about_memory(tmp_path: Path) -> None:
    assert learned(plan(tmp_path), verdict("fail", "nan-loss")) == {}


def test_what_a_cpu_process_holds_is_learned_from_the_imports(tmp_path: Path) -> None:
    made = plan(tmp_path, None)
    found = learned(made, verdict("fail", "nan-loss", imports_bytes=round(0.55 * GIB)))
    assert found == {"cpu_process_gib": 0.65}


def test_it_is_kept_by_class_and_a_refusal_is_not_forgotten_by_a_pass(tmp_path: Path) -> None:
    env = builders.environment(tmp_path)
    wide = calibration.Learned(name="moving_p99:lora-whole-closed-form", value=1.6, why="oom", refused=True)
    narrow = calibration.Learned(name=wide.name, value=1.1, why="pass")
    context = calibration.Learned(name="context_gib", value=0.4, why="driver")
    calibration.keep(env, "1xrtx-4090-24-ram64", (wide, context))
    calibration.keep(env, "1xrtx-4090-24-ram64", (narrow,))
    assert calibration.read(env, "1xrtx-4090-24-ram64") == {wide.name: 1.6, "context_gib": 0.4}
    assert calibration.read(env, "another") == {}
    path = calibration.path_of(env, "1xrtx-4090-24-ram64")
    assert json.loads(path.read_text())["coefficients"]["context_gib"]["why"] == "driver"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "other/1"}', '{"schema": "autoswift.calibration/1", "coefficients": {"x": 1}}']
)
def test_a_torn_or_foreign_file_is_as_none(tmp_path: Path, text: str) -> None:
    env = builders.environment(tmp_path)
    path = calibration.path_of(env, "class")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert calibration.read(env, "class") == {}


def test_a_coefficient_that_is_unknown_now_is_as_none(tmp_path: Path) -> None:
    env = builders.environment(tmp_path)
    calibration.keep(env, "class", (calibration.Learned(name="of_another_version", value=1.0, why="x"),))
    assert calibration.read(env, "class") == {}
