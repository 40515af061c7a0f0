"""DeepSpeed JSON: what we let through the installed DeepSpeed takes, whatever stands in it ends in our own words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch import deepspeed_config
from swift_autobatch.deepspeed_config import ZERO_KEYS, faults
from swift_autobatch.errors import InputError
from swift_autobatch.pins import pinned_fields
from swift_autobatch.render.engine_config import deepspeed_config as rendered
from tests import builders

PRESETS = ("zero0", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")


def errors(document: dict[str, Any]) -> list[str]:
    return [fault.text for fault in faults(document) if fault.level == "error"]


@pytest.mark.parametrize("method", PRESETS)
def test_what_we_render_has_no_fault_and_reads_back(method: str) -> None:
    found = rendered(builders.candidate(parallel=method, world=2))
    assert found is not None
    assert faults(found) == ()
    assert deepspeed_config.method(found) == method


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "there is no zero_optimization block"),
        ({"zero_optimization": 2}, "zero_optimization is 2"),
        ({"zero_optimization": {"stage": 7}}, "stage is 7"),
        ({"zero_optimization": {"stage": True}}, "stage is true"),
        ({"zero_optimization": {"stage": 2}, "elasticity": {}}, "has no elasticity any more"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, "mics_shard_size any more"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "yes"}}, "not true or false"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}, "0 elements"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": float("nan")}}, "not a whole number"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}, "not a block"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}, "none, cpu and nvme"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "stage 3 only"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "names no folder"),
        ({"zero_optimization": {"stage": 2}, "fp16": ["enabled"]}, "fp16 is"),
        ({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": "8"}, 'the text "8"'),
    ],
)
def test_an_error_names_the_key_and_the_value(document: dict[str, Any], says: str) -> None:
    assert any(says in text for text in errors(document)), faults(document)


def test_offloaded_parameters_below_stage_3_are_a_surprise_and_no_offload() -> None:
    document = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    assert [fault.level for fault in faults(document)] == ["warn"]
    assert deepspeed_config.method(document) == "zero2"


def pinned(tmp_path: Path, document: dict[str, Any], **pins: str) -> dict[str, Any]:
    request = builders.request(pins={"deepspeed": json.dumps(document), **pins})
    return {name: field.value for name, field in pinned_fields(request, tmp_path).items()}


def test_a_pinned_config_decides_what_it_says(tmp_path: Path) -> None:
    document = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "fp16": {"enabled": True},
    }
    fields = pinned(tmp_path, document)
    assert fields == {
        "parallel": "zero2",
        "bucket_elements": 50_000_000,
        "micro_batch": 2,
        "accumulation": 8,
        "torch_dtype": "float16",
    }
    with pytest.raises(InputError, match="asks for per_device_train_batch_size 2, and the flag says 4"):
        pinned(tmp_path, document, per_device_train_batch_size="4")


def test_all_errors_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 errors in the DeepSpeed config") as caught:
        pinned(tmp_path, {"zero_optimization": {"stage": 7, "overlap_com": True}, "train_batch_size": 64})
    assert len(caught.value.figures) == 3
    with pytest.raises(InputError, match=r"max_grad_norm 0\.5, and its default says 1\.0"):
        pinned(tmp_path, {"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5})


# ------------------------------------------------------------------------------------------------------- fuzz

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2**33),
    st.floats(),
    st.sampled_from(["auto", "cpu", "none", "nvme", "1e9", ""]),
    st.just([]),
    st.just({}),
)
BLOCK = st.dictionaries(
    st.sampled_from(["device", "pin_memory", "ratio", "buffer_count", "nvme_path", "foo"]), VALUES, max_size=4
)
ZERO = st.dictionaries(st.sampled_from([*ZERO_KEYS, "foo"]), st.one_of(VALUES, BLOCK), max_size=5).flatmap(
    lambda rest: st.one_of(st.sampled_from([0, 1, 2, 3]), VALUES).map(lambda stage: {"stage": stage, **rest})
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["fp16", "bf16", "optimizer", "scheduler", "gradient_clipping", "train_batch_size", "elasticity"]),
    st.one_of(VALUES, st.fixed_dictionaries({"enabled": VALUES})),
    max_size=3,
).flatmap(lambda top: st.one_of(ZERO, VALUES).map(lambda zero: {**top, "zero_optimization": zero}))


@given(DOCUMENTS)
def test_no_document_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]) -> None:
    broken = bool(errors(document))
    try:
        fields = pinned(tmp_path_factory.getbasetemp(), document)
    except InputError as error:
        assert error.hints
        return
    assert not broken
    assert fields["parallel"] in PRESETS


def _sound_configs(seed: int) -> list[dict[str, Any]]:
    """Configs that we let through, drawn from all keys and kinds of value."""
    import random

    draw = random.Random(seed)
    values: dict[str, list[Any]] = {
        "whole": [1, 5_000_000, 5e8, "auto", None],
        "switch": [True, False, "auto", None],
        "block": [None, "auto", {}, {"device": "cpu"}, {"device": "none", "pin_memory": True}],
    }
    found = []
    while len(found) < 400:
        keys = draw.sample([key for key, kind in ZERO_KEYS.items() if kind != "removed"], draw.randrange(6))
        zero = {key: draw.choice(values[ZERO_KEYS[key]]) for key in keys}
        zero |= {key: {} for key in ("zenflow", "leaf_module") if key in zero}  # what is in them we do not check
        document = {"zero_optimization": {"stage": draw.randrange(4), **zero}}
        if not errors(document):
            found.append(document)
    return found


@pytest.mark.engine
def test_deepspeed_takes_what_we_let_through_and_refuses_what_we_refuse() -> None:
    """One child process: 400 random configs without a fault, and one bad value for every key."""
    bad = {"whole": "many", "switch": "perhaps", "block": 3, "removed": 1}
    ours = _sound_configs(1)
    theirs = [{"zero_optimization": {"stage": 3, key: bad[kind]}} for key, kind in ZERO_KEYS.items()]
    theirs += [{"zero_optimization": {"stage": stage}} for stage in (7, -1, "two")]
    theirs += [{"zero_optimization": {"stage": 2}, key: {}} for key in deepspeed_config.REMOVED]
    assert all(errors(document) for document in theirs)
    code = """
import json, sys
from deepspeed.runtime.config import _reject_removed_config_keys
from deepspeed.runtime.zero.config import get_zero_config
answers = []
for document in json.load(sys.stdin):
    try:
        _reject_removed_config_keys(document)
        get_zero_config(document)
        answers.append("")
    except Exception as error:
        answers.append(f"{type(error).__name__}: {error}"[:200])
print("ANSWERS", json.dumps(answers))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(ours + theirs), capture_output=True, text=True, check=True
    )
    answers = json.loads(done.stdout.split("ANSWERS ")[1])
    said = list(zip(ours + theirs, answers, strict=True))
    assert [pair for pair in said[: len(ours)] if pair[1]] == []
    assert [document for document, answer in said[len(ours) :] if not answer] == []
