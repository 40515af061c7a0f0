"""A project recipe: the same decision and bytes on its class of machine; elsewhere it is said what no longer holds."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from swift_autobatch import api
from swift_autobatch.errors import NothingFitsError, UsageError
from swift_autobatch.progress import Silent
from swift_autobatch.recipe import planned_digest, read_recipe
from swift_autobatch.records import Measured, Plan
from swift_autobatch.render import measured_figures, render
from swift_autobatch.request import build_request, read_environment
from swift_autobatch.units import GIB

QWEN = "--model Qwen/Qwen2.5-7B-Instruct"
ROWS = [{"query": "hello " * (count % 7), "response": "world"} for count in range(40)]


class Told(Silent):
    """Keeps what was said on the way."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    write_rows(folder, ROWS)
    monkeypatch.chdir(folder)
    return folder


def write_rows(folder: Path, rows: Sequence[dict[str, str]]) -> None:
    (folder / "data" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def plan(line: str, told: Told | None = None) -> Plan:
    """``autoswift plan LINE``: our options are those that the request knows by name."""
    options: dict[str, Any] = {}
    engine: list[str] = []
    words = shlex.split(line)
    ours = {"--gpus", "--recipe", "--save-recipe", "--strategy", "--global-batch", "--lr-base", "--nproc", "--hardware"}
    while words:
        word = words.pop(0)
        if word in ours:
            options[word[2:].replace("-", "_")] = words.pop(0)
        elif word in ("--locked", "--force"):
            options[word[2:]] = True
        else:
            engine.append(word)
    env = read_environment()
    return api.plan(build_request(options, engine, env), env, told or Told())


def commit(line: str) -> Plan:
    return plan(f"{line} --dataset data/rows.jsonl --save-recipe recipe.yaml --force")


def no_longer(line: str) -> str:
    """What is said not to hold; the plan is made all the same, and ``--locked`` refuses it."""
    told = Told()
    decided = plan(f"--recipe recipe.yaml {line}", told)
    assert decided.notes[0] in told.lines
    with pytest.raises((UsageError, NothingFitsError)) as caught:
        plan(f"--recipe recipe.yaml {line} --locked")
    assert caught.value.where == "recipe.yaml"
    assert caught.value.what.removeprefix("the project recipe does not hold here: ") in decided.notes[0]
    assert any("--save-recipe recipe.yaml --force" in hint for hint in caught.value.hints)
    return decided.notes[0].removeprefix("recipe recipe.yaml no longer holds: ").removesuffix(". Planned again")


JOBS = [
    ("4x4090", QWEN),
    ("4x4090", f"{QWEN} --nproc 2 --lr-base 3e-5@256 --global-batch 64 --system 'You are\n\"Ada\": #1'"),
    ("1xT4", QWEN),
    ("1x3090", "--model meta-llama/Meta-Llama-3-8B --quant_method bnb --quant_bits 4 --lora_rank 64 --lora_alpha 16"),
    ("1x4090", f"{QWEN} --strategy single-qlora-offload"),
    ("8xH100", "--model Qwen/Qwen2.5-32B-Instruct --tuner_type full"),
    ("2xA100-80G", f"{QWEN} --tuner_type full --strategy multi-fsdp2"),
    ("2x4090", f"{QWEN} --deepspeed zero2 --max_steps 7 --warmup_steps 2 --learning_rate 2e-4"),
    ("2x4090", f"{QWEN} --deepspeed ds.json --num_train_epochs 1.5"),
]


@pytest.mark.parametrize(("gpus", "line"), JOBS, ids=[f"{gpus} {line[-24:]}" for gpus, line in JOBS])
def test_the_same_class_gives_the_same_bytes(project: Path, gpus: str, line: str) -> None:
    (project / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    first = commit(f"--gpus {gpus} {line}")
    told = Told()
    again = plan(f"--gpus {gpus} --recipe recipe.yaml --locked", told)
    assert told.lines == [f"recipe recipe.yaml: planned for {first.machine_class}, taken as it stands"]
    assert again.digest == first.digest == read_recipe(project / "recipe.yaml").digest
    assert again.candidate == first.candidate
    assert again.runners_up == ()  # nothing was searched
    assert portable(again) == portable(first)


def portable(decided: Plan) -> dict[str, str]:
    """The rendered files that the run depends on; plan.json tells facts of this machine beside them."""
    return {name: text for name, text in render(decided).files.items() if name != "plan.json"}


def test_writing_it_again_gives_the_same_file(project: Path) -> None:
    commit(f"--gpus 4x4090 {QWEN} --lora_rank 64")
    before = (project / "recipe.yaml").read_text()
    plan("--gpus 4x4090 --recipe recipe.yaml --save-recipe recipe.yaml --force")
    assert (project / "recipe.yaml").read_text() == before


def test_another_checkout_renders_the_same_bytes(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit(f"--gpus 4x4090 {QWEN}")
    other = tmp_path / "some where" / "else"
    shutil.copytree(project, other)
    monkeypatch.chdir(other)
    assert portable(plan("--gpus 4x4090 --recipe recipe.yaml --locked")) == portable(first)


def test_an_absolute_path_is_kept_as_seen_from_the_project(project: Path) -> None:
    plan(f"--gpus 1x4090 {QWEN} --dataset {project}/data/rows.jsonl --save-recipe recipe.yaml")
    assert dict(read_recipe(project / "recipe.yaml").request)["dataset"] == ["data/rows.jsonl"]
    assert str(project) not in (project / "recipe.yaml").read_text()


def test_another_host_of_the_class_changes_nothing(project: Path) -> None:
    """Cores, free memory and the like are finer than a class: what they decided once stays."""
    env = read_environment()
    machine = api.machine_json(api.machine(build_request({"gpus": "2x4090"}, (), env), env))
    Path("a.json").write_text(json.dumps(machine))
    first = commit(f"--hardware a.json {QWEN}")
    machine["host"]["cpu_cores"] = 2
    machine["host"]["ram_budget_bytes"] -= 20 * GIB
    Path("b.json").write_text(json.dumps(machine))
    assert plan(f"--hardware b.json {QWEN} --dataset data/rows.jsonl").digest != first.digest
    assert portable(plan("--hardware b.json --recipe recipe.yaml --locked")) == portable(first)


# -------------------------------------------------------------------------------------------- what may not hold


def test_another_class(project: Path) -> None:
    commit(f"--gpus 4x4090 {QWEN}")
    assert no_longer("--gpus 2x4090") == (
        "it was planned for 4xrtx-4090-24-nop2p-ram256, not for 2xrtx-4090-24-nop2p-ram128"
    )


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("--global-batch 64", "flag --global-batch asks for another global batch than it"),
        ("--strategy multi-zero3", "flag --strategy asks for another strategy than it"),
        ("--lr-base 1e-3@16", "flag --lr-base asks for another lr base than it"),
        ("--model Qwen/Qwen2.5-3B-Instruct", "flag --model asks for another model than it"),
        ("--per_device_train_batch_size 1", "flag --per_device_train_batch_size pins micro_batch 1, it decided 4"),
        ("--deepspeed zero3", "flag --deepspeed pins parallel zero3, it decided {parallel}"),
        ("--max_length 128", "flag --max_length pins max_length 128, it decided 256"),
    ],
)
def test_an_override_that_the_plan_depends_on(project: Path, line: str, what: str) -> None:
    first = commit(f"--gpus 4x4090 {QWEN} --per_device_train_batch_size 4")
    assert no_longer(f"--gpus 4x4090 {line}") == what.format(parallel=first.candidate.parallel)


def test_variables_override_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(f"--gpus 4x4090 {QWEN}")
    monkeypatch.setenv("AUTOSWIFT_GLOBAL_BATCH", "64")
    assert no_longer("--gpus 4x4090") == "environment AUTOSWIFT_GLOBAL_BATCH asks for another global batch than it"


@pytest.mark.parametrize("line", ["--learning_rate 3e-4 --seed 7", "--max_length 256", "--global-batch 16"])
def test_an_override_that_it_does_not_depend_on_is_laid_over(project: Path, line: str) -> None:
    first = commit(f"--gpus 4x4090 {QWEN}")
    decided = plan(f"--gpus 4x4090 --recipe recipe.yaml --locked {line}")
    assert decided.candidate == first.candidate
    if "learning_rate" in line:
        assert decided.engine_args["learning_rate"].value == "3e-4"
        assert decided.engine_args["seed"].value == "7"
    else:
        assert decided.digest == first.digest


def edit(path: Path, change: Any) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def test_an_edited_request_is_planned_again(project: Path) -> None:
    commit(f"--gpus 4x4090 {QWEN}")
    edit(project / "recipe.yaml", lambda it: it["request"]["flags"].update(lora_rank=64))
    assert no_longer("--gpus 4x4090") == "its request was edited since it was planned"
    assert plan("--gpus 4x4090 --recipe recipe.yaml").engine_args["lora_rank"].value == "64"


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["planned"]["arguments"].update(max_length="4096"),
        lambda it: it["planned"]["candidate"].update(micro_batch=1),
        lambda it: it["planned"]["environment"].update(X="1"),
        lambda it: it["planned"].pop("planned_digest"),
    ],
)
def test_a_decision_edited_by_hand_is_not_trusted(project: Path, change: Any) -> None:
    first = commit(f"--gpus 4x4090 {QWEN}")
    edit(project / "recipe.yaml", change)
    assert "its planned section was edited by hand" in no_longer("--gpus 4x4090")
    assert plan("--gpus 4x4090 --recipe recipe.yaml").digest == first.digest


