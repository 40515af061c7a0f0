"""Runs in a child: tries flag combinations on the engine, one after the other, and prints what became of each.

rule_cases.py < CASES.json; a case is ``{"stage": "arguments" | "train", "argv": [...]}``. ``arguments`` builds the
engine's argument object, ``train`` goes all the way to the training steps. The answer is the exception, or ``ok`` and
what is worth knowing of the arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def answer(case: dict[str, Any]) -> str:
    from swift.arguments import SftArguments
    from swift.pipelines import sft_main
    from swift.utils import parse_args

    try:
        if case["stage"] == "train":
            sft_main(case["argv"])
            return "ok"
        args, rest = parse_args(SftArguments, case["argv"])
        assert not rest, rest
        return f"ok quantization={args.get_quantization_config()} deepspeed={args.deepspeed}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = []
        for case in cases:
            if not case.get("distributed"):
                answers.append(answer(case))
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        for case in cases:  # last: they start a process group that stays
            if case.get("distributed"):
                answers.append(answer(case))
    print("ANSWERS", json.dumps(answers))


if __name__ == "__main__":
    main()
