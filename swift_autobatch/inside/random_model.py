"""Run as a script: builds a model with random weights from a config.json and saves it as a Hugging Face folder.

``python random_model.py CONFIG.json FOLDER [DEVICE]``. Weights are drawn on DEVICE (default: the CPU). The last line of
stderr says what transformers refused. Imports nothing of autoswift.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def main(config_file: str, folder: str, device: str = "cpu") -> None:
    values: dict[str, Any] = json.loads(Path(config_file).read_text(encoding="utf-8"))
    dtype = getattr(torch, str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch."))
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        sys.exit(f"{type(error).__name__}: {said}")