def as_if_written(path: Path, change: Any) -> None:
    """Changes the decision as another version of autoswift would have written it."""

    def signed(document: dict[str, Any]) -> None:
        change(document["planned"])
        document["planned"]["planned_digest"] = planned_digest(document["planned"])

    edit(path, signed)


def test_another_version_of_the_tool_or_the_engine(project: Path) -> None:
    commit(f"--gpus 2x4090 {QWEN} --strategy multi-zero2")
    path = project / "recipe.yaml"
    as_if_written(path, lambda it: it["deepspeed"]["zero_optimization"].update(reduce_bucket_size=5))
    assert no_longer("--gpus 2x4090") == "this version of autoswift renders another DeepSpeed config for it"
    as_if_written(path, lambda it: it.update(engine="ms-swift-5.0"))
    assert no_longer("--gpus 2x4090") == "it was planned for ms-swift-5.0, not for ms-swift-4.6"


def test_arguments_of_another_version_are_kept(project: Path) -> None:
    """As a lock file: what was decided stays, also where this version would decide otherwise."""
    commit(f"--gpus 1x4090 {QWEN}")

    def older(planned: dict[str, Any]) -> None:
        planned["arguments"]["warmup_ratio"] = "0.03"
        del planned["arguments"]["logging_steps"]

    as_if_written(project / "recipe.yaml", older)
    decided = plan("--gpus 1x4090 --recipe recipe.yaml --locked")
    assert decided.engine_args["warmup_ratio"].value == "0.03"
    assert decided.engine_args["warmup_ratio"].source == "recipe recipe.yaml"
    assert "logging_steps" not in decided.engine_args


