"""Receipts: complete, strict JSON, never overwritten, read back; the keys are frozen here."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest

from swift_autobatch import receipt
from swift_autobatch.errors import InputError, Interrupted, MachineError, TrainingError
from swift_autobatch.records import Answer, Died, Measured, Reason, Run, Step, Verdict, replace

KEYS = [
    "schema",
    "written",
    "verdict",
    "reason",
    "plan_digest",
    "machine_class",
    "strategy",
    "kind",
    "model",
    "data_digest",
    "versions",
    "folder",
    "port",
    "predicted",
    "measured",
    "tries",
    "child_exit",
    "training",
]


def step(number: int, loss: float = 2.0) -> Step:
    return Step(step=number, loss=loss, grad_norm=1.0, token_acc=0.5, learning_rate=1e-4, step_s=0.1)


PEAK = Measured(
    phase="first_step",
    gpu_allocated_bytes=None,
    gpu_reserved_bytes=None,
    driver_bytes=None,
    rss_bytes=5,
    rss_sum_bytes=10,
    seconds=0.2,
)


def verdict(folder: Path, word: str = "pass", code: str = "pass", number: int = 1) -> Verdict:
    return Verdict(
        verdict=word,  # type: ignore[arg-type]
        reason=Reason(code=code, text="words", hints=("hint",)),
        measured=(PEAK,),
        steps=(step(1), step(2, float("nan"))),
        child_exit=0,
        seconds=12.0,
        folder=str(folder / "autoswift/gate" / str(number)),
        rows=(),
    )


def finished(folder: Path) -> Run:
    return Run(
        folder=str(folder),
        checkpoint=str(folder / "checkpoint-3"),
        child_exit=0,
        steps=(step(3),),
        measured=(PEAK,),
        seconds=30.0,
        infer_command="swift infer --model x",
        answers=(Answer(question="who?", expected="Ada", answer="Ada "),),
    )


def test_a_receipt_is_written_twice_and_read_back(tmp_path: Path) -> None:
    plan, env, folder = jobs.plan(tmp_path), jobs.environment(tmp_path), tmp_path / "run"
    kept = receipt.record(plan, folder=folder, env=env, verdict=verdict(folder), run=finished(folder))
    read = receipt.read(folder / "autoswift/receipt.json")
    assert list(read) == KEYS
    assert dict(read) == {key: kept[key] for key in KEYS}
    assert receipt.read(Path(env.state_dir) / "receipts/1xcpu-ram16/run.json") == read
    assert read["predicted"]["phases"]["first_step"]["host_bytes"] == plan.prediction.phases[0].host_bytes
    assert read["measured"]["phases"]["first_step"]["rss_sum_bytes"] == 10
    assert read["measured"]["loss"] == [2.0, "nan"]
    assert read["training"]["answers"][0]["matches"] is True
    assert read["training"]["steps"] == 3


def test_it_is_strict_json(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    receipt.record(
        jobs.plan(tmp_path), folder=folder, env=jobs.environment(tmp_path), verdict=verdict(folder), run=None
    )

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads((folder / "autoswift/receipt.json").read_text(), parse_constant=refuse)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    plan, env, folder = jobs.plan(tmp_path), jobs.environment(tmp_path), tmp_path / "run"
    first = receipt.record(plan, folder=folder, env=env, verdict=verdict(folder), run=None)
    second = receipt.record(plan, folder=folder, env=env, verdict=verdict(folder), run=finished(folder))
    assert first["path"] != second["path"]
    assert receipt.read(Path(first["path"]))["training"] is None
    assert [found["training"] is None for _, found in receipt.read_all(env)] == [True, False]
    assert len(receipt.read_all(env, plan.machine_class)) == 2
    assert receipt.read_all(env, "other") == ()


def test_a_skipped_dry_run_and_a_failed_training_are_said(tmp_path: Path) -> None:
    plan, folder = jobs.plan(tmp_path), tmp_path / "run"
    failure = TrainingError("it broke", child_exit=1)
    built = receipt.build(plan, folder=folder, verdict=None, run=None, failure=failure)
    assert (built["verdict"], built["reason"]["code"], built["child_exit"]) == ("unknown", "skipped", 1)
    assert built["training"] == {"done": False, "reason": {"code": "failed", "text": "it broke"}, "died": []}
    stopped = receipt.build(plan, folder=folder, verdict=None, run=None, failure=Interrupted(2))
    assert stopped["training"]["reason"]["code"] == "interrupted"


def test_every_try_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = verdict(folder, number=1)
    before = replace(before, reason=replace(before.reason, code="port"))
    last = replace(verdict(folder, number=2), earlier=(before,))
    built = receipt.build(jobs.plan(tmp_path), folder=folder, verdict=last, run=None)
    assert [(item["folder"], item["code"]) for item in built["tries"]] == [
        ("autoswift/gate/1", "port"),
        ("autoswift/gate/2", "pass"),
    ]


def test_a_collection_that_cannot_be_written_does_not_lose_the_receipt(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    env = replace(jobs.environment(tmp_path), state_dir=str(tmp_path / "state"))
    folder = tmp_path / "run"
    kept = receipt.record(jobs.plan(tmp_path), folder=folder, env=env, verdict=verdict(folder), run=None)
    assert kept["copy"] is None
    assert Path(kept["path"]).is_file()


def test_a_receipt_of_version_1_is_read_as_today(tmp_path: Path) -> None:
    """What 0.1.0 wrote before jobs could be gone on with, cut to what matters here."""
    old = {"schema": "autoswift.receipt/1", "strategy": "cpu-ddp", "training": {"done": True, "steps": 8}}
    (tmp_path / "receipt.json").write_text(json.dumps(old))
    read = receipt.read(tmp_path / "receipt.json")
    assert (read["schema"], read["kind"]) == ("autoswift.receipt/2", None)
    assert read["training"] == {"done": True, "steps": 8, "died": []}
    (tmp_path / "receipt.json").write_text(json.dumps({**old, "training": None}))
    assert receipt.read(tmp_path / "receipt.json")["training"] is None


def test_every_older_schema_leads_to_the_newest() -> None:
    for schema in receipt.MIGRATIONS:
        found = {"schema": schema}
        for _ in receipt.MIGRATIONS:
            step = receipt.MIGRATIONS.get(str(found["schema"]))
            found = step(found) if step else found
        assert found["schema"] == receipt.SCHEMA


def test_what_a_job_died_of_is_kept(tmp_path: Path) -> None:
    one = Died(code="gpu-oom", text="it died", child_exit=1, folder="f", checkpoint=None, batch=(4, 1, 2))
    built = receipt.build(jobs.plan(tmp_path), folder=tmp_path, verdict=None, run=finished(tmp_path), died=(one,))
    assert json.loads(json.dumps(built))["training"]["died"] == [
        {
            "code": "gpu-oom",
            "text": "it died",
            "child_exit": 1,
            "folder": "f",
            "checkpoint": None,
            "batch": [4, 1, 2],
        }
    ]


def test_a_receipt_is_found_by_name_file_and_folder(tmp_path: Path) -> None:
    plan, env = jobs.plan(tmp_path), jobs.environment(tmp_path)
    with pytest.raises(InputError, match="there is no receipt 'last'") as none:
        receipt.find("last", env)
    assert "autoswift dry-run" in none.value.hints[0]
    folders = [tmp_path / name for name in ("20260101-1", "20260101-2")]
    for folder in folders:
        receipt.record(plan, folder=folder, env=env, verdict=verdict(folder), run=None)
    assert receipt.find("last", env)["folder"] == str(folders[1])
    for name in ("20260101-1", "20260101-1/autoswift/receipt.json", str(folders[0])):
        assert receipt.find(name, env)["folder"] == str(folders[0])
    with pytest.raises(InputError, match="2 receipts are called '202601'"):
        receipt.find("202601", env)
    with pytest.raises(InputError, match="there is no receipt 'nope'") as unknown:
        receipt.find("nope", env)
    assert unknown.value.hints == ("autoswift receipts ls lists them",)


def test_a_run_folder_that_cannot_be_written_leaves_the_copy(tmp_path: Path) -> None:
    env, folder = jobs.environment(tmp_path), tmp_path / "run"
    folder.write_text("a file, not a folder")
    kept = receipt.record(jobs.plan(tmp_path), folder=folder, env=env, verdict=verdict(folder), run=None)
    assert kept["path"] is None
    assert receipt.read(Path(kept["copy"]))["verdict"] == "pass"
    env = replace(env, state_dir=str(folder))
    with pytest.raises(MachineError):
        receipt.record(jobs.plan(tmp_path), folder=folder, env=env, verdict=verdict(folder), run=None)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("{", "not JSON"), ("[]", "schema is None"), ('{"schema": "x/9"}', "'x/9'")],
)
def test_what_is_no_receipt_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "receipt.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=said):
        receipt.read(path)
