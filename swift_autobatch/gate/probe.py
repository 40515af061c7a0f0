"""Builds what the dry run trains on, and turns the job's command into the dry run's. Pure: starts nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from swift_autobatch.arguments import OWN
from swift_autobatch.errors import InputError
from swift_autobatch.records import Artefacts, Phase, Plan, Row, replace
from swift_autobatch.render import plugin
from swift_autobatch.render.script import script

PROBE_FILE = "probe.jsonl"
EVAL_FILE = "probe-eval.jsonl"
RESUME_PLUGIN = "resume.py"
STEPS = 2  # NaN shows at the second step only
STEPS_FP16 = 4  # the loss scaler skips early steps; the last one is judged
ACCUMULATION = 2  # enough for gradients to be summed into buffers that the job keeps as well

# Flags of the job that the dry run leaves out: what would end it early, split or reorder its rows, or save elsewhere.
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
    "push_to_hub",
    "use_flash_ckpt",
)
_FLAG = re.compile(r"--[A-Za-z_]\w*")


def probe_steps(plan: Plan, *, whole: bool = False) -> int:
    """Optimizer steps of the dry run: after the first one every kind of costliest batch is met."""
    fp16 = plan.candidate.torch_dtype == "float16" and plan.candidate.device == "gpu"
    kinds = len(_kinds(plan, _usable(plan)))
    return max(STEPS_FP16 if fp16 else STEPS, 1 + -(-kinds // probe_accumulation(plan, whole=whole)))


def probe_phases(plan: Plan) -> tuple[Phase, ...]:
    """What the dry run does after its steps, because the job will: evaluate, save, read the checkpoint back."""
    phases: list[Phase] = ["eval"] if _evaluates(plan) else []
    if _said(plan, "save_strategy") != "no":
        phases.append("save")
        if _said(plan, "save_only_model") != "true":
            phases.append("resume")
    return tuple(phases)


def _evaluates(plan: Plan) -> bool:
    """Source: swift/arguments/sft_args.py, ``_init_eval_strategy``: as often as it saves, where there is a split."""
    rows = any(_said(plan, flag) for flag in ("val_dataset", "cached_val_dataset"))
    ratio = _said(plan, "split_dataset_ratio")
    strategy = _said(plan, "eval_strategy") or _said(plan, "save_strategy")
    return strategy != "no" and (rows or (ratio is not None and float(ratio) > 0))


def _said(plan: Plan, flag: str) -> str | None:
    found = plan.engine_args.get(flag)
    if found is None:
        return None
    return found.value if isinstance(found.value, str) else " ".join(found.value)


def probe_accumulation(plan: Plan, *, whole: bool = False) -> int:
    """Micro batches per step of the dry run: 2 when the job accumulates, else 1; ``whole``: the job's own."""
    return plan.candidate.accumulation if whole else min(plan.candidate.accumulation, ACCUMULATION)


def probe_rows(plan: Plan, *, whole: bool = False) -> tuple[Row, ...]:
    """The costliest batches of the dataset, laid out so that every rank meets each of them.

    A rank's micro batch is the dearest rows there are: by tokens, and where those are others also by supervised tokens
    (logits) and by images. The kinds take turns and the one by tokens comes last, when the optimizer's states exist.
    The engine deals rows out in turn (swift/dataloader/shard.py), so that a row stands once for each rank.

    Rows that the engine would drop (longer than max_length unless they are cut) are passed over; where the costliest
    rows come from several files the rows of the others are replaced by the costliest one, because the engine reads one
    file under one column layout.

    Raises:
        InputError: no row is short enough to be trained on.
    """
    candidate = plan.candidate
    usable = _usable(plan)
    if not usable:
        shortest = min((row.tokens for row in plan.facts.data.costliest), default=0)
        raise InputError(
            f"no costly row fits max_length {candidate.max_length}: the shortest of them has {shortest} tokens",
            where="--max_length",
            hints=(f"--max_length {shortest}", "--truncation_strategy left keeps such rows, cut"),
        )
    times = probe_steps(plan, whole=whole) * probe_accumulation(plan, whole=whole)
    if candidate.packing:
        return _packed(usable, candidate.max_length) * (times * candidate.micro_batch * candidate.dp) + usable[:1]
    kinds = _kinds(plan, usable)
    batches = [kinds[left % len(kinds)] for left in reversed(range(times))]  # the first kind comes last
    return tuple(row for batch in batches for row in batch for _ in range(candidate.dp))