def test_a_combination_that_no_rule_allows_any_more(project: Path) -> None:
    commit(f"--gpus 2x4090 {QWEN} --strategy multi-zero3")

    def illegal(planned: dict[str, Any]) -> None:
        planned["candidate"]["quant"] = "nf4"

    as_if_written(project / "recipe.yaml", illegal)
    assert "quant-zero3" in no_longer("--gpus 2x4090")


def test_memory_that_is_taken(project: Path) -> None:
    env = read_environment()
    machine = api.machine_json(api.machine(build_request({"gpus": "1x4090"}, (), env), env))
    Path("free.json").write_text(json.dumps(machine))
    commit(f"--hardware free.json {QWEN}")
    machine["gpus"][0]["free_bytes"] = 12 * GIB
    Path("busy.json").write_text(json.dumps(machine))
    assert no_longer("--hardware busy.json").startswith("it does not fit into what is free now: it needs ")
    with pytest.raises(NothingFitsError):
        plan("--hardware busy.json --recipe recipe.yaml --locked")


def test_data_that_changed_but_fit(project: Path) -> None:
    first = commit(f"--gpus 1x4090 {QWEN}")
    write_rows(project, ROWS[:30])
    told = Told()
    decided = plan("--gpus 1x4090 --recipe recipe.yaml --locked", told)
    assert decided.candidate.micro_batch == first.candidate.micro_batch
    assert told.lines[-1].endswith("taken as it stands; the data changed since (40 -> 30 rows) and still fit")


