"""Scripts of the kinds people keep: 62 jobs in today's, 3.x and 2.x names, bash, cmd, torchrun, YAML.

``scripts.json`` says what each one asks for; where its author measured an exact case, the figure stands there too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch import review
from swift_autobatch.adopt import read
from swift_autobatch.recipe import read_recipe
from swift_autobatch.request import build_request
from tests import builders

HERE = Path(__file__).parent
JOBS: list[dict[str, Any]] = json.loads((HERE / "scripts.json").read_text())
EXACT = [job for job in JOBS if job["exact_gib"]]


def named(job: Mapping[str, Any]) -> str:
    return str(job["file"])


def one(flags: Mapping[str, Any], name: str) -> str | None:
    return flags[name].words[0] if name in flags else None


def test_every_script_is_in_the_table() -> None:
    assert len(JOBS) == 62
    assert {job["file"] for job in JOBS} == {path.name for path in (HERE / "scripts").iterdir()}


@pytest.mark.parametrize("job", JOBS, ids=named)
def test_a_script_is_read_as_it_is_meant(job: Mapping[str, Any]) -> None:
    found = read(HERE / "scripts" / job["file"], job["file"])
    assert not [finding for finding in found.findings if finding.level == "error"]
    flags = found.flags
    assert one(flags, "model") == job["model"]
    assert one(flags, "tuner_type") == job["tuner"]
    assert one(flags, "per_device_train_batch_size") == str(job["micro_batch"])
    assert one(flags, "gradient_accumulation_steps") == (str(job["accumulation"]) if job["accumulation"] else None)
    assert one(flags, "max_length") == (str(job["max_length"]) if job["max_length"] else None)
    assert ("quant_bits" in flags) == job["quantised"]
    assert one(flags, "torch_dtype") == "bfloat16"
    zero = job["parallel"] if str(job["parallel"]).startswith("zero") else None
    assert one(flags, "deepspeed") == zero
    assert found.nproc == job["nproc"]


@pytest.mark.parametrize("job", JOBS, ids=named)
def test_an_imported_script_is_a_recipe_that_says_the_same(job: Mapping[str, Any], tmp_path: Path) -> None:
    env = builders.environment(tmp_path)
    target = tmp_path / "recipe.yaml"
    review.import_file(str(HERE / "scripts" / job["file"]), str(target), env)
    first = read_recipe(target)
    assert first.request["model"] == job["model"]
    again = tmp_path / "again.yaml"
    review.import_file(str(target), str(again), env)
    second = read_recipe(again)
    assert (second.request, second.flags) == (first.request, first.flags)


@pytest.mark.parametrize("job", EXACT, ids=named)
def test_memory_of_an_exact_case_is_within_15_percent_of_its_header(job: Mapping[str, Any], tmp_path: Path) -> None:
    env = builders.environment(tmp_path)
    options = {"gpus": f"{job['gpus']}xH100,ram=2048"}
    if job["nproc"] is None:
        options["nproc"] = str(job["gpus"])
    found = review.review(str(HERE / "scripts" / job["file"]), options, env)
    assert found.as_written is not None, found.why
    prediction = found.as_written.prediction
    reserved = prediction.driver_bytes - prediction.context_bytes - prediction.nccl_bytes
    assert reserved / 2**30 == pytest.approx(job["exact_gib"], rel=0.15)


def test_our_own_script_comes_back_as_the_plan_it_was_written_from(tmp_path: Path) -> None:
    from swift_autobatch import api

    (tmp_path / "rows.jsonl").write_text('{"query": "who are you?", "response": "a helper"}\n' * 40)
    env = replace(builders.environment(tmp_path), cwd=str(tmp_path))
    options = {"gpus": "4x4090", "dataset": "rows.jsonl"}
    first = api.plan(build_request(options, (), env), env)
    api.render_files(build_request(options, (), env), env, tmp_path / "out")
    target = tmp_path / "recipe.yaml"
    review.import_file("out/autoswift/run.sh", "recipe.yaml", env)
    second = api.plan(build_request({"gpus": "4x4090", "recipe": str(target)}, (), env), env)
    same = {name: value.value for name, value in first.engine_args.items()}
    assert {name: value.value for name, value in second.engine_args.items()} == same
    assert replace(second.candidate, strategy="") == replace(first.candidate, strategy="")