def eval_rows(plan: Plan, dearest: Sequence[Row] = ()) -> tuple[Row, ...]:
    """One evaluation batch a rank, of the dearest rows.

    Args:
        dearest: the dearest rows of a validation set, dearest first; empty: the training rows stand for it.
    """
    usable = _one_file(tuple(row for row in dearest if _trains(row, plan))) or _usable(plan)
    size = int(_said(plan, "per_device_eval_batch_size") or 1)
    if plan.candidate.packing:
        return _packed(usable, plan.candidate.max_length) * (size * plan.candidate.dp) + usable[:1]
    return tuple(row for row in _batch(usable, size) for _ in range(plan.candidate.dp))


def _usable(plan: Plan) -> tuple[Row, ...]:
    return _one_file(tuple(row for row in plan.facts.data.costliest if _trains(row, plan)))


def _one_file(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row if row.file == rows[0].file else rows[0] for row in rows)


def _kinds(plan: Plan, usable: tuple[Row, ...]) -> tuple[tuple[Row, ...], ...]:
    """One micro batch by each measure of cost, where it is not the same as one before it; the first is by tokens."""
    orders = (
        usable,
        sorted(usable, key=lambda row: -row.supervised_tokens),  # stable: among equals the longest first
        sorted(usable, key=lambda row: -_media(row)),
    )
    found: dict[tuple[int, ...], tuple[Row, ...]] = {}
    costs = (lambda row: row.tokens, lambda row: row.supervised_tokens, _media)
    for order, cost in zip(orders, costs, strict=True):
        batch = _batch(order, plan.candidate.micro_batch)
        if not any(sum(map(cost, batch)) <= sum(map(cost, other)) for other in found.values()):
            found[tuple(row.line for row in batch)] = batch
    return tuple(found.values())


def _batch(rows: Sequence[Row], size: int) -> tuple[Row, ...]:
    return tuple(rows[index % len(rows)] for index in range(size)) if rows else ()


def _media(row: Row) -> int:
    """Images and videos of a row."""
    found = (row.record.get(name) for name in ("images", "image", "videos", "video"))
    return sum(len(one) if isinstance(one, (list, tuple)) else 1 for one in found if one)


def _packed(rows: Sequence[Row], length: int) -> tuple[Row, ...]:
    """Rows that fill one pack of ``length`` tokens as far as the dearest ones can, dearest first."""
    pack: list[Row] = []
    left = length
    for row in rows:
        taken = max(1, left // max(1, row.tokens)) if not pack else left // max(1, row.tokens)
        pack += [row] * taken
        left -= taken * row.tokens
    return tuple(pack)


def _trains(row: Row, plan: Plan) -> bool:
    strategy = plan.engine_args.get("truncation_strategy")
    cut = strategy is not None and strategy.value in ("left", "right")
    return cut or row.tokens <= plan.candidate.max_length


def probe_text(rows: Sequence[Row]) -> str:
    """The probe file: each row as it stands in the dataset."""
    return "".join(json.dumps(dict(row.record), ensure_ascii=False) + "\n" for row in rows)


def probe_artefacts(plan: Plan, artefacts: Artefacts, *, whole: bool = False) -> Artefacts:
    """The dry run's command: the job's own, with only what makes it short and strict changed.

    It evaluates and saves once, after its last step, where the job does so at all, and reads what it saved.
    """
    flags = {name: values for name, values in split_argv(artefacts.argv).items() if name not in _LEFT_OUT}
    phases, steps = probe_phases(plan), str(probe_steps(plan, whole=whole))
    overrides: dict[str, tuple[str, ...]] = {
        "dataset": (f"$RUN/{PROBE_FILE}",),
        "output_dir": ("$RUN",),
        "add_version": ("false",),
        "max_steps": (steps,),
        "gradient_accumulation_steps": (str(probe_accumulation(plan, whole=whole)),),
        "dataset_shuffle": ("false",),
        "train_dataloader_shuffle": ("false",),
        "split_dataset_ratio": ("0",),
        "logging_steps": ("1",),
        "logging_nan_inf_filter": ("false",),
        "save_strategy": ("steps" if "save" in phases else "no",),
        "eval_strategy": ("steps" if "eval" in phases else "no",),
        "report_to": ("none",),
        "check_model": ("false",),
    }
    files = dict(artefacts.files)
    if "eval" in phases:
        overrides |= {"val_dataset": (f"$RUN/{EVAL_FILE}",), "eval_steps": (steps,)}
    if "save" in phases:
        overrides["save_steps"] = (steps,)
    if "resume" in phases:
        overrides["external_plugins"] = (*flags.get("external_plugins", ()), f"{OWN}/plugins/{RESUME_PLUGIN}")
        overrides["callbacks"] = (*flags.get("callbacks", ()), "autoswift_resume")
        files[f"plugins/{RESUME_PLUGIN}"] = plugin(RESUME_PLUGIN)
    argv = join_argv({**flags, **overrides})
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
