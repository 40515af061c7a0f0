"""The judge, rule by rule, from evidence alone; the engine's words are those of real failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch.engine_log import scan
from swift_autobatch.gate.causes import CAUSES, known_cause
from swift_autobatch.gate.evidence import Evidence
from swift_autobatch.gate.verdict import judge
from swift_autobatch.records import Measured, Plan, Step
from swift_autobatch.units import GIB

NAN = float("nan")


def step(number: int, loss: float | None = 6.9, grad_norm: float | None = 2.0) -> Step:
    return Step(step=number, loss=loss, grad_norm=grad_norm, token_acc=0.1, learning_rate=1e-4, step_s=0.2)


def measured(**changes: Any) -> Measured:
    fields: dict[str, Any] = {
        "phase": "steady",
        "gpu_allocated_bytes": None,
        "gpu_reserved_bytes": None,
        "driver_bytes": None,
        "rss_bytes": GIB,
        "rss_sum_bytes": GIB,
        "seconds": 0.2,
    }
    return Measured(**{**fields, **changes})


EFFECTIVE = {
    "world_size": 1,
    "micro_batch": 2,
    "accumulation": 2,
    "quantised": None,
    "zero_stage": None,
    "fsdp": False,
    "attention": "sdpa",
    "rows": 8,
}


def evidence(log: str = "", **changes: Any) -> Evidence:
    """A dry run that went well, with changes."""
    fields: dict[str, Any] = {
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "seconds": 12.0,
        "rows": 8,
        "planned_steps": 2,
        "planned_accumulation": 2,
        "planned_phases": (),
        "steps": (step(1), step(2, 6.5)),
        "measured": (measured(),),
        "effective": EFFECTIVE,
        "observed": {"logits_rows": 30, "logits_dtype": "float32", "row_tokens": 77, "needed_rows": 30},
        "imports_bytes": None,
        "last": (),
        "supervised_tokens": 400,
        "phase": "steady",
        "log": scan(log),
    }
    return Evidence(**{**fields, **changes})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return jobs.plan(tmp_path)


def test_a_good_run_passes_with_its_figures(plan: Plan) -> None:
    word, reason = judge(evidence(), plan)
    assert (word, reason.code) == ("pass", "pass")
    assert "loss 6.9 -> 6.5" in reason.text
    assert "1.00 GiB of 10.00 GiB" in reason.text


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.45 GiB. GPU 0 has a total capacity of 23.65 GiB"


def test_gpu_oom_names_phase_amount_and_edits(plan: Plan) -> None:
    word, reason = judge(evidence(OOM, exit_code=1, steps=(), phase="first_step"), plan)
    assert (word, reason.code) == ("fail", "gpu-oom")
    assert "in the first step" in reason.text
    assert "1.45 GiB" in reason.text
    assert reason.hints[:2] == ("--per_device_train_batch_size 1", "--gradient_checkpointing true")


@pytest.mark.parametrize(
    ("exit_code", "signal", "log"),
    [
        (247, 9, ""),
        (1, None, "  exitcode  : -9 (pid: 65)\n  traceback : Signal 9 (SIGKILL) received by PID 65\n"),
        (
            1,
            None,
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8589934592 bytes",
        ),
    ],
)
def test_a_host_that_runs_out_is_told_from_a_card_that_does(
    plan: Plan, exit_code: int, signal: int | None, log: str
) -> None:
    word, reason = judge(evidence(log, exit_code=exit_code, signal=signal, steps=(), phase="load"), plan)
    assert (word, reason.code) == ("fail", "host-kill")
    assert "while loading the model" in reason.text


def test_our_own_kill_at_the_time_limit_is_no_host_kill(plan: Plan) -> None:
    word, reason = judge(evidence(exit_code=-9, signal=9, timed_out=True, steps=(), phase=None), plan)
    assert (word, reason.code) == ("fail", "timeout")
    assert "before the trainer was built" in reason.text


def test_nan_at_the_second_step_fails_although_the_engine_exits_0(plan: Plan) -> None:
    word, reason = judge(evidence(steps=(step(1), step(2, NAN, NAN))), plan)
    assert (word, reason.code) == ("fail", "nan-loss")
    assert "step 2 of 2" in reason.text
    assert "learning rate 1e-3" in reason.text
    assert reason.hints[0] == "--learning_rate 1e-05"


def test_fp16_may_skip_early_steps_but_not_the_last(plan: Plan) -> None:
    half = replace(plan, candidate=replace(plan.candidate, torch_dtype="float16"))
    early = tuple(step(n, 6.9, NAN if n < 3 else 1.0) for n in range(1, 5))
    assert judge(evidence(steps=early, planned_steps=4), half)[0] == "pass"
    late = tuple(step(n, 6.9, 1.0 if n < 4 else NAN) for n in range(1, 5))
    assert judge(evidence(steps=late, planned_steps=4), half)[1].code == "nan-loss"


@pytest.mark.parametrize(("loss", "counted"), [(0.0, None), (NAN, None), (NAN, 0), (0.0, 0)])
def test_masked_labels_are_told_from_divergence(plan: Plan, loss: float, counted: int | None) -> None:
    steps = (step(1, loss, 0.0), step(2, loss, 0.0))
    word, reason = judge(evidence(steps=steps, supervised_tokens=counted), plan)
    assert (word, reason.code) == ("fail", "zero-loss")
    assert "masked" in reason.text


def test_a_gradient_of_zero_beside_a_loss_is_its_own_case(plan: Plan) -> None:
    _, reason = judge(evidence(steps=(step(1, 5.0, 0.0), step(2, 5.0, 0.0))), plan)
    assert reason.code == "zero-loss"
    assert "nothing trains" in reason.text


def test_a_loss_far_above_a_blind_guess_is_divergence(plan: Plan) -> None:
    assert judge(evidence(steps=(step(1), step(2, 13.8))), plan)[0] == "pass"  # AutoTP logs twice the loss
    assert judge(evidence(steps=(step(1), step(2, 60.0))), plan)[1].code == "diverged"


def test_no_step_in_spite_of_exit_code_0(plan: Plan) -> None:
    word, reason = judge(evidence(steps=()), plan)
    assert (word, reason.code) == ("fail", "no-step")


def test_fewer_steps_than_planned_without_an_error_cannot_be_decided(plan: Plan) -> None:
    word, reason = judge(evidence(steps=(step(1),)), plan)
    assert (word, reason.code) == ("unknown", "unknown")
    assert "1 of 2" in reason.text


def test_dropped_rows_fail_even_if_the_rest_trained(plan: Plan) -> None:
    log = "[INFO:swift] Dataset filtered, origin length: 8, filtered dataset length: 4"
    word, reason = judge(evidence(log), plan)
    assert (word, reason.code) == ("fail", "rows-dropped")
    assert "4 of the 8" in reason.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zero_stage", 3),
        ("quantised", "nf4"),
        ("micro_batch", 1),
        ("world_size", 2),
        ("accumulation", 8),
        ("fsdp", True),
    ],
)
def test_a_flag_that_silently_did_nothing_is_noticed(plan: Plan, name: str, value: Any) -> None:
    word, reason = judge(evidence(effective={**EFFECTIVE, name: value}), plan)
    assert (word, reason.code) == ("fail", "silently-off")
    assert str(value) in reason.text


def test_flash_attention_that_fell_back_is_noticed(plan: Plan) -> None:
    flash = replace(plan, candidate=replace(plan.candidate, attn_impl="flash_attn"))
    assert judge(evidence(), flash)[1].code == "silently-off"
    assert judge(evidence(effective={**EFFECTIVE, "attention": "flash_attention_2"}), flash)[0] == "pass"


def test_without_telemetry_nothing_can_be_said_of_memory(plan: Plan) -> None:
    word, reason = judge(evidence(measured=(), effective=None, log_error="No space left on device (log)"), plan)
    assert (word, reason.code) == ("unknown", "unknown")
    assert "No space left" in reason.text


def test_a_measured_peak_above_the_budget_fails(plan: Plan) -> None:
    host = judge(evidence(measured=(measured(rss_sum_bytes=11 * GIB),)), plan)
    assert (host[0], host[1].code) == ("fail", "over-budget")
    assert "11.00 GiB" in host[1].text
    inside = judge(evidence(measured=(measured(gpu_reserved_bytes=7 * GIB),)), plan)
    assert inside[0] == "pass"  # 7 + 0.5 of context, budget 8
    above = judge(evidence(measured=(measured(gpu_reserved_bytes=round(7.6 * GIB)),)), plan)
    assert above[1].code == "over-budget"
    assert "GPU memory reached 8.10 GiB" in above[1].text


def test_an_exit_code_after_all_steps_is_not_enough_to_fail_nor_to_pass(plan: Plan) -> None:
    word, reason = judge(evidence("RuntimeError: teardown", exit_code=1), plan)
    assert (word, reason.code) == ("unknown", "unknown")
    assert "teardown" in reason.text


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("RuntimeError: The server socket has failed to listen. EADDRINUSE. port: 29500", "port"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. insufficient shared memory", "shm"),
        ("ModuleNotFoundError: No module named 'mpi4py'", "environment"),
        ("ImportError: FlashAttention2 has been toggled on, but it cannot be used", "environment"),
        ("deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder", "environment"),
        ("RuntimeError: Unable to JIT load the cpu_adam op", "environment"),
        ("datasets.exceptions.DatasetGenerationError: An error occurred", "data"),
        ("TypeError: 'NoneType' object is not iterable", "rows-dropped"),
        ("ValueError: remaining_argv: ['--train_type', 'lora']", "engine-arguments"),
        ("sft.py: error: argument --optim: invalid choice: 'bogus'", "engine-arguments"),
        ("ValueError: Multiple possible types found: ['qwen2', 'qwen2_gte']", "engine-arguments"),
        ("AssertionError: Padding_idx must be within num_embeddings", "engine-error"),
    ],
)
def test_ways_to_die(plan: Plan, log: str, code: str) -> None:
    word, reason = judge(evidence(log, exit_code=1, steps=(), measured=(), effective=None, phase=None), plan)
    assert (word, reason.code) == ("fail", code)
    assert "{what}" not in reason.text


@pytest.mark.parametrize("phase", ["eval", "save", "resume"])
def test_a_death_after_the_steps_is_a_refusal_that_names_the_phase(plan: Plan, phase: Any) -> None:
    """All steps were made: only the telemetry tells that the job would have died later."""
    word, reason = judge(evidence("RuntimeError: torn", exit_code=1, phase=phase), plan)
    assert (word, reason.code) == ("fail", "engine-error")
    word, full = judge(evidence("OSError: [Errno 28] No space left on device", exit_code=1, phase=phase), plan)
    assert (word, full.code) == ("fail", "disk-full")
    words = {"eval": "in evaluation", "save": "while saving a checkpoint", "resume": "while resuming"}
    assert words[phase] in reason.text
    assert words[phase] in full.text
    assert words[phase] in judge(evidence(OOM, exit_code=1, phase=phase), plan)[1].text


def test_an_evaluation_or_checkpoint_that_did_not_happen_is_noticed(plan: Plan) -> None:
    done = (measured(), measured(phase="eval"), measured(phase="save"), measured(phase="resume"))
    phases: Any = ("eval", "save", "resume")
    word, reason = judge(evidence(planned_phases=phases, measured=done), plan)
    assert word == "pass"
    assert "evaluated, saved, read the checkpoint back" in reason.text
    for missing, words in ((1, "did not evaluate"), (2, "did not save"), (3, "did not read")):
        found = judge(evidence(planned_phases=phases, measured=(*done[:missing], *done[missing + 1 :])), plan)[1]
        assert found.code == "silently-off"
        assert words in found.text


def test_a_time_out_says_what_each_rank_was_last_seen_doing(plan: Plan) -> None:
    last = ({"rank": 0, "t": 100.0, "phase": "steady", "step": 3}, {"rank": 1, "t": 40.0, "phase": "save", "step": 2})
    _, reason = judge(evidence(timed_out=True, exit_code=-9, last=last), plan)
    assert reason.code == "timeout"
    assert "rank 0 training, step 3; rank 1 saving, step 2, silent 60 s before the others" in reason.text


def test_rows_that_vanish_without_a_word_are_counted(plan: Plan) -> None:
    _, reason = judge(evidence(effective={**EFFECTIVE, "rows": 6}), plan)
    assert reason.code == "rows-dropped"
    assert "6 of the 8" in reason.text


def test_logits_to_keep_and_a_fused_loss_that_did_nothing_are_noticed(plan: Plan) -> None:
    """Whole rows of logits where the plan counts on the supervised ones, or on none at all."""
    whole = {"logits_rows": 77, "logits_dtype": "bfloat16", "row_tokens": 77, "needed_rows": 30}
    _, reason = judge(evidence(observed=whole), plan)
    assert reason.code == "silently-off"
    assert "all 77 positions of a row reach the vocabulary, 30 are needed" in reason.text
    assert judge(evidence(observed={**whole, "needed_rows": 77}), plan)[0] == "pass"  # nothing to leave out
    fused = replace(plan, effective=replace(plan.effective, loss="liger_fused"))
    _, reason = judge(evidence(), fused)
    assert "the fused loss is off: logits of 30 positions" in reason.text
    none = {**whole, "logits_rows": None, "logits_dtype": None}
    assert judge(evidence(observed=none), fused)[0] == "pass"


def test_the_engines_check_of_flags_is_told_from_other_errors(plan: Plan) -> None:
    log = (
        '  File "/v/site-packages/swift/arguments/sft_args.py", line 255, in _init_deepspeed\n'
        "ValueError: DeepSpeed is not compatible with `device_map`. n_gpu: 2, local_world_size: 1\n"
    )
    _, reason = judge(evidence(log, exit_code=1, steps=(), phase=None), plan)
    assert reason.code == "engine-arguments"
    assert "n_gpu: 2" in reason.text


def test_dying_without_a_word_is_unknown(plan: Plan) -> None:
    assert judge(evidence(exit_code=1, steps=(), phase="load"), plan)[0] == "unknown"


def test_the_missing_package_is_named_in_text_and_hint() -> None:
    reason = known_cause(scan("ModuleNotFoundError: No module named 'bitsandbytes.nn'"))
    assert reason is not None
    assert "'bitsandbytes.nn'" in reason.text or "bitsandbytes.nn" in reason.text
    assert reason.hints == ("pip install bitsandbytes",)


def test_every_known_cause_has_words_hints_and_a_source() -> None:
    assert len({(cause.code, cause.pattern) for cause in CAUSES}) == len(CAUSES) >= 20
    assert all(cause.text and cause.hints and cause.source for cause in CAUSES)
