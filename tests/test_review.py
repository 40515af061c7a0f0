"""What `check` says of a job on a named machine, and what `import` refuses to take over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swift_autobatch import api, review
from swift_autobatch.cli import main
from swift_autobatch.errors import UsageError
from swift_autobatch.progress import Stderr
from swift_autobatch.records import Environment
from swift_autobatch.request import build_request
from tests import builders

SMALL = "swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset rows.jsonl --max_length 2048 "


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    (tmp_path / "rows.jsonl").write_text('{"query": "who are you?", "response": "a helper"}\n' * 64)
    return replace(builders.environment(tmp_path), cwd=str(tmp_path))


def reviewed(env: Environment, script: str, gpus: str) -> review.Review:
    Path(env.cwd, "job.sh").write_text(script + "\n")
    return review.review("job.sh", {"gpus": gpus}, env)


def test_what_a_script_leaves_open_is_the_engines_default_and_nothing_else(env: Environment) -> None:
    found = reviewed(env, SMALL, "1x4090")
    assert found.as_written is not None
    chosen = found.as_written.candidate
    assert (chosen.quant, chosen.parallel, chosen.micro_batch, chosen.accumulation) == ("none", "none", 1, 16)
    assert (chosen.gradient_checkpointing, chosen.liger, chosen.optim) == (True, False, "adamw_torch_fused")
    assert found.runs


def test_a_job_that_does_not_fit_is_said_to_not_fit_and_never_planned_in_4_bits(env: Environment) -> None:
    found = reviewed(env, SMALL.replace("7B", "32B"), "1x4090")
    assert found.as_written is None
    assert found.runs is False
    assert found.why.startswith("nothing fits")
    assert found.own is None or found.own.candidate.quant != "none"


def test_no_row_is_cut_that_the_script_does_not_cut(env: Environment) -> None:
    rows = [{"query": "q", "response": "word " * length} for length in (30, 30, 30, 6000)]
    Path(env.cwd, "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 10))
    found = reviewed(env, SMALL.replace("--max_length 2048 ", ""), "1xH100")
    assert found.as_written is not None
    assert found.as_written.candidate.max_tokens > 5000


def test_a_script_without_a_count_of_processes_is_one_process(env: Environment) -> None:
    found = reviewed(env, SMALL, "4x4090")
    assert found.as_written is not None
    assert found.own is not None
    assert (found.as_written.candidate.world, found.own.candidate.world) == (1, 4)
    assert any("NPROC_PER_NODE is not set" in line for line in found.assumed)


def test_more_processes_than_cards_is_said_and_the_rest_of_the_review_is_kept(env: Environment) -> None:
    found = reviewed(env, f"NPROC_PER_NODE=8 {SMALL} --lora_rnk 8", "4x4090")
    assert found.as_written is None
    assert found.why == "it starts 8 processes, one a card, and there are 4"
    assert found.runs is False
    assert found.own is not None
    assert found.own.candidate.world == 4
    assert any("--lora_rnk" in one.text for one in found.adopted.findings)


def test_cards_that_a_script_hides_are_not_used(env: Environment) -> None:
    found = reviewed(env, f"CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 {SMALL}", "4x4090")
    assert found.as_written is not None
    assert found.own is not None
    assert (found.as_written.candidate.world, found.own.candidate.world) == (2, 2)


def test_the_model_is_read_once(env: Environment) -> None:
    Path(env.cwd, "job.sh").write_text(SMALL.replace("rows.jsonl", "absent.jsonl") + "\n")
    lines: list[str] = []
    found = review.review("job.sh", {"gpus": "1x4090"}, env, Stderr(lines.append, terminal=False))
    assert any("the rows are not at hand" in line for line in found.assumed)
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("script", "gpus", "code"),
    [
        (SMALL, "1x4090", 0),
        (SMALL.replace("7B", "32B"), "1x4090", 2),
        (f"{SMALL} --packing true", "1x4090", 2),
        (f"{SMALL} --lora_rnk 8", "1x4090", 2),
        (f"NPROC_PER_NODE=8 {SMALL}", "4x4090", 2),
    ],
)
def test_check_exits_2_where_the_job_would_not_run(
    env: Environment, monkeypatch: pytest.MonkeyPatch, script: str, gpus: str, code: int
) -> None:
    Path(env.cwd, "job.sh").write_text(script + "\n")
    monkeypatch.chdir(env.cwd)
    with pytest.raises(SystemExit) as ended:
        main(["check", "job.sh", "--gpus", gpus])
    assert ended.value.code == code


def test_import_writes_nothing_where_a_line_cannot_be_taken_over(env: Environment) -> None:
    Path(env.cwd, "job.sh").write_text("swift sft --model m --dataset $ROWS_OF_NOBODY --lora_rnk 8\n")
    with pytest.raises(UsageError) as raised:
        review.import_file("job.sh", "r.yaml", env)
    assert "line 1: --dataset $ROWS_OF_NOBODY" in raised.value.figures
    assert not Path(env.cwd, "r.yaml").exists()
    path, _ = review.import_file("job.sh", "r.yaml", env, force=True)
    assert "$" not in path.read_text()


def test_segments_are_fixed_where_nobody_says_otherwise(env: Environment) -> None:
    rows = [{"query": "q", "response": "word " * length} for length in range(20, 900, 40)]
    Path(env.cwd, "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    silent = reviewed(env, SMALL, "1xH100").as_written
    asked = reviewed(env, f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {SMALL}", "1xH100").as_written
    assert silent is not None
    assert asked is not None
    assert silent.prediction.replay is not None
    assert asked.prediction.replay is not None
    assert (silent.prediction.replay.expandable, asked.prediction.replay.expandable) == (False, True)
    assert silent.prediction.driver_bytes > asked.prediction.driver_bytes


def test_a_job_without_model_or_data_would_not_run(env: Environment) -> None:
    found = reviewed(env, "swift sft --tuner_type lora --max_length 512", "1x4090")
    errors = [one.text for one in found.adopted.findings if one.level == "error"]
    assert [text.partition(",")[0] for text in errors] == ["there is no --model", "there is no --dataset"]


def test_a_committed_decision_is_costed_as_it_was_decided(env: Environment) -> None:
    job = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--dataset", "rows.jsonl")
    asked = build_request({"gpus": "4x4090", "save_recipe": "recipe.yaml"}, job, env)
    decided = api.plan(asked, env)
    found = review.review("recipe.yaml", {"gpus": "4x4090"}, env)
    assert found.as_written is not None, found.why
    assert found.as_written.candidate == decided.candidate
    assert found.as_written.prediction == decided.prediction
