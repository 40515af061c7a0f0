"""Whole plans for machines that are not here, as the command line prints them: golden files, offline, without torch.

The dataset's rows are counted with a stand-in tokenizer in a model folder of the catalogue's own shape, so lengths
are exact. ``pytest --update-golden`` rewrites the files; the diff is for reading.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from goldens import Golden

from swift_autobatch import tables
from swift_autobatch.facts import embedded
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.model import read_model
from swift_autobatch.progress import Silent
from swift_autobatch.request import read_environment
from swift_autobatch.units import GB

QWEN7, QWEN32, LLAMA8 = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-32B-Instruct", "meta-llama/Meta-Llama-3-8B"


@dataclass(frozen=True)
class Scenario:
    """One command; ``tokens`` is the exact length of every row."""

    gpus: str
    model: str = QWEN7
    flags: tuple[str, ...] = ()
    tokens: int = 400
    exit_code: int = 0
    expect: dict[str, Any] = field(default_factory=dict)  # fields of the chosen candidate


SCENARIOS = {
    "1x4090-qwen7b": Scenario(
        "1x4090", expect={"tuner": "lora", "quant": "none", "torch_dtype": "bfloat16", "effective_batch": 16}
    ),
    "1x3090-llama8b-nf4": Scenario(
        "1x3090",
        LLAMA8,
        ("--quant_method", "bnb", "--quant_bits", "4", "--lora_rank", "64", "--lora_alpha", "16"),
        expect={"quant": "nf4", "lora_rank": 64, "effective_batch": 16},
    ),
    "1x3090-llama8b-offload": Scenario(
        "1x3090",
        LLAMA8,
        ("--strategy", "single-qlora-offload", "--lora_rank", "64", "--per_device_train_batch_size", "1"),
        tokens=1024,
        expect={"quant": "nf4", "parallel": "zero2_offload", "micro_batch": 1, "accumulation": 16},
    ),
    "1x3090-llama8b": Scenario("1x3090", LLAMA8, expect={"quant": "none", "effective_batch": 16}),
    "4xa100-full-7b": Scenario(
        "4xA100-80G",
        QWEN7,
        ("--tuner_type", "full", "--global-batch", "64"),
        expect={"tuner": "full", "effective_batch": 64},
    ),
    "8xh100-full-32b": Scenario(
        "8xH100", QWEN32, ("--tuner_type", "full"), expect={"tuner": "full", "parallel": "zero3"}
    ),
    "2x4090-qwen32b": Scenario("2x4090", QWEN32, expect={"tuner": "lora", "quant": "nf4"}),
    "1xt4-qwen7b": Scenario("1xT4", expect={"torch_dtype": "float16", "quant": "nf4"}),
    "3x4090-qwen7b": Scenario("3x4090", expect={"effective_batch": 18}),
    "1x4090-full-7b": Scenario("1x4090", QWEN7, ("--tuner_type", "full"), exit_code=3),
    "1x4090-full-7b-ram256": Scenario(
        "1x4090,ram=256", QWEN7, ("--tuner_type", "full"), expect={"parallel": "zero3_offload"}
    ),
    "1x4090-rows-of-2048": Scenario("1x4090", tokens=2048, expect={"micro_batch": 1, "accumulation": 16}),
    "1x4090-rows-of-2048-batch-2": Scenario(
        "1x4090", QWEN7, ("--per_device_train_batch_size", "2"), tokens=2048, expect={"quant": "nf4"}
    ),
    "1x4090-short-rows": Scenario("1x4090", tokens=100, expect={"quant": "none"}),
}


def model_folder(name: str, folder: Path) -> Path:
    """A folder with the catalogue's config.json and the stand-in tokenizer."""
    source = embedded.ensure_model(read_environment())
    target = folder / name.split("/")[1]
    target.mkdir()
    row = tables.models()[name.lower()]
    config = {**row.config, "architectures": [row.architecture], "torch_dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, target / file)
    return target


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    code = "import sys; from swift_autobatch.cli import main; sys.argv = ['autoswift', *sys.argv[1:]]; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def rows_of(tokens: int, model: Path, folder: Path) -> None:
    """Writes 64 rows of exactly ``tokens`` tokens, counted as the plan counts them."""
    env = read_environment()
    facts = read_model(str(model), env)
    path, length = folder / "rows.jsonl", tokens
    for _ in range(4):
        path.write_text((json.dumps({"query": "q", "response": "a" * length}) + "\n") * 64)
        longest = read_dataset((str(path),), facts, env, system=None, progress=Silent()).max_tokens
        if longest == tokens:
            return
        length += tokens - longest
    raise AssertionError(f"rows of {longest} tokens, wanted {tokens}")


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    scenario = SCENARIOS[request.node.callspec.params["name"]]
    model = model_folder(scenario.model, tmp_path)
    rows_of(scenario.tokens, model, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, project: Path, golden: Golden) -> None:
    scenario = SCENARIOS[name]
    model = "./" + scenario.model.split("/")[1]
    words = ("plan", "--gpus", scenario.gpus, "--model", model, "--dataset", "rows.jsonl", *scenario.flags)
    shown = run(*words, cwd=project)
    assert shown.returncode == scenario.exit_code, shown.stderr
    golden.check(f"scenarios/{name}.txt", (shown.stdout + shown.stderr).replace(str(project), "$PROJECT"))
    if scenario.exit_code:
        return
    document = json.loads(run(*words, "--json", cwd=project).stdout)
    chosen = document["candidate"]
    assert {key: chosen[key] for key in scenario.expect} == scenario.expect
    prediction = document["prediction"]
    assert prediction["fits"]
    assert prediction["demand_bytes"] <= prediction["budget_bytes"]


@pytest.mark.parametrize("name", ["1x3090-llama8b-offload", "1x3090-llama8b-nf4"])
def test_case_2_of_the_articles_stays_under_22_gb(name: str, project: Path) -> None:
    scenario = SCENARIOS[name]
    done = run(
        "plan",
        "--gpus",
        scenario.gpus,
        "--model",
        "./" + scenario.model.split("/")[1],
        "--dataset",
        "rows.jsonl",
        *scenario.flags,
        "--json",
        cwd=project,
    )
    assert json.loads(done.stdout)["prediction"]["driver_bytes"] < 22 * GB


def test_two_by_eight_at_2048_is_refused_in_16_bit(tmp_path: Path) -> None:
    """Case 1: batch 2 needed 23.6 GB on the 24 GB card and did not survive."""
    model = model_folder(QWEN7, tmp_path)
    rows_of(2048, model, tmp_path)
    done = run(
        "plan",
        "--gpus",
        "1x4090D",
        "--model",
        f"./{model.name}",
        "--dataset",
        "rows.jsonl",
        "--strategy",
        "single-lora",
        "--per_device_train_batch_size",
        "2",
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stdout + done.stderr
