"""Asks the installed engine's own parsers about rendered plans; one child process, because the imports take long.

engine_accepts.py < PLANS.json > ANSWERS.json

PLANS is a list of ``{"argv": [...], "deepspeed": {...} or null}``, ANSWERS the list of complaints, null where all is
taken. The argument dataclass is never made: its ``__post_init__`` loads models.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any


def complaint(parser: Any, config_class: Any, plan: dict[str, Any]) -> str | None:
    """What the engine's argparse or DeepSpeed's config class has against one plan."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(plan["argv"])
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    if plan["deepspeed"] is None:
        return None
    try:
        config_class(filled(plan))
    except Exception as error:  # whatever it is, it is the answer
        return f"DeepSpeedConfig: {type(error).__name__}: {error}"
    return None


def filled(plan: dict[str, Any]) -> dict[str, Any]:
    """The DeepSpeed JSON with ``auto`` replaced as the Trainer does (transformers/integrations/deepspeed.py)."""
    flags = dict(zip(plan["argv"], plan["argv"][1:], strict=False))
    config = json.loads(json.dumps(plan["deepspeed"]))
    micro, steps = int(flags["--per_device_train_batch_size"]), int(flags["--gradient_accumulation_steps"])
    config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"] = micro, steps
    config["train_batch_size"] = micro * steps  # DeepSpeed counts one rank where no process group exists
    config["gradient_clipping"] = 1.0
    for dtype, name in (("fp16", "float16"), ("bf16", "bfloat16")):
        config[dtype]["enabled"] = flags["--torch_dtype"] == name
    zero = config["zero_optimization"]
    for key, value in zero.items():
        if value == "auto":
            zero[key] = 1_000_000
    return config


def main() -> int:
    plans = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.runtime.config import DeepSpeedConfig
        from swift.arguments import SftArguments
        from transformers import HfArgumentParser

        parser = HfArgumentParser(SftArguments)
        answers = [complaint(parser, DeepSpeedConfig, plan) for plan in plans]
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
