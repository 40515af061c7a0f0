"""Reading recipe files: both kinds, every error at once with its line, and nothing but our errors for any text."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch.errors import AutoswiftError, InputError, UsageError
from swift_autobatch.recipe import check_file, layer, read_recipe, request_digest
from swift_autobatch.records import Candidate, Dtype, Parallel, Quant, Sourced
from swift_autobatch.render.recipe_yaml import _FACTS
from swift_autobatch.yaml_file import PROJECT, STRATEGY, parse_yaml, schema

HEAD = "schema: autoswift.recipe/1\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(tmp_path: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_recipe(write(tmp_path, text), "recipe.yaml")
    assert caught.value.hints
    return caught.value


def test_a_request_by_hand_is_a_layer_of_settings(tmp_path: Path) -> None:
    text = (
        "request:\n  dataset: [a.jsonl, b.csv]\n  global_batch: 32\n  strategy: null\n"
        "  flags: {packing: true, learning_rate: 1.0e-5, max_length: 2048, target_modules: [q_proj, k_proj]}\n"
    )
    recipe = read_recipe(write(tmp_path, HEAD + text), "recipe.yaml")
    assert recipe.candidate is None
    assert recipe.edited == ()
    source = "recipe recipe.yaml"
    assert layer(recipe) == {
        "dataset": Sourced(value=("a.jsonl", "b.csv"), source=source),
        "global_batch": Sourced(value="32", source=source),
        "packing": Sourced(value="true", source=source),
        "learning_rate": Sourced(value="1e-05", source=source),
        "max_length": Sourced(value="2048", source=source),
        "target_modules": Sourced(value=("q_proj", "k_proj"), source=source),
    }


def test_every_error_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
schema: autoswift.recipe/1
request:
  model: [1]
  datasets: [a.json]
  global_batch: many
  parallel_method: deepsped
  global_batch: 3
  lr_base: 1e-4
  flags:
    max_lenght: 3
    lora_rank: x
    packing: {a: 1}
    model: y
    train_type: lora
    add_version: true
planned:
  machine_class: 3
  candidate: {worl: 1}
  arguments: {add_version: 'false', nope: 1}
extra: 1
"""
    error = refused(tmp_path, text)
    assert error.where == "recipe.yaml:3"
    told = [
        "line 3: request.model is [1], it must be text or null",
        "line 4: unknown key 'datasets' in request (did you mean 'dataset'?)",
        "line 6: request.parallel_method is 'deepsped', not one of auto, deepspeed, fsdp, megatron, none",
        "line 7: key 'global_batch' stands here a second time",
        "line 8: request.lr_base is '1e-4', it must look like ",
        "line 10: neither autoswift nor ms-swift 4.6.0 has a flag --max_lenght (did you mean --max_length",
        "line 11: --lora_rank needs a whole number, not 'x'",
        "line 12: request.flags.packing is {'a': 1}, it must be text or a number or true or false or a list",
        "line 13: model stands directly under request, not under its flags",
        "line 14: --train_type does not exist in ms-swift 4.6.0 (write --tuner_type)",
        "line 15: --add_version is not yours to set",
        "line 17: planned.machine_class is 3, it must be text",
        "line 18: unknown key 'worl' in planned.candidate (did you mean 'world'?)",
        "line 19: neither autoswift nor ms-swift 4.6.0 has a flag --nope",
        "line 20: unknown key 'extra' in the file",
    ]
    for words in told:
        assert any(figure.startswith(words) for figure in error.figures), (words, error.figures)
    missing = [figure for figure in error.figures if "is missing in planned.candidate" in figure]
    assert len(error.figures) == len(told) + len(missing)


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("", UsageError, "a project recipe is a mapping, this is empty"),
        ("- a\n", UsageError, "this is a list"),
        (HEAD, UsageError, "1 error in this project recipe"),
        ("schema: autoswift.strategy/1\n", UsageError, "this is a strategy recipe, not a project recipe"),
        ("schema: autoswift.recipe/9\nrequest: {}\n", UsageError, "1 error"),
        ("a: 'b\n", InputError, "not YAML"),
        ("a: &a [*a]\n", InputError, "holds itself"),
        ("a: 2024-13-45\n", InputError, "not YAML: month must be in 1..12"),
    ],
)
def test_what_is_no_project_recipe(tmp_path: Path, text: str, kind: type[AutoswiftError], what: str) -> None:
    with pytest.raises(kind) as caught:
        read_recipe(write(tmp_path, text))
    assert what in caught.value.what
    assert caught.value.where.startswith(f"{tmp_path}/recipe.yaml:")
    assert caught.value.hints


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.yaml", tmp_path):
        with pytest.raises(InputError) as caught:
            read_recipe(path)
        assert caught.value.where == str(path)
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_recipe(tmp_path / "x.yaml")


@given(st.text(max_size=60), st.sampled_from([HEAD, HEAD + "request: ", HEAD + "request:\n  flags:\n    ", ""]))
def test_any_text_is_read_or_refused_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, tail: str, head: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(head + tail, encoding="utf-8", errors="replace")
    with contextlib.suppress(UsageError, InputError):
        read_recipe(path)
    with contextlib.suppress(UsageError, InputError):
        check_file(path)


def test_a_request_has_one_digest_however_it_is_spelled() -> None:
    one = {"global_batch": 16, "strategy": None, "flags": {"lora_rank": 64, "packing": True}}
    other = {"flags": {"packing": "true", "lora_rank": "64"}, "global_batch": "16"}
    assert request_digest(one) == request_digest(other)
    assert request_digest(one) != request_digest({**one, "global_batch": 32})


def test_the_schema_knows_every_field_of_a_candidate() -> None:
    described = schema(PROJECT)["$defs"]["candidate"]
    fields = [field for field in dataclasses.fields(Candidate) if field.name not in _FACTS]
    assert list(described["properties"]) == [field.name for field in fields]
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    assert sorted(described["required"]) == sorted(needed)
    for name, kind in (("quant", Quant), ("parallel", Parallel), ("torch_dtype", Dtype)):
        assert described["properties"][name]["enum"] == list(get_args(kind))


def test_both_kinds_have_a_published_schema() -> None:
    for kind in (STRATEGY, PROJECT):
        assert schema(kind)["properties"]["schema"] == {"const": kind}
        with pytest.raises(UsageError):
            parse_yaml(f"schema: {kind}\n", "x.yaml", kind)
