"""The benchmark for a card, as far as a CPU goes: its points, budget, resume and table, and both kinds of children.

It has never run on a card; what is tried here is everything around the card.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jobs
import public_command
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_truth
from gpu_truth import POINTS, Bench, key, run

from swift_autobatch.process import ChildResult

SCRIPT = Path(gpu_truth.__file__)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.20 GiB is free."
)


def bench_at(folder: Path) -> Bench:
    env = jobs.environment(folder)
    return Bench(device="cpu", through="swift", work=folder, env=env, card="CPU", versions={"torch": "2.13.0"})


def line_of(spot: Bench, point: gpu_truth.Point, **more: Any) -> dict[str, Any]:
    said = {
        "allocated_bytes": 2**30,
        "reserved_bytes": 2**30,
        "driver_bytes": 2**31,
        "host_bytes": 2**30,
        "step_s": 1.0,
    }
    found = {**said, "host_bytes": 2**31, "step_s": 0.5}
    plain = {"schema": gpu_truth.SCHEMA, "key": key(spot, point), "id": point.id, "status": "measured", "seconds": 9.0}
    return {**plain, "predicted": said, "measured": found, **more}


def test_the_points_are_those_that_were_asked_for() -> None:
    assert len({point.id for point in POINTS}) == len(POINTS) >= 24
    assert sum(point.model == "7B" for point in POINTS) <= 4
    assert {point.tuner for point in POINTS} == {"lora", "full", "nf4"}
    assert {point.parallel for point in POINTS} == {"none", "zero2", "zero2_offload", "zero3", "zero3_offload"}
    assert {1024, 4096, 16384, 32768} <= {point.tokens for point in POINTS}
    assert {point.liger for point in POINTS} == {point.checkpointing for point in POINTS} == {True, False}


def test_what_is_measured_stays_and_nothing_begins_without_time(tmp_path: Path) -> None:
    spot, results = bench_at(tmp_path), tmp_path / "results.jsonl"
    first, second = POINTS[:2]
    results.write_text(json.dumps(line_of(spot, first)) + "\n" + json.dumps(line_of(spot, second))[:40])
    kept = run(spot, [first, second], results, budget_s=5.0)
    assert set(kept) == {key(spot, first)}  # the line that was cut off is none, and 5 s are too few to begin


def test_another_card_or_version_is_measured_anew(tmp_path: Path) -> None:
    spot = bench_at(tmp_path)
    other = Bench(device="cuda", through="swift", work=tmp_path, env=spot.env, card="RTX 4090", versions=spot.versions)
    newer = Bench(device="cpu", through="swift", work=tmp_path, env=spot.env, card="CPU", versions={"torch": "2.14.0"})
    assert len({key(one, POINTS[0]) for one in (spot, other, newer)}) == 3


def test_the_table_puts_predicted_beside_measured(tmp_path: Path) -> None:
    spot = bench_at(tmp_path)
    kept = {
        key(spot, POINTS[0]): line_of(spot, POINTS[0]),
        key(spot, POINTS[1]): line_of(spot, POINTS[1], status="out-of-memory", why=OOM),
    }
    text = gpu_truth.table(spot, POINTS[:3], kept)
    assert f"| {POINTS[0].id} | 1 / 2 (-50%) | 1 / 0.5 (+100%) |" in text
    assert f"| {POINTS[1].id} | out-of-memory: torch.OutOfMemoryError" in text
    assert f"| {POINTS[2].id} | not measured |" in text
    card = Bench(device="cuda", through="swift", work=tmp_path, env=spot.env, card="RTX 4090", versions=spot.versions)
    line = line_of(card, POINTS[0])
    assert "| 1 / 1 (+0%) | 1 / 1 (+0%) | 2 / 2 (+0%) |" in gpu_truth.table(card, POINTS[:1], {line["key"]: line})


def test_out_of_memory_is_a_result_and_a_crash_is_not(tmp_path: Path) -> None:
    (tmp_path / "autoswift").mkdir()
    log = tmp_path / "autoswift" / "swift.log"
    ended = ChildResult(exit_code=1, signal=None, timed_out=False, seconds=9.0)
    log.write_text(f"Traceback (most recent call last):\n  File x\n{OOM}\n")
    assert gpu_truth._outcome(tmp_path, ended)["status"] == "out-of-memory"
    log.write_text("Traceback (most recent call last):\n  File x\nValueError: no\n")
    assert gpu_truth._outcome(tmp_path, ended) == {"status": "failed", "measured": {}, "why": "ValueError: no"}


def called(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, str(SCRIPT), "--device", "cpu", *words)
    return subprocess.run(argv, cwd=folder, text=True, capture_output=True, timeout=300)


def test_wrong_words_are_answered_with_a_way_out(tmp_path: Path) -> None:
    assert "--list names them" in called(tmp_path, "--points", "8B-lora").stderr
    listed = called(tmp_path, "--list").stdout.split()
    assert listed == [point.id for point in POINTS]


@pytest.mark.engine
@pytest.mark.parametrize(("through", "point"), [("swift", "0.5B-lora-4k"), ("peft", "0.5B-full-4k-zero2")])
def test_a_point_from_end_to_end_and_never_twice(through: str, point: str, tmp_path: Path) -> None:
    words = ("--through", through, "--points", point, "-o", "results.jsonl")
    done = called(tmp_path, *words)
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines())
    assert (line["id"], line["status"], line["through"]) == (point, "measured", through), line
    assert line["point"]["tokens"] == 4096 // 32
    assert line["measured"]["step_s"] > 0
    assert 2e8 < line["measured"]["host_bytes"] < 8e9
    assert line["measured"]["allocated_bytes"] is None  # a CPU has no such meter
    assert f"| {point} |" in done.stdout
    assert "measured in" in done.stderr
    again = called(tmp_path, *words)
    assert "measured in" not in again.stderr
    assert again.stdout == done.stdout
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.engine
def test_a_point_that_takes_too_long_is_stopped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GPU_TRUTH_TEST", tmp_path.name)
    monkeypatch.chdir(tmp_path)
    spot = gpu_truth.bench("cpu", "swift", tmp_path)
    began = time.monotonic()
    line = gpu_truth.measure(spot, POINTS[0], timeout_s=3.0)
    assert (line["status"], line["why"]) == ("failed", "it took too long")
    assert time.monotonic() - began < 90
    assert public_command.alive(f"GPU_TRUTH_TEST={tmp_path.name}") == []  # our own environ is that of our start
