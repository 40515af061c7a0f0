"""A recipe that cannot start is refused with the reason: by a rule where one knows, and the engine says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jobs
import public_command
import pytest
from test_real_engine import dry_run

from swift_autobatch.facts import embedded
from swift_autobatch.strategies import shipped_folder

BAD_KEY = {"zero_optimization": {"stage": 2, "overlap_com": True}, "train_batch_size": "auto"}
# (shipped strategy, what is edited in the copy, more words, what the refusal says)
COPIES = (
    (
        "tensor-parallel",
        ("parallel: [zero1, zero2]", "parallel: [zero3]"),
        (),
        "AutoTP works with ZeRO-0, 1 and 2 only",
    ),
    ("packing", ("attn_impl: flash_attention_2", "attn_impl: sdpa"), (), "packing and padding_free need"),
    ("sequence-parallel", ("sp: [2, 4, 8, 16]", "sp: [3]"), ("--nproc", "4"), "must divide the number of processes"),
    ("multi-zero2", ("because:", "because:"), ("--deepspeed", "ds.json"), "zero_optimization has no key overlap_com"),
)
# The same by flags: (words that are refused, those that its hint makes of them)
FLAGS = (
    (
        ("--deepspeed", "zero3", "--deepspeed_autotp_size", "2"),
        ("--deepspeed", "zero2", "--deepspeed_autotp_size", "2"),
    ),
    (("--packing", "true", "--attn_impl", "sdpa"), ()),
    (("--sequence_parallel_size", "3"), ("--sequence_parallel_size", "2")),
    (("--deepspeed", "ds.json"), ("--deepspeed", "mended.json")),
)


@pytest.mark.parametrize(("name", "edit", "words", "says"), COPIES, ids=[copy[0] for copy in COPIES])
def test_a_broken_copy_is_refused(
    name: str, edit: tuple[str, str], words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    text = (shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    assert edit[0] in text
    (tmp_path / "mine.yaml").write_text(text.replace(f"name: {name}", "name: mine").replace(*edit), encoding="utf-8")
    (tmp_path / "ds.json").write_text(json.dumps(BAD_KEY), encoding="utf-8")
    done = public_command.run(tmp_path, "rehearse", "mine.yaml", *words)
    assert done.exit_code == (5 if "ds.json" in words else 2), done.stderr
    assert says in done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / "output").exists()  # nothing was started


@pytest.mark.parametrize(("broken", "mended"), FLAGS, ids=lambda words: "-".join(words).replace("--", "") or "none")
def test_following_the_hint_makes_a_plan(broken: tuple[str, ...], mended: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(BAD_KEY), encoding="utf-8")
    right = json.dumps(BAD_KEY).replace("overlap_com", "overlap_comm")
    (tmp_path / "mended.json").write_text(right, encoding="utf-8")
    model = str(embedded.ensure_model(jobs.environment(tmp_path)))
    base = ("--gpus", "4xA100-80G", "--tuner_type", "full", "--model", model)
    refused = public_command.run(tmp_path, "rehearse", *base, *broken)
    assert refused.exit_code == (5 if "ds.json" in broken else 2), refused.stderr
    for flag, value in zip(mended[::2], mended[1::2], strict=True):
        hinted = value.removesuffix(".json") if value == "mended.json" else flag
        assert hinted in refused.stderr or "overlap_comm" in refused.stderr
    planned = public_command.run(tmp_path, "plan", *base, *mended)
    assert planned.exit_code == 0, planned.stderr


BEYOND_THE_RULES: tuple[tuple[str, dict[str, Any], str], ...] = (
    (
        "zero3-autotp",
        {"world": 2, "parallel": "zero3", "tp": 2, "tuner": "full"},
        "gather_16bit_weights_on_model_save",
    ),
    ("packing-sdpa", {"pins": {"packing": "true", "attn_impl": "sdpa"}}, "requires a flash attention implementation"),
    ("sp-3-of-4", {"world": 4, "parallel": "ddp", "sp": 3}, "The world_size 3 needs ulysses/ring-attention"),
    ("bad-key", {"pins": {"deepspeed": json.dumps(BAD_KEY)}, "parallel": "zero2"}, "overlap_com"),
)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("changes", "says"), [case[1:] for case in BEYOND_THE_RULES], ids=[c[0] for c in BEYOND_THE_RULES]
)
def test_the_engine_refuses_it_too(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    verdict = dry_run(tmp_path, jobs.plan(tmp_path, build=True, **changes))
    assert verdict.verdict == "fail", verdict.reason
    log = (Path(verdict.folder) / "autoswift" / "swift.log").read_text(encoding="utf-8", errors="replace")
    assert says in log, verdict.reason
    assert not verdict.steps
