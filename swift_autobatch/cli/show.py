"""What people read on stdout of ``autoswift plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swift_autobatch.cli import show_profile, text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.facts.summary import trained
from swift_autobatch.records import Plan, Prediction, RunnerUp, Sourced
from swift_autobatch.units import counted, show_count, show_gib, show_seconds

# Engine arguments whose value answers a question that people ask first, with the words to ask it in.
_ASKED_FIRST = (
    ("learning_rate", "learning rate"),
    ("warmup_ratio", "warmup ratio"),
    ("max_length", "max length"),
    ("torch_dtype", "dtype"),
    ("num_train_epochs", "epochs"),
)


def plan(decided: Plan, *, verbose: bool = False, columns: int | None = None) -> list[str]:
    """A plan for people: the choice, what had to give, memory, time, the command, and what lost."""
    columns = columns or text.width()
    parts = [
        _choice(decided, columns),
        section("What had to give", text.bullets(decided.notes, columns)),
        section("Problems in the data", show_profile.problems(decided.facts.data, columns, verbose=verbose)),
        section(_memory_title(decided), _memory(decided, columns)),
        section("Host RAM, all processes (predicted)", _host(decided.prediction, columns)),
        section(
            "Time (predicted)",
            [*text.rows(_time(decided), columns), *_time_terms(decided.prediction, columns)],
        ),
        section("Command ($ROOT: this folder, $RUN: the run folder)", _command(decided, columns)),
        section("Runners-up", _runners_up(decided.runners_up, columns)),
        section("What would change the answer", text.bullets(decided.changes, columns)),
        section("You may also want", text.bullets(decided.proposals, columns)),
        section("Assumed", text.bullets(_assumed(decided), columns)),
    ]
    if verbose:
        parts += [
            section("Memory terms", text.bullets(_whys(decided), columns)),
            section("Where every value comes from", _sources(decided.engine_args, "--", columns)),
            section("Environment", _sources(decided.env, "", columns)),
            section("Refused by a rule", text.bullets(_illegal(decided), columns)),
        ]
    return joined(parts)


def _choice(decided: Plan, columns: int) -> list[str]:
    candidate, facts = decided.candidate, decided.facts
    model, data = facts.model, facts.data
    pairs = [
        ("model", f"{model.id} ({show_count(model.params_total)} parameters), {_tuning(decided)}"),
        ("machine", f"{decided.machine_class} ({facts.machine.source})"),
        ("strategy", f"{candidate.strategy}: {decided.strategy.summary if decided.strategy else decided.because}"),
        (
            "batch",
            f"{candidate.micro_batch} a device x {counted(candidate.dp, 'rank')} x "
            f"{candidate.accumulation} accumulation = {candidate.effective_batch} effective",
        ),
        *(
            (words, f"{_value(decided.engine_args[flag].value)} ({decided.engine_args[flag].source})")
            for flag, words in _ASKED_FIRST
            if flag in decided.engine_args
        ),
        (
            "rows",
            f"{trained(data)}; tokens P50 {data.p50_tokens}, P95 {data.p95_tokens}, "
            f"{show_profile.longest(data)}{_cut(decided)} ({data.tokenizer})",
        ),
        (
            "will run",
            f"attention {decided.effective.attention}, loss {decided.effective.loss}, "
            f"{decided.effective.precision}, {decided.effective.optimizer}",
        ),
        *(("", note) for note in decided.effective.notes),
    ]
    return [f"Plan {decided.digest[:8]}", *text.rows(pairs, columns)]


def _cut(decided: Plan) -> str:
    limit, facts = decided.candidate.max_length, decided.facts
    return f", cut to {limit}" if facts.cuts_rows and facts.data.max_tokens > limit else ""


def _tuning(decided: Plan) -> str:
    candidate = decided.candidate
    words = [candidate.tuner + (f" rank {candidate.lora_rank}" if candidate.tuner == "lora" else "")]
    if candidate.quant != "none":
        words.append(candidate.quant)
    if candidate.parallel != "none":
        words.append(candidate.parallel)
    words += [f"{name} {size}" for name, size in (("tp", candidate.tp), ("sp", candidate.sp)) if size > 1]
    if candidate.gradient_checkpointing:
        words.append("checkpointing")
    return ", ".join(words)


def _value(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def device(decided: Plan) -> str:
    """What memory is counted per: a card, or a process on the CPU."""
    return "card" if decided.candidate.device == "gpu" else "process"


def _memory_title(decided: Plan) -> str:
    phase = decided.prediction.binding_phase.replace("_", " ")
    return f"Memory a {device(decided)} (predicted, {phase})"


def _memory(decided: Plan, columns: int) -> list[str]:
    prediction = decided.prediction
    budget = max(1, prediction.budget_bytes)
    terms = [(name, size) for name, size in memory_parts(prediction) if show_gib(size) != show_gib(0)]
    totals = [
        ("expected", prediction.driver_bytes),
        ("needs (p99)", prediction.demand_bytes),
        ("budget", prediction.budget_bytes),
    ]
    wide = max(len(name) for name, _ in (*terms, *totals))
    cells = max(8, columns - wide - 20)

    def line(name: str, size: int) -> str:
        return f"  {name:{wide}}  {show_gib(size):>11}  {text.bar(size / budget, cells)}"

    lines = [line(name, size) for name, size in terms]
    lines.append("  " + "-" * (wide + 13))
    lines += [line(name, size) for name, size in totals]
    return [*lines, *text.wrapped(_three_figures(prediction), columns)]


def memory_parts(prediction: Prediction) -> list[tuple[str, int]]:
    """What the expected memory of a card consists of, in bytes; the parts sum to ``driver_bytes``."""
    beside = prediction.context_bytes + prediction.nccl_bytes
    return [
        *((term.name, term.bytes) for term in prediction.terms),
        ("fragmentation", prediction.driver_bytes - beside - prediction.allocated_bytes),
        ("context", prediction.context_bytes),
        ("NCCL", prediction.nccl_bytes),
    ]


def _three_figures(prediction: Prediction) -> str:
    """Allocated, reserved and driver memory, and the least that the run survives in."""
    reserved = prediction.driver_bytes - prediction.context_bytes - prediction.nccl_bytes
    words = (
        f"allocated {show_gib(prediction.allocated_bytes)}, reserved {show_gib(reserved)}, "
        f"driver {show_gib(prediction.driver_bytes)}; it survives with {show_gib(prediction.needs_p50_bytes)} reserved"
    )
    if prediction.driver_bytes > prediction.demand_bytes:
        words += " (more is expected than needed: what was freed stays cached until the card is full)"
    if prediction.replay is None or prediction.replay_otherwise is None:
        return words
    ours, other = prediction.replay, prediction.replay_otherwise
    kind = "fixed" if ours.expandable else "expandable"
    return f"{words}; {kind} segments would reserve {show_gib(other.varied_bytes)} over these rows, if there is room"


def _host(prediction: Prediction, columns: int) -> list[str]:
    words = (
        f"{show_gib(prediction.host_bytes)} expected, at most {show_gib(prediction.host_p99_bytes)} "
        f"of {show_gib(prediction.host_budget_bytes)}"
    )
    return text.wrapped(words, columns)


def _time(decided: Plan) -> list[tuple[str, str]]:
    prediction = decided.prediction
    steps = f"{counted(decided.steps_per_epoch, 'step')} of {decided.total_steps}"
    return [
        ("step", f"{show_seconds(prediction.step_s)}, bound by {prediction.bound_by}"),
        ("speed", f"{show_count(prediction.tokens_per_s)} tokens/s, {prediction.samples_per_s:.3g} rows/s"),
        (
            "epoch",
            f"{show_seconds(prediction.epoch_s)}: {steps}",
        ),
    ]


def _time_terms(prediction: Prediction, columns: int) -> list[str]:
    """The parts of a step as bars, each as a share of it."""
    parts = [(name, seconds) for name, seconds in prediction.time_terms if seconds >= 0.01 * prediction.step_s]
    wide = max((len(name) for name, _ in parts), default=0)
    cells = max(8, columns - wide - 20)
    return [
        f"  {name:{wide}}  {show_seconds(seconds):>11}  {text.bar(seconds / max(prediction.step_s, 1e-9), cells)}"
        for name, seconds in parts
    ]


def _command(decided: Plan, columns: int) -> list[str]:
    # A port "free" is chosen at launch; typed by hand, the engine's own default will do.
    env = {name: var.value for name, var in decided.env.items() if not var.value.endswith(":-free}")}
    words = ["swift", "sft"]
    for flag, arg in decided.engine_args.items():
        words += [f"--{flag}", *([arg.value] if isinstance(arg.value, str) else arg.value)]
    return text.command(words, columns, env)


def _runners_up(items: Sequence[RunnerUp], columns: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        one, made = item.candidate, item.prediction
        batch = f"{one.micro_batch} x {one.dp} x {one.accumulation}"
        figures = ""
        if made and made.fits:
            figures = f" ({show_gib(made.demand_bytes, 1)}, {show_seconds(made.epoch_s)} an epoch)"
        words = f"{one.strategy}, {batch}{figures}: {item.why}"
        lines += text.wrapped(words, columns, indent="    ", first="  - ")
    return lines


def _assumed(decided: Plan) -> list[str]:
    """Every assumption once, machine first."""
    return list(dict.fromkeys((*decided.facts.machine.assumed, *decided.prediction.assumptions)))


def _sources(
    values: Mapping[str, Sourced[str | tuple[str, ...]]] | Mapping[str, Sourced[str]], dashes: str, columns: int
) -> list[str]:
    lines: list[str] = []
    for name, found in values.items():
        lines += text.wrapped(f"{dashes}{name} {_value(found.value)}", columns, indent="      ", first="  ")
        lines += text.wrapped(found.source, columns, indent="      ")
    return lines


def _whys(decided: Plan) -> list[str]:
    return [f"{term.name}, {show_gib(term.bytes)}: {term.why}" for term in decided.prediction.terms if term.bytes]


def _illegal(decided: Plan) -> list[str]:
    return sorted({f"{item.candidate.strategy}: {item.why} ({item.rule})" for item in decided.illegal})
