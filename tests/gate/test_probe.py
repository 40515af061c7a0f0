"""The probe: the costliest batch, and the job's own command with nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_autobatch import render
from swift_autobatch.errors import InputError
from swift_autobatch.gate import probe
from swift_autobatch.records import Plan, Row


def test_the_costliest_batch_is_repeated_for_every_micro_batch(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, world=2, parallel="ddp", micro_batch=2, accumulation=4)
    rows = probe.probe_rows(plan)
    assert len(rows) == 2 * 2 * 2 * 2  # steps x accumulation x ranks x micro batch
    first, second = plan.facts.data.costliest[:2]
    assert rows[:4] == (first, first, second, second)  # the engine deals rows out in turn: each rank gets both
    assert rows[4:8] == rows[:4]


def _dealt(rows: tuple[Row, ...], rank: int, ranks: int, micro: int) -> list[tuple[Row, ...]]:
    """The micro batches of a rank, as swift/dataloader/shard.py deals them out without a shuffle."""
    own = rows[rank::ranks]
    return [own[at : at + micro] for at in range(0, len(own), micro)]


@given(ranks=st.integers(1, 4), micro=st.integers(1, 4), accumulation=st.integers(1, 3))
def test_every_rank_meets_every_kind_of_costliest_batch_after_its_first_step(
    ranks: int, micro: int, accumulation: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The longest row, the one with most labels and the one with most images may be three rows."""
    plan = jobs.plan(
        tmp_path_factory.mktemp("job"), world=ranks, parallel="ddp", micro_batch=micro, accumulation=accumulation
    )
    long, *rest = plan.facts.data.costliest
    labelled = replace(rest[5], supervised_tokens=500)
    pictured = replace(rest[9], record={**rest[9].record, "images": ["a.png", "b.png"]})
    rows = (long, *rest[:5], labelled, *rest[6:9], pictured, *rest[10:])
    plan = replace(plan, facts=replace(plan.facts, data=replace(plan.facts.data, costliest=rows)))
    probed = probe.probe_rows(plan)
    steps, summed = probe.probe_steps(plan), probe.probe_accumulation(plan)
    assert len(probed) == steps * summed * ranks * micro
    for rank in range(ranks):
        batches = _dealt(probed, rank, ranks, micro)
        later = batches[summed:]
        for row in (long, labelled, pictured):
            assert any(row in batch for batch in later)
        assert long in batches[-1]


def test_sequence_parallel_ranks_share_a_batch(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, world=4, sp=2, parallel="zero3", micro_batch=1, accumulation=1)
    assert len(probe.probe_rows(plan)) == 2 * 1 * 2 * 1


def test_too_few_rows_are_used_again(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, jobs.ROWS[:3], micro_batch=4, accumulation=1)
    rows = probe.probe_rows(plan)
    assert len(rows) == 8
    assert {row.line for row in rows} == {1, 2, 3}


def test_rows_that_the_engine_would_drop_are_passed_over_and_cut_ones_are_not(tmp_path: Path) -> None:
    longest = max(row.tokens for row in jobs.plan(tmp_path).facts.data.costliest)
    dropping = jobs.plan(tmp_path, max_length=longest - 1)
    assert all(row.tokens < longest for row in probe.probe_rows(dropping))
    cutting = jobs.plan(tmp_path, max_length=longest - 1, pins={"truncation_strategy": "left"})
    assert any(row.tokens == longest for row in probe.probe_rows(cutting))


def test_no_row_that_fits_is_said_with_the_length_that_would(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, max_length=8)
    shortest = min(row.tokens for row in plan.facts.data.costliest)
    with pytest.raises(InputError) as error:
        probe.probe_rows(plan)
    assert f"--max_length {shortest}" in error.value.hints


