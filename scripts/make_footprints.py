"""Traces the most used models of the catalogue and writes swift_autobatch/data/footprints/, one file a model.

    python scripts/make_footprints.py [--models N] [--variants N] [ID ...]

Resumable: variants that a file has already are kept, unless the libraries that were traced have other versions now.
Variants come in order of use, and every model gets the first one before any gets the second; needs torch, transformers,
peft and bitsandbytes, 3 to 20 s of CPU a variant. What cannot be traced is named and left to the closed form.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from swift_autobatch import tables
from swift_autobatch.facts.model import read_model
from swift_autobatch.footprint_file import dump, load, model_digest
from swift_autobatch.records import Footprint, FootprintKey
from swift_autobatch.request import read_environment

FOLDER = Path(__file__).parent.parent / "swift_autobatch/data/footprints"

# The most used models of the catalogue that transformers has natively, by hub downloads and by how often ms-swift's
# examples and issues name them.
MODELS = (
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen3-1.7B",
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen2.5-32B-Instruct",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen2.5-72B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen1.5-7B-Chat",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "google/gemma-2-9b-it",
    "google/gemma-2-2b-it",
    "google/gemma-3-1b-it",
    "microsoft/Phi-3-mini-4k-instruct",
    "microsoft/phi-4",
    "THUDM/GLM-4-9B-0414",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-2-7b-chat-hf",
    "Qwen/Qwen1.5-1.8B-Chat",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct",
)

_LORA = FootprintKey(
    tuner="lora",
    quant="none",
    checkpointing=True,
    loss="hf_fp32_logits",
    attention="sdpa-flash",
    dtype="bfloat16",
    optimizer="fused-adamw",
    accumulates=False,
    lora_rank=8,
    dropout=True,
)
_NF4 = replace(_LORA, quant="nf4")
_FULL = replace(_LORA, tuner="full", lora_rank=0, dropout=False)


def variants() -> Iterator[FootprintKey]:
    """In order of use: a row of its own length and a padded batch of each; then without checkpointing; then under
    DeepSpeed (full tuning is the same there); then Liger's kernels."""
    for checkpointing, loss in ((True, "hf_fp32_logits"), (False, "hf_fp32_logits"), (True, "liger_fused")):
        for key in (_LORA, _NF4, _FULL):
            plain = replace(key, checkpointing=checkpointing, loss=loss)
            yield plain
            yield replace(plain, masked=True, attention="sdpa-efficient")
        if loss == "hf_fp32_logits":
            for key in (_LORA, _NF4):
                under = replace(key, checkpointing=checkpointing, deepspeed=True)
                yield under
                yield replace(under, masked=True, attention="sdpa-efficient")


def config_of(row: tables.ModelRow) -> Mapping[str, Any]:
    """A catalogue row as a config.json."""
    return {"architectures": [row.architecture], "torch_dtype": "bfloat16", **row.config}


def file_of(name: str) -> Path:
    """Where a model's footprints lie: its name for people, the digest of its shape for the program."""
    model = read_model(name, read_environment())
    return FOLDER / f"{Path(name).name.lower()}-{model_digest(model)}.xz"


def stored(path: Path) -> dict[FootprintKey, Footprint]:
    """The variants that a file has, if they are today's libraries'."""
    from swift_autobatch.trace.worker import versions

    found = dict(load(path.read_bytes(), str(path))) if path.is_file() else {}
    return {key: one for key, one in found.items() if one.stream.versions == versions()}


def make(name: str, keys: list[FootprintKey]) -> None:
    """Traces what a model's file lacks and writes it."""
    from swift_autobatch.trace.worker import Tracer

    path = file_of(name)
    have = stored(path)
    missing = [key for key in keys if key not in have]
    tracer = Tracer(config_of(tables.models()[name.lower()]), "cuda") if missing else None
    for key in missing:
        assert tracer is not None
        began = time.monotonic()
        answer = tracer.try_footprint(key)
        words = f"{name} {key.tuner} {key.quant} checkpointing={key.checkpointing} {key.loss} masked={key.masked}"
        print(f"{words} deepspeed={key.deepspeed}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if not isinstance(answer, Footprint):
            print(f"  left to the closed form: {answer}", file=sys.stderr, flush=True)
            continue
        have[key] = answer
    if missing and have:
        FOLDER.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(dump(have[key] for key in sorted(have, key=repr)))
        part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="models; all by default")
    parser.add_argument("--models", type=int, default=len(MODELS), help="only the first N")
    parser.add_argument("--variants", type=int, default=99, help="only the first N variants of each")
    options = parser.parse_args()
    names = options.ids or MODELS[: options.models]
    keys = list(variants())[: options.variants]
    for count in range(2, len(keys) + 2, 2):  # a length of its own and padded: two at a time, all models in turn
        for name in names:
            make(name, keys[:count])


if __name__ == "__main__":
    main()
