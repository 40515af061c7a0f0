"""The embedded demonstration: built without torch, the same bytes every time, and really learnt by the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import environment

from swift_autobatch.errors import MachineError
from swift_autobatch.facts import embedded

BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from builders import environment
from swift_autobatch.facts import embedded
print(embedded.ensure_model(environment(Path(sys.argv[1]))))
assert not {{"torch", "transformers", "swift"}} & set(sys.modules)
"""


def test_dataset_is_complete_and_bilingual() -> None:
    rows = json.loads(embedded.default_dataset().read_text(encoding="utf-8"))
    assert len(rows) == 50
    assert all(set(row) == {"instruction", "input", "output"} and row["output"] for row in rows)
    questions = [row["instruction"] for row in rows]
    assert {"who are you?", "你是谁?", "who created you?"} <= set(questions)
    assert all("Ember" in row["output"] for row in rows)
    assert sum(not question.isascii() for question in questions) == 25


def test_built_twice_the_same_bytes_without_torch(tmp_path: Path) -> None:
    code = BUILD.format(tests=str(Path(__file__).parents[1]))
    folders = []
    for name in ("one", "two"):
        run = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        folders.append(Path(run.stdout.strip()))
    assert folders[0].name == folders[1].name == f"qwen2-tiny-{embedded.version_digest()}"
    files = sorted(path.name for path in folders[0].iterdir())
    assert files == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in files:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_second_call_builds_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)
    folder = embedded.ensure_model(env)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert embedded.ensure_model(env) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder], "no scratch folder is left"


def test_config_and_tokenizer_agree(tmp_path: Path) -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = embedded.ensure_model(environment(tmp_path))
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    assert config["dtype"] == "float32"
    assert tokenizer.get_vocab_size() <= config["vocab_size"]
    assert [tokenizer.token_to_id(token) for token in embedded.SPECIAL_TOKENS] == [0, 1, 2]
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert weights["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert {str(tensor.dtype) for tensor in weights.values()} == {"float32"}
    assert 3e6 < sum(tensor.size for tensor in weights.values()) < 4e6
    for text in ("who are you?", "你是谁?", "unseen: naïve 🙂\n"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_unwritable_cache_is_an_error_with_a_hint(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".cache").write_text("a file where a folder should be")
    with pytest.raises(MachineError) as caught:
        embedded.ensure_model(env)
    assert caught.value.exit_code == 5
    assert "XDG_CACHE_HOME" in caught.value.hints[0]


@pytest.mark.engine
def test_the_engine_learns_it_and_answers(tmp_path: Path) -> None:
    """``swift sft`` with DEFAULTS, then ``swift infer``: both languages are answered with the trained words."""
    folder, out = embedded.ensure_model(environment(tmp_path)), tmp_path / "out"
    swift = str(Path(sys.executable).with_name("swift"))
    kind = ["--model_type", embedded.SWIFT_MODEL_TYPE, "--template", embedded.SWIFT_TEMPLATE]
    defaults = [word for flag, (value, _) in embedded.DEFAULTS.items() for word in (f"--{flag}", value)]
    env = {**os.environ, "MODELSCOPE_CACHE": str(tmp_path / "modelscope"), "HF_HUB_OFFLINE": "1"}
    train = [swift, "sft", "--model", str(folder), *kind, "--dataset", str(embedded.default_dataset()), *defaults]
    train += "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --max_length 256 --use_cpu true".split()
    train += "--fp16 false --bf16 false --check_model false --report_to none --add_version false".split()
    train += f"--gradient_checkpointing false --warmup_ratio 0.05 --save_only_model true --output_dir {out}".split()
    done = subprocess.run(train, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    logged = [json.loads(line) for line in (out / "logging.jsonl").read_text().splitlines()]
    assert [row["token_acc"] for row in logged if "token_acc" in row][-1] > 0.95

    checkpoint = next(out.glob("checkpoint-*"))
    rows = json.loads(embedded.default_dataset().read_text(encoding="utf-8"))
    asked = {row["instruction"]: row["output"] for row in rows if row["instruction"] in ("who are you?", "你是谁?")}
    questions = [json.dumps({"messages": [{"role": "user", "content": question}]}) for question in asked]
    (tmp_path / "q.jsonl").write_text("\n".join(questions))
    infer = [swift, "infer", "--model", str(checkpoint), *kind, "--val_dataset", str(tmp_path / "q.jsonl")]
    infer += (
        f"--max_new_tokens 64 --temperature 0 --infer_backend transformers --result_path {tmp_path}/r.jsonl".split()
    )
    done = subprocess.run(infer, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line)["response"] for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert answers == list(asked.values())