def test_rows_of_another_file_give_way_to_the_costliest(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    first, second, *rest = plan.facts.data.costliest
    mixed = (first, replace(second, file="/other.csv", record={"query": "q"}), *rest)
    plan = replace(plan, facts=replace(plan.facts, data=replace(plan.facts.data, costliest=mixed)))
    assert {row.file for row in probe.probe_rows(plan)} == {first.file}
    assert probe.probe_rows(plan)[1] == first


def test_packs_are_filled(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, packing=True, micro_batch=1, accumulation=1, max_length=1000)
    rows = probe.probe_rows(plan)
    assert sum(row.tokens for row in rows) > 2 * 1000


def test_fp16_on_a_card_takes_four_steps(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    assert probe.probe_steps(plan) == 2
    half = replace(plan, candidate=replace(plan.candidate, torch_dtype="float16", device="gpu"))
    assert probe.probe_steps(half) == 4
    assert len(probe.probe_rows(half)) == 2 * len(probe.probe_rows(plan))


@pytest.mark.parametrize(
    ("pins", "phases"),
    [
        ({}, ("save", "resume")),
        ({"save_strategy": "no"}, ()),
        ({"save_only_model": "true"}, ("save",)),
        ({"split_dataset_ratio": "0.1"}, ("eval", "save", "resume")),
        ({"val_dataset": "/v.jsonl", "save_strategy": "no"}, ()),  # the engine evaluates as often as it saves
        ({"val_dataset": "/v.jsonl", "save_strategy": "no", "eval_strategy": "epoch"}, ("eval",)),
        ({"val_dataset": "/v.jsonl", "eval_strategy": "no"}, ("save", "resume")),
    ],
)
def test_it_evaluates_saves_and_resumes_where_the_job_does(
    tmp_path: Path, pins: dict[str, str], phases: tuple[str, ...]
) -> None:
    plan = jobs.plan(tmp_path, pins=pins)
    assert probe.probe_phases(plan) == phases
    _, dry = _command(plan)
    assert dry["eval_strategy"] == (("steps",) if "eval" in phases else ("no",))
    assert dry["save_strategy"] == (("steps",) if "save" in phases else ("no",))
    assert ("autoswift_resume" in dry["callbacks"]) == ("resume" in phases)


def test_an_evaluation_batch_is_of_the_dearest_rows_of_the_validation_set(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path, world=2, parallel="ddp", pins={"per_device_eval_batch_size": "2"})
    first, second = plan.facts.data.costliest[:2]
    assert probe.eval_rows(plan) == (first, first, second, second)
    other = replace(first, file="/v.jsonl", tokens=first.tokens - 1)
    too_long = replace(other, tokens=10_000)
    assert probe.eval_rows(plan, (too_long, other)) == (other,) * 4


def _command(plan: Plan) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    artefacts = render.render(plan)
    probing = probe.probe_artefacts(plan, artefacts)
    return probe.split_argv(artefacts.argv), probe.split_argv(probing.argv)


CHANGED = {
    "dataset",
    "output_dir",
    "add_version",
    "max_steps",
    "gradient_accumulation_steps",
    "dataset_shuffle",
    "train_dataloader_shuffle",
    "split_dataset_ratio",
    "logging_steps",
    "logging_nan_inf_filter",
    "save_strategy",
    "eval_strategy",
    "report_to",
    "check_model",
    "val_dataset",
    "eval_steps",
    "save_steps",
    "external_plugins",
    "callbacks",
}


def test_only_what_makes_it_short_and_strict_is_changed(tmp_path: Path) -> None:
    pins = {
        "system": "--- You are Ada",
        "warmup_steps": "10",
        "val_dataset": "/v.jsonl",
        "eval_strategy": "steps",
        "group_by_length": "true",
        "resume_from_checkpoint": "/x/checkpoint-5",
        "num_train_epochs": "7",
    }
    job, dry = _command(jobs.plan(tmp_path, pins=pins, parallel="zero3", world=2))
    gone = {
        "num_train_epochs",
        "warmup_steps",
        "group_by_length",
        "resume_from_checkpoint",
    }
    assert set(job) - set(dry) == gone
    assert {name for name in dry if dry[name] != job.get(name)} <= CHANGED
    assert dry["system"] == ("--- You are Ada",)
    assert dry["learning_rate"] == job["learning_rate"]
    assert dry["deepspeed"] == job["deepspeed"]
    assert dry["max_steps"] == ("2",)
    assert dry["dataset"] == ("$RUN/probe.jsonl",)


@pytest.mark.parametrize(("job", "dry"), [(1, "1"), (2, "2"), (16, "2")])
def test_accumulation_is_kept_when_the_job_accumulates(tmp_path: Path, job: int, dry: str) -> None:
    assert _command(jobs.plan(tmp_path, accumulation=job))[1]["gradient_accumulation_steps"] == (dry,)


def test_the_folder_of_the_dry_run_has_its_own_script(tmp_path: Path) -> None:
    plan = jobs.plan(tmp_path)
    files = probe.probe_artefacts(plan, render.render(plan)).files
    assert "--max_steps 2" in files["run.sh"]
    assert "probe.jsonl" in files["run.sh"]
    assert "plugins/telemetry.py" in files


def test_the_probe_file_holds_the_rows_as_they_stand(tmp_path: Path) -> None:
    rows = probe.probe_rows(jobs.plan(tmp_path))
    lines = [json.loads(line) for line in probe.probe_text(rows).splitlines()]
    assert lines == [dict(row.record) for row in rows]


_VALUES = st.lists(st.text(min_size=1).filter(lambda text: not text.startswith("--")), max_size=3).map(tuple)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_0-9]{0,12}", fullmatch=True), _VALUES, max_size=6))
def test_joining_undoes_splitting(flags: dict[str, tuple[str, ...]]) -> None:
    assert probe.split_argv(probe.join_argv(flags)) == flags


def test_the_last_occurrence_of_a_flag_wins() -> None:
    assert probe.split_argv(("--a", "1", "--b", "--a", "2", "3")) == {"a": ("2", "3"), "b": ()}
