"""tiktoken is used only where it gives the ids that the model's tokenizer gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from swift_autobatch.facts import embedded
from swift_autobatch.facts.quick import Quick, quick_for

texts = st.text(max_size=200) | st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", " ", "\n", "  ", "don't", "I'LL", "12", "你好", "é", "e\u0301", "\r\n"]
    ),
    max_size=30,
).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.ensure_model(environment(tmp_path_factory.mktemp("embedded")))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def quick(folder: Path, tokenizer: Tokenizer) -> Quick:
    found = quick_for(folder / "tokenizer.json", lambda: tokenizer, None)
    assert found is not None
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts)
def test_same_ids(text: str, quick: Quick, tokenizer: Tokenizer) -> None:
    if quick.knows(text):
        assert quick.ids(text) == tokenizer.encode(text, add_special_tokens=False).ids


def changed(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Quick | None:
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(document)
    target.mkdir(exist_ok=True)
    file = target / "tokenizer.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return quick_for(file, lambda: Tokenizer.from_file(str(file)), None)


def test_what_is_not_proved_is_not_used(folder: Path, tmp_path: Path) -> None:
    def lowercase(document: dict[str, Any]) -> None:
        document["normalizer"] = {"type": "Lowercase"}

    def swapped(document: dict[str, Any]) -> None:
        merges = document["model"]["merges"]
        merges[3], merges[90] = merges[90], merges[3]

    def stripping(document: dict[str, Any]) -> None:
        document["added_tokens"][0]["rstrip"] = True

    def prefixed(document: dict[str, Any]) -> None:
        first = document["added_tokens"][0]
        document["added_tokens"].append({**first, "id": 5000, "content": first["content"] + "x"})

    def other_digits(document: dict[str, Any]) -> None:
        text = json.dumps(document["pre_tokenizer"]).replace("\\\\p{N}", "[0-9]")
        document["pre_tokenizer"] = json.loads(text)

    for change in (lowercase, swapped, stripping, prefixed):
        assert changed(folder, tmp_path / change.__name__, change) is None, change.__name__
    assert changed(folder, tmp_path / "other", other_digits) is not None, "another pattern is fine where both agree"


def test_the_proof_is_remembered(folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    calls = []

    def load() -> Tokenizer:
        calls.append(1)
        return tokenizer

    for _ in range(2):
        found = quick_for(folder / "tokenizer.json", load, tmp_path)
        assert found is not None
        assert found.ids("a<|im_end|>\n") == tokenizer.encode("a<|im_end|>\n", add_special_tokens=False).ids
    assert len(calls) == 1
    for kept in (tmp_path / "tokenizers").iterdir():
        kept.write_bytes(kept.read_bytes()[:-40])
    assert quick_for(folder / "tokenizer.json", load, tmp_path) is not None
    assert len(calls) == 2, "half a file is no proof"