def test_rows_that_would_be_dropped(project: Path) -> None:
    first = commit(f"--gpus 1x4090 {QWEN}")
    write_rows(project, [*ROWS, {"query": "word " * 900, "response": "x"}])
    words = no_longer("--gpus 1x4090")
    assert words.startswith(f"about 1 of 41 rows are longer than its max_length {first.candidate.max_length} and would")
    decided = plan("--gpus 1x4090 --recipe recipe.yaml")
    assert decided.candidate.max_length > 900


def test_rows_that_were_dropped_from_the_start(project: Path) -> None:
    """A pinned max_length that drops rows is the user's; it does not become news."""
    write_rows(project, [*ROWS, {"query": "word " * 900, "response": "x"}])
    commit(f"--gpus 1x4090 {QWEN} --max_length 512")
    decided = plan("--gpus 1x4090 --recipe recipe.yaml --locked")
    assert any("dropped" in note for note in decided.notes)


def test_a_request_without_a_decision_is_planned(project: Path) -> None:
    Path("recipe.yaml").write_text(
        "schema: autoswift.recipe/1\nrequest: {model: Qwen/Qwen2.5-7B-Instruct, dataset: [data/rows.jsonl]}\n"
    )
    told = Told()
    assert not any("no longer" in note for note in plan("--gpus 1x4090 --recipe recipe.yaml", told).notes)
    assert told.lines == ["recipe recipe.yaml: a request without a decision, planned now"]
    with pytest.raises(UsageError, match="it was never planned"):
        plan("--gpus 1x4090 --recipe recipe.yaml --locked")


# -------------------------------------------------------------------------------------------------------- saving


def test_it_overwrites_nothing_unasked_and_says_so_before_any_work(project: Path) -> None:
    Path("recipe.yaml").write_text("mine")
    with pytest.raises(UsageError, match="would be overwritten"):
        plan(f"--gpus 1x4090 {QWEN} --dataset nowhere.jsonl --save-recipe recipe.yaml")
    assert Path("recipe.yaml").read_text() == "mine"


def test_nothing_is_written_when_nothing_fits(project: Path) -> None:
    with pytest.raises(NothingFitsError):
        commit(f"--gpus 1x4090 {QWEN} --tuner_type full")
    assert not Path("recipe.yaml").exists()


def test_what_was_measured_is_in_the_terms_of_what_was_predicted() -> None:
    def seen(phase: Any, rss: int, seconds: float | None) -> Measured:
        return Measured(
            phase=phase,
            gpu_allocated_bytes=1,
            gpu_reserved_bytes=2 * rss,
            driver_bytes=3 * rss,
            rss_bytes=rss,
            rss_sum_bytes=rss + 5,
            seconds=seconds,
        )

    phases = (seen("load", 10, 4.0), seen("first_step", 30, 2.0), seen("steady", 20, 0.5))
    assert measured_figures(phases, on_gpu=False, by="dry run") == {
        "by": "dry run",
        "device_bytes": 30,
        "host_bytes": 35,
        "step_s": 0.5,
    }
    assert measured_figures(phases, on_gpu=True, by="training")["device_bytes"] == 90
    assert measured_figures((), on_gpu=True, by="training")["step_s"] is None
