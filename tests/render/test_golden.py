"""Golden renders: what is written for a few machines, byte by byte. ``pytest --update-golden``, then read the diff."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import builders
import pytest
from goldens import Golden

from swift_autobatch import render
from swift_autobatch.planner import make_plan
from swift_autobatch.records import Artefacts
from swift_autobatch.strategies import load_strategies

CASES: dict[str, dict[str, Any]] = {
    "1x4090-lora": {"gpus": "1x4090"},
    "1x3090-qlora-offload": {
        "gpus": "1x3090",
        "model": "meta-llama/Meta-Llama-3-8B",
        "strategy": "single-qlora-offload",
    },
    "2x4090-zero2": {"gpus": "2x4090", "strategy": "multi-zero2"},
    "8xh100-full-32b": {"gpus": "8xH100", "model": "Qwen/Qwen2.5-32B-Instruct", "pins": {"tuner_type": "full"}},
    "2xa100-fsdp2": {"gpus": "2xA100-80G", "parallel_method": "fsdp"},
    "4xa100-autotp": {"gpus": "4xA100-80G", "strategy": "tensor-parallel", "pins": {"tuner_type": "full"}},
    "cpu": {"gpus": None},
    "cpu-zero3": {"gpus": None, "strategy": "multi-zero3", "processes": 2},
}


def rendered(case: str, tmp_path: Path) -> Artefacts:
    options = dict(CASES[case])
    model = options.pop(
        "model", "Qwen/Qwen2.5-0.5B-Instruct" if options["gpus"] is None else "Qwen/Qwen2.5-7B-Instruct"
    )
    facts = builders.facts(
        tmp_path, options.pop("gpus"), model, (100, 200, 300) * 20, processes=options.pop("processes", 1)
    )
    decided = make_plan(builders.request(**options), facts, load_strategies(), "/project", "/home/user")
    return render.render(decided)


@pytest.mark.parametrize("case", CASES)
def test_script_and_config(case: str, tmp_path: Path, golden: Golden) -> None:
    artefacts = rendered(case, tmp_path)
    golden.check(f"render/{case}/run.sh", artefacts.files["run.sh"])
    for name in ("ds.json", "fsdp.json"):
        if name in artefacts.files:
            golden.check(f"render/{case}/{name}", artefacts.files[name])


@pytest.mark.parametrize("case", CASES)
def test_scripts_are_sound_shell(case: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(rendered(case, tmp_path).files["run.sh"])
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("case", CASES)
def test_equal_input_gives_equal_bytes(case: str, tmp_path: Path) -> None:
    assert rendered(case, tmp_path) == rendered(case, tmp_path)


def test_the_script_says_the_same_as_the_command(tmp_path: Path) -> None:
    """What a person runs by hand is what autoswift launches: same words, same environment."""
    artefacts = rendered("2x4090-zero2", tmp_path)
    run, root = tmp_path / "run", tmp_path / "root"
    (run / "autoswift").mkdir(parents=True)
    root.mkdir()
    (root / "rows.jsonl").touch()
    script = run / "autoswift" / "run.sh"
    lines = artefacts.files["run.sh"].replace(
        "exec swift sft", "exec python3 -c 'import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))' --"
    )
    script.write_text(lines)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "ROOT": str(root), "HOME": "/home/user", "MASTER_PORT": "12345"}
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, check=True, cwd=root)
    words, variables = json.loads(done.stdout)
    argv, wanted = render.resolve(artefacts, root=root, run=run, home="/home/user", port=12345)
    assert tuple(words[1:] if words[0] == "--" else words) == argv
    assert {name: variables[name] for name in wanted} == wanted


def test_write_refuses_to_overwrite(tmp_path: Path) -> None:
    from swift_autobatch.errors import UsageError

    render.write({"a.json": "1\n"}, tmp_path)
    with pytest.raises(UsageError, match="would be overwritten"):
        render.write({"b.json": "2\n", "a.json": "2\n"}, tmp_path)
    assert not (tmp_path / "b.json").exists()
    render.write({"a.json": "2\n"}, tmp_path, force=True)
    assert (tmp_path / "a.json").read_text() == "2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
