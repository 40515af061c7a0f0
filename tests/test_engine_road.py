"""The whole road through the public command on the embedded default: trained, refused, killed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import public_command
import pytest

pytestmark = pytest.mark.engine


def test_the_default_is_proved_trained_and_asked(tmp_path: Path, isolated_home: Path) -> None:
    """``autoswift sft`` and nothing else: about 60 s on 2 cores."""
    done = public_command.run(tmp_path, "sft", timeout_s=600)
    assert done.exit_code == 0, done.stderr
    folder = done.run_folder()
    assert [path.name for path in folder.glob("autoswift/receipt*.json")] == ["receipt.json"]
    receipt = json.loads((folder / "autoswift" / "receipt.json").read_text())
    assert (receipt["verdict"], receipt["child_exit"], receipt["training"]["done"]) == ("pass", 0, True)
    kept = list(isolated_home.glob(".local/state/autoswift/receipts/*/*.json"))
    assert [json.loads(path.read_text()) for path in kept] == [receipt]
    assert list(folder.glob("checkpoint-*/*.safetensors"))
    accuracies = [row["token_acc"] for row in _rows(folder / "logging.jsonl") if "token_acc" in row]
    assert accuracies[-1] > 0.95
    answers = receipt["training"]["answers"]
    assert [answer["question"] for answer in answers] == ["who are you?", "你是谁?"]
    assert all(answer["matches"] for answer in answers)
    assert "What it answers (2 of 2 as trained)" in done.stdout
    for answer in answers:
        assert f"as trained: {answer['expected']}" in done.stdout
    assert "demonstration" in done.stderr
    assert f"swift infer --model {receipt['training']['checkpoint']}" in done.stdout


def test_a_learning_rate_of_1e20_is_refused_and_nothing_is_launched(tmp_path: Path) -> None:
    done = public_command.run(tmp_path, "sft", "--learning_rate", "1e20")
    _refused(done, "nan-loss")
    assert "step 2 of 2" in done.stderr
    assert "hint: --learning_rate" in done.stderr


def test_a_dataset_whose_every_label_is_masked_is_refused(tmp_path: Path) -> None:
    rows = ({"messages": [{"role": "user", "content": f"hello there {number}"}]} for number in range(12))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = public_command.run(tmp_path, "sft", "--dataset", "rows.jsonl")
    _refused(done, "zero-loss")
    assert "every label is masked" in done.stderr


def test_fsdp2_leaves_a_model_that_swift_infer_loads(tmp_path: Path) -> None:
    """Sharded checkpoints hold no model; the last paragraph's command must be true of every strategy."""
    words = ("--strategy", "multi-fsdp2", "--nproc", "2", "--max_steps", "2", "--skip-dry-run")  # step 2 is not logged
    done = public_command.run(tmp_path, "sft", *words)
    assert done.exit_code == 0, done.stderr
    training = public_command.receipt(done)["training"]
    assert (Path(training["checkpoint"]) / "model.safetensors").is_file()
    assert training["steps"] == 2
    assert "2 steps in" in done.stdout
    assert len(training["answers"]) == 2  # swift infer loaded it
    assert all(answer["answer"] for answer in training["answers"])


def test_sigkill_of_autoswift_leaves_no_trainer_alive(tmp_path: Path) -> None:
    mark = f"TEST_MARK={tmp_path}"
    words = ("sft", "--skip-dry-run", "--num_train_epochs", "2000")
    command = subprocess.Popen(
        (str(public_command.AUTOSWIFT), *words),
        cwd=tmp_path,
        env={**os.environ, "TEST_MARK": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 240
        while not _made_a_step(tmp_path):
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(public_command.alive(mark)) >= 4  # autoswift, its guardian, swift, the trainer
    finally:
        command.kill()
        command.wait()
    deadline = time.monotonic() + 30
    while public_command.alive(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert public_command.alive(mark) == []


def _made_a_step(project: Path) -> bool:
    return any('"event": "step"' in path.read_text() for path in project.glob("output/*/*/autoswift/telemetry-0.jsonl"))


def _refused(done: public_command.Done, code: str) -> None:
    """Exit 4, one error, a receipt that says why, and no engine run beside the gate's."""
    assert done.exit_code == 4, done.stderr
    assert done.stderr.count("error:") == 1
    assert f"reason {code}" in done.stderr
    assert done.stdout == ""
    receipt = public_command.receipt(done)
    assert (receipt["verdict"], receipt["reason"]["code"], receipt["training"]) == ("fail", code, None)
    assert receipt["child_exit"] == 0  # the engine itself is content
    folder = done.run_folder()
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("launch.json")] == [
        "autoswift/gate/1/autoswift/launch.json"
    ]
    assert not (folder / "logging.jsonl").exists()
    assert not list(folder.glob("checkpoint-*"))


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_questions_that_fail_leave_the_training_done(tmp_path: Path) -> None:
    """A plugin that stops ``swift infer``: the model cannot be asked, the training and its receipt stand."""
    (tmp_path / "only_sft.py").write_text(
        "import sys\nif any(word.endswith('infer.py') for word in sys.argv):\n    raise SystemExit('no infer here')\n"
    )
    done = public_command.run(
        tmp_path, "sft", "--skip-dry-run", "--max_steps", "2", "--external_plugins", "only_sft.py"
    )
    assert done.exit_code == 0, done.stderr
    assert "gave 0 of 2 answers" in done.stderr
    assert (done.run_folder() / "autoswift" / "receipt.json").is_file()
