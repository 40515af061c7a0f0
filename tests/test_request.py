"""Flags, environment, recipe and defaults into one Request, each value with its source."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.engine_flags import parse
from swift_autobatch.errors import UsageError
from swift_autobatch.records import Environment, Request, Sourced
from swift_autobatch.request import OPTIONS, build_request, read_environment
from swift_autobatch.tables import dialect


def environment(variables: Mapping[str, str] | None = None, cwd: str = "/") -> Environment:
    return Environment(
        variables=variables or {}, cwd=cwd, home="/h", cache_dir="/h/c", state_dir="/h/s", interpreter="python3"
    )


def request(line: str = "", variables: Mapping[str, str] | None = None, **options: Any) -> Request:
    return build_request(options, shlex.split(line), environment(variables))


def error(line: str = "", variables: Mapping[str, str] | None = None, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        request(line, variables, **options)
    assert caught.value.exit_code == 2
    assert caught.value.hints, "every usage error has a hint"
    return caught.value


# ----------------------------------------------------------------------------------------------------- spelling


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--max_length 2048", "max_length", "2048"),
        ("--max-length 2048", "max_length", "2048"),
        ("--max-length=2048", "max_length", "2048"),
        ("--max_steps -1", "max_steps", "-1"),
        ("--learning_rate 1e20", "learning_rate", "1e20"),
        ("--packing", "packing", "true"),
        ("--packing True", "packing", "true"),
        ("--packing 0", "packing", "false"),
        ("--no_gradient_checkpointing", "gradient_checkpointing", "false"),
        ("--no-packing", "packing", "false"),
        ("--target_modules q_proj k_proj", "target_modules", ("q_proj", "k_proj")),
        ("--target_modules=q_proj", "target_modules", ("q_proj",)),
        ("--system=", "system", ""),
        ("--system 'you are here'", "system", "you are here"),
        ("--system=--odd", "system", "--odd"),
        ("--model_kwargs '{\"a\": 1}'", "model_kwargs", '{"a": 1}'),
        ("--adalora_deltaT 2", "adalora_deltaT", "2"),
        ("--deepspeed zero3_offload", "deepspeed", "zero3_offload"),
        ('--deepspeed \'{"train_batch_size": "auto"}\'', "deepspeed", '{"train_batch_size": "auto"}'),
        ("--quant_bits 4", "quant_bits", "4"),
    ],
)
def test_engine_flags_pin(line: str, name: str, value: str | tuple[str, ...]) -> None:
    assert request(line).pins == {name: Sourced(value=value, source=f"flag --{name}")}


def test_model_dataset_and_output_dir_fill_their_own_fields() -> None:
    asked = request("--model Qwen/Qwen2.5-7B-Instruct --dataset a.json b.jsonl --output_dir out")
    assert asked.pins == {}
    assert asked.model == Sourced(value="Qwen/Qwen2.5-7B-Instruct", source="flag --model")
    assert asked.datasets == Sourced(value=("a.json", "b.jsonl"), source="flag --dataset")
    assert asked.output_dir == Sourced(value="out", source="flag --output_dir")


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("--max_lenght 1", "--max_lenght", "--max_length"),
        ("--train_type lora", "--train_type does not exist in ms-swift 4.6.0", "--tuner_type"),
        ("--sft-type=lora", "--sft_type", "--tuner_type"),
        ("--model_id_or_path x", "--model_id_or_path", "--model"),
        ("--quantization_bit 4", "--quantization_bit", "--quant_method bnb --quant_bits 4"),
        ("--use_flash_attn true", "--use_flash_attn", "--attn_impl flash_attn"),
        ("--dtype bf16", "--dtype", "--torch_dtype"),
        ("--lora_target_modules ALL", "--lora_target_modules", "--target_modules"),
        ("--batch_size 2", "--batch_size", "--per_device_train_batch_size"),
        ("--dataset_test_ratio 0.1", "--dataset_test_ratio", "--split_dataset_ratio"),
        ("--gradient_acc 4", "abbreviation", "--gradient_accumulation_steps"),
        ("--global 4", "abbreviation", "--global-batch"),
        ("--max_length 1 --max-length 2", "given twice", "one of them"),
        ("--max_length", "needs a value", "--max_length"),
        ("--dataset ''", "is given an empty value", "--dataset"),
        ("--model=", "is given an empty value", "--model"),
        ("--dataset", "needs a value", "--dataset"),
        ("--max_length 1 2", "takes one value", "quotes"),
        ("--max_length x", "needs a whole number", "--max_length"),
        ("--max_length 1.5", "needs a whole number", "--max_length"),
        ("--max_length 0", "at least 1", "--max_length"),
        ("--learning_rate fast", "needs a number", "--learning_rate"),
        ("--learning_rate nan", "needs a number", "--learning_rate"),
        ("--packing maybe", "true or false", "--packing true"),
        ("--no_packing true", "takes no value", "--packing false"),
        ("--torch_dtype bf16", "does not know 'bf16'", "bfloat16"),
        ("--tuner_type qlora", "'qlora'", "--quant_method bnb"),
        ("--optim bogus", "does not know 'bogus'", "adamw_torch"),
        ("--model_kwargs \"{'a': 1}\"", "not valid JSON", "double quotes"),
        ("--deepspeed zero5", "zero5", "zero3"),
        ("--deepspeed default-zero2", "default-zero2", "--deepspeed zero2"),
        ("--external_plugins nowhere.py", "no such file", "path"),
        ("--resume_from_checkpoint nowhere", "no such file", "path"),
        ("--add_version false", "not yours to set", "--output-dir"),
        ("rows.json", "unexpected word 'rows.json'", "--dataset rows.json"),
        ("--packing=true rows.json", "unexpected word 'rows.json'", "--packing"),
        ("-x", "no such option", "two dashes"),
    ],
)
def test_refusals_name_the_flag_and_the_fix(line: str, what: str, hint: str) -> None:
    refused = error(line)
    assert what in refused.what
    assert hint in "\n".join(refused.hints)


def test_a_deepspeed_file_is_found_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    asked = build_request({}, ["--deepspeed", "ds.json"], environment(cwd=str(tmp_path)))
    assert asked.pins["deepspeed"].value == "ds.json"


@given(st.sampled_from(sorted(dialect().flags)), st.text(max_size=8))
def test_any_word_is_read_or_refused_with_the_flag_named(name: str, word: str) -> None:
    refused = None
    try:
        found = parse([f"--{name}={word}"], dialect())
    except UsageError as caught:
        refused = caught
    if refused is None:
        assert list(found) == [name]
    else:
        assert name in refused.what
        assert refused.hints


@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_command_line_raises_anything_but_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        build_request({}, words, environment())


# -------------------------------------------------------------------------------------------------- our options


def test_defaults_say_that_they_are() -> None:
    asked = request()
    for field in fields(Request):
        value = getattr(asked, field.name)
        if isinstance(value, Sourced):
            assert value.source == "default", field.name
    assert (asked.global_batch.value, asked.lr_scaling.value, asked.parallel_method.value) == (16, "sqrt", "auto")
    assert (asked.skip_dry_run, asked.ask, asked.force) == (False, True, False)


def test_our_options_are_read() -> None:
    asked = request(global_batch="64", lr_base="3e-5@256", nproc=2, gate_timeout="90", no_ask=True, force=False)
    assert asked.global_batch == Sourced(value=64, source="flag --global-batch")
    assert asked.lr_base.value == (3e-5, 256)
    assert asked.nproc.value == 2
    assert asked.gate_timeout_s == Sourced(value=90.0, source="flag --gate-timeout")
    assert asked.ask is False


def test_the_python_api_passes_python_values() -> None:
    asked = request(
        dataset=["a.json", "b.json"], max_length=2048, packing=True, model_kwargs={"a": 1}, lr_base=(1e-4, 16)
    )
    assert asked.datasets.value == ("a.json", "b.json")
    assert {name: pin.value for name, pin in asked.pins.items()} == {
        "max_length": "2048",
        "packing": "true",
        "model_kwargs": '{"a": 1}',
    }
    assert asked.lr_base.value == (1e-4, 16)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"global_batch": "x"}, "--global-batch"),
        ({"global_batch": "0"}, "--global-batch"),
        ({"nproc": "-1"}, "--nproc"),
        ({"lr_scaling": "cubic"}, "--lr-scaling"),
        ({"parallel_method": "deepsped"}, "--parallel-method"),
        ({"lr_base": "1e-4"}, "--lr-base"),
        ({"lr_base": "1e-4@0"}, "--lr-base"),
        ({"gate_timeout": "0"}, "--gate-timeout"),
        ({"gate_timeout": "nan"}, "--gate-timeout"),
        ({"max_lenght": 4}, "--max_lenght"),
    ],
)
def test_bad_options_name_themselves(options: dict[str, Any], what: str) -> None:
    assert what in error("", None, **options).what


def test_an_option_given_in_both_ways_is_refused() -> None:
    assert "given twice" in error("--output_dir a", output_dir="b").what


# ----------------------------------------------------------------------------------------------- precedence


def test_flag_over_environment_over_recipe_over_default(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "schema: autoswift.recipe/1\n"
        "request: {global_batch: 32, flags: {max_length: 1, lora_rank: 1, learning_rate: 1.0e-5}}\n"
    )
    variables = {"AUTOSWIFT_MAX_LENGTH": "2", "AUTOSWIFT_LORA_RANK": "2", "AUTOSWIFT_LR_SCALING": "none"}
    env = environment({**variables, "AUTOSWIFT_RECIPE": "r.yaml"}, str(tmp_path))
    asked = build_request({}, ["--max_length", "3"], env)
    assert asked.pins["max_length"] == Sourced(value="3", source="flag --max_length")
    assert asked.pins["lora_rank"] == Sourced(value="2", source="environment AUTOSWIFT_LORA_RANK")
    assert asked.pins["learning_rate"] == Sourced(value="1e-05", source="recipe r.yaml")
    assert asked.global_batch == Sourced(value=32, source="recipe r.yaml")
    assert asked.lr_scaling == Sourced(value="none", source="environment AUTOSWIFT_LR_SCALING")
    assert asked.overrides == (Sourced(value="lr_scaling", source="environment AUTOSWIFT_LR_SCALING"),)


def test_locked_needs_a_recipe() -> None:
    assert "there is none" in error(locked=True).what


def test_variables_with_many_values_are_split_as_a_shell_would() -> None:
    asked = request(variables={"AUTOSWIFT_DATASET": "a.json 'b c.json'", "AUTOSWIFT_PACKING": "1"})
    assert asked.datasets.value == ("a.json", "b c.json")
    assert asked.pins["packing"].value == "true"


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("AUTOSWIFT_MAX_LENGHT", "1", "--max_length"),
        ("AUTOSWIFT_SFT_TYPE", "lora", "--tuner_type"),
        ("AUTOSWIFT_MAX_LENGTH", "x", "--max_length"),
        ("AUTOSWIFT_DATASET", "'a", "shell"),
        ("AUTOSWIFT_GLOBAL_BATCH", "x", "--global-batch"),
        ("AUTOSWIFT_FORCE", "x", "true"),
        ("AUTOSWIFT_ADD_VERSION", "false", "--output-dir"),
    ],
)
def test_bad_variables_name_themselves(variable: str, value: str, hint: str) -> None:
    refused = error("", {variable: value})
    assert refused.where == f"environment {variable}"
    assert hint in "\n".join(refused.hints)


def test_empty_and_internal_variables_are_ignored() -> None:
    assert request(variables={"AUTOSWIFT_MAX_LENGTH": "", "AUTOSWIFT_JOB": "1", "OTHER": "x"}).pins == {}


def test_nproc_from_the_launcher_variable_yields_to_ours() -> None:
    assert request(variables={"NPROC_PER_NODE": "2"}).nproc == Sourced(value=2, source="environment NPROC_PER_NODE")
    both = {"NPROC_PER_NODE": "2", "AUTOSWIFT_NPROC": "3"}
    assert request(variables=both).nproc.value == 3
    assert request(variables=both, nproc="4").nproc == Sourced(value=4, source="flag --nproc")


def test_our_option_names_are_not_engine_flags_except_the_shared_one() -> None:
    assert set(OPTIONS) & set(dialect().flags) == {"output_dir"}


# ------------------------------------------------------------------------------------------------- environment


def test_read_environment_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = read_environment()
    assert env.cache_dir == str(tmp_path / ".cache" / "autoswift")
    assert env.state_dir == str(tmp_path / "state" / "autoswift")
    assert env.home == str(tmp_path)
    assert Path(env.interpreter).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--tuner_type", "foo"),
        ("--learning_rate", "-1"),
        ("--num_train_epochs", "0"),
        ("--max_steps", "-3"),
        ("--gpus", "1x4090", "--hardware", "machine.json"),
        ("--hub_token", "secret"),
    ],
)
def test_impossible_values_are_refused(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from swift_autobatch.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["plan", *words])
    assert ended.value.code == 2


def test_python_takes_strings_only() -> None:
    from swift_autobatch import plan
    from swift_autobatch.errors import UsageError as Refused

    for wrong in ({"dataset": 3}, {"gpus": ["1x4090"]}, {"model": 7}):
        with pytest.raises(Refused):
            plan(**wrong)  # type: ignore[arg-type]
