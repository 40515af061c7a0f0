"""What ships is what the tracer says today: two variants traced anew, storage by storage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import make_footprints as made
from swift_autobatch import tables
from swift_autobatch.footprint_file import load
from swift_autobatch.trace.worker import Tracer

name = "Qwen/Qwen2.5-0.5B-Instruct"
path = made.file_of(name)
shipped = load(path.read_bytes(), str(path))
tracer = Tracer(made.config_of(tables.models()[name.lower()]), "cuda")
keys = [key for key in shipped if key.tuner == "lora" and key.quant == "none" and not key.masked][:1]
keys += [key for key in shipped if key.tuner == "full" and key.masked][:1]
answers = {}
for key in keys:
    anew, was = tracer.try_footprint(key), shipped[key]
    parts = ("sizes", "storages", "events", "marks")
    same = [getattr(anew.stream, part) == getattr(was.stream, part) for part in parts]
    answers[key.tuner] = [*same, anew.weights_bytes == was.weights_bytes, anew.adapters_bytes == was.adapters_bytes]
print(json.dumps(answers))
"""


def test_two_variants_traced_anew_are_the_shipped_ones() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(SCRIPTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert set(answers) == {"lora", "full"}
    assert all(all(parts) for parts in answers.values()), answers
