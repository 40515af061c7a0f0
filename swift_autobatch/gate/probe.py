"""Builds what the dry run trains on, and turns the job's command into the dry run's. Pure: starts nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from swift_autobatch.errors import InputError
from swift_autobatch.records import Artefacts, Plan, Row, replace
from swift_autobatch.render.script import script

PROBE_FILE = "probe.jsonl"
STEPS = 2  # NaN shows at the second step only
STEPS_FP16 = 4  # the loss scaler skips early steps; the last one is judged
ACCUMULATION = 2  # enough for gradients to be summed into buffers that the job keeps as well

# Flags of the job that the dry run leaves out: what would end it early, split or reorder its rows, save, or evaluate.
_LEFT_OUT = (
    "num_train_epochs",
    "max_epochs",
    "warmup_ratio",
    "warmup_steps",
    "val_dataset",
    "cached_dataset",
    "cached_val_dataset",
    "group_by_length",  # refused together with train_dataloader_shuffle false (swift/dataloader/shard.py:32)
    "resume_from_checkpoint",
    "load_best_model_at_end",
    "eval_on_start",
    "save_steps",
    "eval_steps",
)
_FLAG = re.compile(r"--[A-Za-z_]\w*")


def probe_steps(plan: Plan) -> int:
    """Optimizer steps of the dry run."""
    fp16 = plan.candidate.torch_dtype == "float16" and plan.candidate.device == "gpu"
    return STEPS_FP16 if fp16 else STEPS


def probe_accumulation(plan: Plan) -> int:
    """Micro batches per step of the dry run: 2 when the job accumulates, else 1."""
    return min(plan.candidate.accumulation, ACCUMULATION)


def probe_rows(plan: Plan) -> tuple[Row, ...]:
    """The costliest batch of the dataset, repeated for every micro batch of every step.

    A batch is micro batch x data-parallel ranks rows. Rows that the engine would drop (longer than max_length
    unless they are cut) are passed over; where the costliest rows come from several files the rows of the others are
    replaced by the costliest one, because the engine reads one file under one column layout.

    Raises:
        InputError: no row is short enough to be trained on.
    """
    candidate = plan.candidate
    usable = tuple(row for row in plan.facts.data.costliest if _trains(row, plan))
    if not usable:
        shortest = min((row.tokens for row in plan.facts.data.costliest), default=0)
        raise InputError(
            f"no costly row fits max_length {candidate.max_length}: the shortest of them has {shortest} tokens",
            where="--max_length",
            hints=(f"--max_length {shortest}", "--truncation_strategy left keeps such rows, cut"),
        )
    size = candidate.micro_batch * candidate.dp
    batch = tuple(usable[index % len(usable)] for index in range(size))
    batch = tuple(row if row.file == usable[0].file else usable[0] for row in batch)
    times = probe_steps(plan) * probe_accumulation(plan)
    if candidate.packing:  # a pack holds several rows: enough of them to fill every pack, and one over
        shortest = max(1, min(row.tokens for row in batch))
        times = times * -(-candidate.max_length // shortest) + 1
    return batch * times


def _trains(row: Row, plan: Plan) -> bool:
    strategy = plan.engine_args.get("truncation_strategy")
    cut = strategy is not None and strategy.value in ("left", "right")
    return cut or row.tokens <= plan.candidate.max_length


def probe_text(rows: Sequence[Row]) -> str:
    """The probe file: each row as it stands in the dataset."""
    return "".join(json.dumps(dict(row.record), ensure_ascii=False) + "\n" for row in rows)


def probe_artefacts(plan: Plan, artefacts: Artefacts) -> Artefacts:
    """The dry run's command: the job's own, with only what makes it short, unsaved and strict changed."""
    flags = {name: values for name, values in split_argv(artefacts.argv).items() if name not in _LEFT_OUT}
    overrides: dict[str, tuple[str, ...]] = {
        "dataset": (f"$RUN/{PROBE_FILE}",),
        "output_dir": ("$RUN",),
        "add_version": ("false",),
        "max_steps": (str(probe_steps(plan)),),
        "gradient_accumulation_steps": (str(probe_accumulation(plan)),),
        "dataset_shuffle": ("false",),
        "train_dataloader_shuffle": ("false",),
        "split_dataset_ratio": ("0",),
        "logging_steps": ("1",),
        "logging_nan_inf_filter": ("false",),
        "save_strategy": ("no",),
        "eval_strategy": ("no",),
        "report_to": ("none",),
        "check_model": ("false",),
    }
    argv = join_argv({**flags, **overrides})
    files = dict(artefacts.files)
    files["run.sh"] = script(plan, argv, artefacts.env)
    return replace(artefacts, argv=argv, files=files)


def split_argv(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``--flag value value`` words as flag -> values; the last occurrence of a flag wins, as in the engine."""
    flags: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if _FLAG.fullmatch(word):
            name = word[2:]
            flags[name] = ()
        else:
            flags[name] = (*flags.get(name, ()), word)
    return flags


def join_argv(flags: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The inverse of :func:`split_argv`."""
    return tuple(word for name, values in flags.items() for word in (f"--{name}", *values))
