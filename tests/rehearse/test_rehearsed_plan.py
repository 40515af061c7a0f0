"""What becomes of a plan on CPU processes, and that every difference is on the list; the engine is not started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest

from swift_autobatch import api, rehearse
from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.progress import Silent
from swift_autobatch.rehearse import rows
from swift_autobatch.rehearse.plan import in_small
from swift_autobatch.request import build_request
from swift_autobatch.strategies import shipped_folder


def made(project: Path, word: str | None, **flags: Any) -> rehearse.Rehearsal:
    """The rehearsal of ``autoswift rehearse WORD FLAGS``."""
    env = jobs.environment(project)
    wanted = rehearse.target(word, build_request(flags, (), env), env)
    asked, facts = api.read_facts(wanted.request, env, Silent())
    facts = rehearse.assume_kernels(facts, wanted.strategy)
    real = api.committed.decide(asked, facts, wanted.table, env, Silent())
    return rehearse.rehearsal(real, asked, project / "run", env, Silent())


def differences(found: rehearse.Rehearsal) -> dict[str, tuple[str, str]]:
    return {one.what: (one.real, one.here) for one in found.differences}


@pytest.mark.parametrize(
    ("real", "here"),
    [
        ({"world": 1}, (1, 1, 1, 1)),
        ({"world": 8}, (4, 4, 1, 1)),
        ({"world": 8, "sp": 2}, (4, 2, 2, 1)),
        ({"world": 8, "sp": 8}, (4, 1, 4, 1)),
        ({"world": 8, "tp": 4}, (4, 1, 1, 4)),
        ({"world": 3}, (3, 3, 1, 1)),
    ],
)
def test_at_most_four_processes(real: dict[str, int], here: tuple[int, ...]) -> None:
    small = in_small(jobs.candidate(device="gpu", parallel="ddp", **real))
    assert (small.world, small.dp, small.sp, small.tp) == here


def test_what_a_cpu_cannot_do_is_done_otherwise() -> None:
    real = jobs.candidate(torch_dtype="float16", optim="paged_adamw_8bit", liger=True, micro_batch=16, accumulation=8)
    small = in_small(real)
    assert (small.torch_dtype, small.optim, small.liger) == ("float32", "adamw_torch", False)
    assert (small.micro_batch, small.accumulation) == (2, 2)


def test_every_other_flag_is_the_real_one(tmp_path: Path) -> None:
    found = made(tmp_path, "multi-zero2", lora_rank="64", learning_rate="3e-5", gpus="8x4090", lora_alpha="128")
    real, here = found.real.engine_args, found.plan.engine_args
    for flag in ("lora_rank", "learning_rate", "lora_alpha", "deepspeed", "tuner_type", "target_modules", "save_steps"):
        assert here[flag] == real[flag]
    listed = set(differences(found))
    quiet = {"output_dir", "external_plugins", "callbacks", "check_model", "model_type", "template"}
    for flag in {*real, *here} - quiet:
        same = flag in real and flag in here and real[flag].value == here[flag].value
        assert same or f"--{flag}" in listed, flag
    assert differences(found)["device"] == ("8 x GeForce RTX 4090", "CPU, 4 x process")
    assert differences(found)["collectives"] == ("NCCL", "gloo")


def test_the_engines_own_packing_runs_on_a_stand_in_kernel(tmp_path: Path) -> None:
    found = made(tmp_path, "packing")
    assert found.plan.engine_args["packing"].value == "true"
    assert found.plan.engine_args["attn_impl"].value == "flash_attention_2"
    assert found.plan.engine_args["external_plugins"].value[-1].endswith("cpu_flash.py")
    assert differences(found)["attention kernel"][0] == "flash_attention_2"
    assert any("flash-attn" in one for one in found.real.facts.machine.assumed)


def test_an_8_bit_optimizer_and_half_precision_are_told(tmp_path: Path) -> None:
    found = made(tmp_path, "single-lora", gpus="1xV100-32G", optim="paged_adamw_8bit")
    listed = differences(found)
    assert listed["--torch_dtype"] == ("float16", "float32")
    assert listed["--optim"] == ("paged_adamw_8bit", "adamw_torch")


def test_adapters_of_the_real_widths_are_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    found = made(tmp_path, "single-lora", adapters=str(tmp_path / "adapter"))
    assert "adapters" in found.real.engine_args
    assert differences(found)["--adapters"][1] == "-"


def test_long_rows_are_cut_and_that_is_told(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(jobs.turn("Tell me.", "words " * 400)) + "\n" for _ in range(20)))
    found = made(tmp_path, "single-lora", dataset=str(file))
    assert found.plan.candidate.max_length == 1024
    assert differences(found)["--truncation_strategy"] == ("-", "left")


def test_first_rows_are_short_ones_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    made_up = [jobs.turn(f"{number}", "word " * (number % 50)) for number in range(400)]
    file.write_text("".join(json.dumps(row) + "\n" for row in made_up))
    kept = [json.loads(line) for line in rows.first_rows((str(file),)).splitlines()]
    assert len(kept) == 32
    assert all(row in made_up[:256] for row in kept)
    assert max(len(json.dumps(row)) for row in kept) < 150
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no row to rehearse with"):
        rows.first_rows((str(tmp_path / "empty.jsonl"),))


def test_a_project_recipe_is_rehearsed_for_its_own_machine(tmp_path: Path) -> None:
    env = jobs.environment(tmp_path)
    request = build_request({"gpus": "4x4090,ram=256", "save_recipe": "mine.yaml", "dataset": _rows(tmp_path)}, (), env)
    decided = api.plan(request, env)
    wanted = rehearse.target(None, build_request({"recipe": "mine.yaml"}, (), env), env)
    asked, facts = api.read_facts(wanted.request, env, Silent())
    assert facts.machine.machine_class == decided.machine_class
    again = api.committed.decide(asked, facts, wanted.table, env, Silent())
    assert again.candidate == decided.candidate
    assert wanted.name == "mine"


def test_a_recipe_for_mixed_cards_asks_for_the_machine(tmp_path: Path) -> None:
    env = jobs.environment(tmp_path)
    api.plan(build_request({"gpus": "2x4090", "save_recipe": "mine.yaml", "dataset": _rows(tmp_path)}, (), env), env)
    request = build_request({"recipe": "mine.yaml"}, (), env)
    assert request.recipe is not None
    mixed = replace(request.recipe, machine_class="1xa+1xb-24-ram64")
    with pytest.raises(UsageError) as error:
        rehearse.target(None, replace(request, recipe=mixed), env)
    assert "--hardware FILE" in error.value.hints[0]


def test_two_strategies_are_one_too_many(tmp_path: Path) -> None:
    env = jobs.environment(tmp_path)
    with pytest.raises(UsageError) as error:
        rehearse.target("packing", build_request({"strategy": "multi-ddp"}, (), env), env)
    assert error.value.hints == ("autoswift rehearse packing", "autoswift rehearse multi-ddp")


def test_megatron_is_refused_by_its_rule(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not rendered by this version"):
        made(tmp_path, "megatron")


def test_a_refusal_speaks_of_the_recipe_that_was_named(tmp_path: Path) -> None:
    env = jobs.environment(tmp_path)
    with pytest.raises(UsageError) as error:
        api.rehearsed("multi-zero2", build_request({"nproc": "1"}, (), env), env)
    assert error.value.where == "multi-zero2"
    assert error.value.hints[0] == "'autoswift recipes show multi-zero2' says for which machines and tuners it is"
    text = (shipped_folder() / "tensor-parallel.yaml").read_text(encoding="utf-8")
    broken = text.replace("name: tensor-parallel", "name: mine").replace("[zero1, zero2]", "[zero3]")
    (tmp_path / "mine.yaml").write_text(broken, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        api.rehearsed("mine.yaml", build_request({}, (), env), env)
    assert error.value.where == "mine.yaml"
    assert "change what the sentence names in mine.yaml" in error.value.hints
    assert not [hint for hint in error.value.hints if hint.startswith(("--fix", "drop --strategy"))]


def _rows(project: Path) -> str:
    return jobs.write_rows(project).files[0]
