"""``recipes``, ``completion``, ``--recipe``, ``--gpus`` and ``--hardware`` on the command line, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_autobatch.cli import COMMANDS, cli
from swift_autobatch.cli.errors import run
from swift_autobatch.strategies import shipped_folder

ROWS = '{"query": "hello", "response": "world"}\n' * 20
BAD = "schema: autoswift.recipe/1\nrequest:\n  modle: x\n  global_batch: many\n  flags:\n    max_lenght: 3\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROWS, encoding="utf-8")
    (tmp_path / "bad.yaml").write_text(BAD, encoding="utf-8")
    (tmp_path / "ok.yaml").write_text("schema: autoswift.recipe/1\nrequest: {}\n", encoding="utf-8")
    return tmp_path


Captured = pytest.CaptureFixture[str]


def autoswift(argv: list[str], capsys: Captured) -> tuple[int, str, str]:
    code = run(cli, argv)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def refused(argv: list[str], capsys: Captured, code: int) -> str:
    found, out, err = autoswift(argv, capsys)
    assert (found, out) == (code, ""), (out, err)
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    assert "\nhint: " in err
    return err


# ------------------------------------------------------------------------------------------------------ recipes


def test_check_takes_both_kinds(capsys: Captured) -> None:
    cpu = str(shipped_folder() / "cpu.yaml")
    code, out, err = autoswift(["recipes", "check", "ok.yaml", cpu], capsys)
    assert (code, err) == (0, "")
    assert out == f"ok.yaml: autoswift.recipe/1\n{cpu}: autoswift.strategy/1\n"


def test_check_tells_every_error_of_every_file(capsys: Captured) -> None:
    Path("cpu.yaml").write_text((shipped_folder() / "cpu.yaml").read_text().replace("parallel: none", "paralel: none"))
    code, out, err = autoswift(["recipes", "check", "ok.yaml", "bad.yaml", "cpu.yaml", "gone.yaml"], capsys)
    assert (code, out) == (2, "ok.yaml: autoswift.recipe/1\n")
    assert err == (
        "error: 3 of these files are not right\n"
        "  bad.yaml:3: 3 errors in this project recipe\n"
        "    line 3: unknown key 'modle' in request (did you mean 'model'?)\n"
        "    line 4: request.global_batch is 'many', it must be a whole number\n"
        "    line 6: neither autoswift nor ms-swift 4.6.0 has a flag --max_lenght (did you mean --max_length\n"
        "      or --lora_ga_max_length?)\n"
        "  cpu.yaml:11: 1 error in this strategy recipe\n"
        "    line 11: unknown key 'paralel' in use (did you mean 'parallel'?)\n"
        "  gone.yaml: cannot read the recipe: No such file or directory\n"
        "hint: 'autoswift plan --save-recipe FILE' writes one that works\n"
        "hint: 'autoswift recipes cp NAME FILE' writes one that works\n"
        "hint: check the path; it counts from here\n"
    )


def test_check_json(capsys: Captured) -> None:
    code, out, err = autoswift(["recipes", "check", "--json", "ok.yaml", "bad.yaml"], capsys)
    document = json.loads(out)
    assert (code, document["schema"]) == (2, "autoswift.recipes-check/1")
    assert [(row["file"], row["kind"], len(row["errors"])) for row in document["files"]] == [
        ("ok.yaml", "autoswift.recipe/1", 0),
        ("bad.yaml", None, 3),
    ]
    assert err.startswith("error: 3 errors in this project recipe (bad.yaml:3)")


def test_cp_makes_a_strategy_that_loads(capsys: Captured) -> None:
    assert autoswift(["recipes", "cp", "cpu"], capsys)[:2] == (0, f"{Path.cwd()}/autoswift/recipes/cpu.yaml\n")
    assert autoswift(["recipes", "cp", "cpu", "autoswift/recipes/mine.yaml"], capsys)[0] == 0
    code, out, _ = autoswift(["recipes", "show", "mine"], capsys)
    assert code == 0
    assert "\nname: mine\n" in out
    assert "  mine  " in autoswift(["recipes", "ls"], capsys)[1]
    assert "would be overwritten" in refused(["recipes", "cp", "cpu"], capsys, 2)
    assert autoswift(["recipes", "cp", "cpu", "--force"], capsys)[0] == 0
    assert "did you mean cpu" in refused(["recipes", "cp", "cpuu"], capsys, 2)


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("command", ["sft", "plan", "render", "dry-run"])
def test_a_bad_recipe_is_refused_before_anything_happens(command: str, project: Path, capsys: Captured) -> None:
    before = sorted(project.iterdir())
    err = refused([command, "--recipe", "bad.yaml"], capsys, 2)
    assert err.splitlines()[:4] == [
        "error: 3 errors in this project recipe (bad.yaml:3)",
        "  line 3: unknown key 'modle' in request (did you mean 'model'?)",
        "  line 4: request.global_batch is 'many', it must be a whole number",
        "  line 6: neither autoswift nor ms-swift 4.6.0 has a flag --max_lenght (did you mean --max_length or",
    ]
    assert sorted(project.iterdir()) == before


PLAN = ["plan", "--model", "Qwen/Qwen2.5-7B-Instruct", "--dataset", "rows.jsonl"]


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (["--gpus", "4xFoo"], 2, ["no card named 'Foo'"]),
        (["--gpus", "4x409"], 2, ["no card named '409'", "hint: did you mean 4090"]),
        (["--gpus", "0x4090"], 2, ["0 cards", "hint: write 1x4090"]),
        (["--gpus", "4x4090", "--nproc", "5"], 2, ["5 processes need 5 GPUs", "hint: --nproc 4"]),
        (["--gpus", "1x4090", "--gpus", "2x4090"], 2, ["--gpus is given twice"]),
        (["--max_length", "1", "--max-length", "2"], 2, ["--max_length is given twice"]),
        (["--recipe", "ok.yaml", "--recipe", "ok.yaml"], 2, ["--recipe is given twice"]),
        (["--hardware", "rows.jsonl"], 5, ["the hardware file is not JSON"]),
        (["--hardware", "gone.json"], 5, ["cannot read the hardware file"]),
        (["--hardware", "ok.yaml"], 5, ["the hardware file is not JSON"]),
        (["--recipe", "gone.yaml"], 5, ["cannot read the recipe", "gone.yaml"]),
        (["--recipe", "rows.jsonl"], 5, ["not YAML", "rows.jsonl:2"]),
        (["--locked"], 2, ["--locked says that a project recipe must hold", "hint: add --recipe FILE"]),
        (["--save-recipe", "ok.yaml"], 2, ["ok.yaml exists and would be overwritten", "hint: add --force"]),
        (["--save-recipe", "."], 2, ["is a folder"]),
        (
            ["--gpus", "1x4090", "--quant_method", "bnb", "--quant_bits", "4", "--deepspeed", "zero3"],
            2,
            ["(rule quant-zero3)", "--deepspeed, --quant_bits", "hint: --deepspeed zero2"],
        ),
    ],
)
def test_bad_input(words: list[str], code: int, shown: list[str], capsys: Captured) -> None:
    err = refused([*PLAN, *words], capsys, code)
    for text in shown:
        assert text in err


def machine(capsys: Captured, argv: list[str]) -> dict[str, Any]:
    code, out, _ = autoswift(["env", "--json", *argv], capsys)
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_hardware_file_with_text_where_numbers_belong(capsys: Captured) -> None:
    found = machine(capsys, ["--gpus", "2x4090"])
    found["gpus"][1]["total_bytes"] = "24 GB"
    found["host"]["cpu_cores"] = None
    found["hots"] = 1
    Path("m.json").write_text(json.dumps(found))
    err = refused([*PLAN, "--hardware", "m.json"], capsys, 5)
    for text in (
        'gpus[1].total_bytes must be a whole number of 0 or more, not "24 GB"',
        "host.cpu_cores must be a whole number",
        "unknown key hots (did you mean host?)",
    ):
        assert text in err


# ----------------------------------------------------------------------------------- machines that are not here


SMALL = ["plan", "--model", "Qwen/Qwen2.5-0.5B-Instruct", "--dataset", "rows.jsonl"]  # fits on a CPU, too


@pytest.mark.parametrize("argv", [[], ["--gpus", "4x4090,ram=512"], ["--gpus", "1xT4"], ["--nproc", "2"]])
def test_a_saved_machine_gives_the_plan_of_the_machine(argv: list[str], capsys: Captured) -> None:
    Path("m.json").write_text(json.dumps(machine(capsys, argv)))
    here = json.loads(autoswift([*SMALL, *argv, "--json"], capsys)[1])
    there = json.loads(autoswift([*SMALL, "--hardware", "m.json", "--json"], capsys)[1])
    for key in ("digest", "machine_class", "candidate", "arguments", "environment"):
        assert here[key] == there[key]


def test_fewer_ranks_than_cards(capsys: Captured) -> None:
    four = machine(capsys, ["--gpus", "4x4090"])
    Path("m.json").write_text(json.dumps(four))
    two = machine(capsys, ["--hardware", "m.json", "--nproc", "2"])
    assert (len(two["gpus"]), two["processes"], two["links"]) == (2, 2, four["links"])
    one = machine(capsys, ["--hardware", "m.json", "--nproc", "1"])
    assert (len(one["gpus"]), one["processes"], one["links"], one["link_gb_s"]) == (1, 1, "none", None)


def test_render_tells_the_recipe_it_wrote(project: Path, capsys: Captured) -> None:
    argv = ["render", *PLAN[1:], "--gpus", "2x4090", "--output-dir", "out", "--save-recipe", "r.yaml"]
    code, out, _ = autoswift(argv, capsys)
    assert code == 0
    written = {Path(line).relative_to(project).as_posix() for line in out.splitlines()}
    assert {"r.yaml", "out/autoswift/recipe.yaml", "out/autoswift/run.sh"} <= written
    assert autoswift(["recipes", "check", "r.yaml", "out/autoswift/recipe.yaml"], capsys)[0] == 0


# --------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: Captured) -> None:
    code, out, err = autoswift(["completion", shell], capsys)
    assert (code, err) == (0, "")
    assert f"_AUTOSWIFT_COMPLETE={shell}_complete" in out


def test_an_unknown_shell(capsys: Captured) -> None:
    assert "'bash', 'zsh', 'fish'" in refused(["completion", "fsh"], capsys, 2)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("autoswift ", set(COMMANDS)),
        ("autoswift pla", {"plan"}),
        ("autoswift nonsense --", set()),
        ("autoswift plan --save-r", {"--save-recipe"}),
        ("autoswift plan --max_le", {"--max_length"}),
        ("autoswift sft --gpus 1x4090 --max-le", {"--max_length"}),
        ("autoswift plan --strategy single-q", {"single-qlora", "single-qlora-offload"}),
        ("autoswift plan --lr-scaling s", {"sqrt"}),
        ("autoswift plan --strategy", {"--strategy"}),
        ("autoswift recipes ", {"ls", "show", "cp", "check", "diff", "schema"}),
    ],
)
def test_what_a_shell_is_offered(line: str, offered: set[str]) -> None:
    """As the script asks: one process, the words in the environment, the answers on stdout."""
    words = line.split(" ")
    variables = {"_AUTOSWIFT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "from swift_autobatch.cli import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = {answer.split(",")[1] for answer in done.stdout.splitlines() if answer.startswith("plain,")}
    assert offered <= found if "nonsense" in line else found == offered


# --------------------------------------------------------------------------------------------------------- diff


def saved(name: str, *flags: str, capsys: Captured) -> None:
    assert autoswift([*PLAN, "--gpus", "2x4090", "--save-recipe", name, *flags], capsys)[0] == 0


def test_diff_says_flags_gib_and_seconds(capsys: Captured) -> None:
    saved("a.yaml", capsys=capsys)
    saved("b.yaml", "--quant_method", "bnb", "--quant_bits", "4", "--deepspeed", "zero2", capsys=capsys)
    code, out, _ = autoswift(["recipes", "diff", "a.yaml", "b.yaml", "--json"], capsys)
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "autoswift.recipes-diff/1"
    settings = {row["name"]: (row["one"], row["other"]) for row in found["settings"]}
    assert settings["--quant_bits"] == (None, "4")
    assert settings["--deepspeed"] == ("$RUN/autoswift/ds.json", "zero2")
    assert not any(name.startswith("deepspeed.") for name in settings)
    assert found["other"]["device_bytes"] < found["one"]["device_bytes"]
    assert found["other"]["step_s"] > found["one"]["step_s"]
    told = autoswift(["recipes", "diff", "a.yaml", "b.yaml"], capsys)[1]
    assert "--quant_bits: (not set) | 4" in told
    assert "a device: " in told
    assert " x)" in told
    assert "Set otherwise\n  nothing" in autoswift(["recipes", "diff", "a.yaml", "a.yaml"], capsys)[1]


def test_diff_predicts_elsewhere_when_asked(capsys: Captured) -> None:
    saved("a.yaml", capsys=capsys)
    code, out, _ = autoswift(["recipes", "diff", "a.yaml", "a.yaml", "--gpus", "2xA100-80G", "--json"], capsys)
    assert code == 0
    found = json.loads(out)
    assert found["one"] == found["other"]
    assert found["one"]["machine_class"].startswith("2xa100")
    assert found["one"]["why"] == "predicted as it is written"


def test_diff_of_strategies_and_of_what_cannot_be_compared(capsys: Captured) -> None:
    one, other = (str(shipped_folder() / f"{name}.yaml") for name in ("cpu", "cpu-ddp"))
    code, out, _ = autoswift(["recipes", "diff", one, other], capsys)
    assert code == 0
    assert "use.parallel: none | ddp" in out
    assert "nothing to compare" in refused(["recipes", "diff", "ok.yaml", one], capsys, 2)
    refused(["recipes", "diff", "ok.yaml", "gone.yaml"], capsys, 5)


def test_schema_is_what_check_holds_recipes_to(capsys: Captured) -> None:
    import jsonschema

    for kind in ("project", "strategy"):
        code, out, _ = autoswift(["recipes", "schema", kind], capsys)
        assert code == 0
        jsonschema.Draft202012Validator.check_schema(json.loads(out))
