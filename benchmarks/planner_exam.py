"""Examines the planner: is its answer brute force's, within its budget, and does the installed engine take it?

planner_exam.py [--all] [--skip-engine] [--skip-start]

Machines of 24, 48, 80 and 141 GB cards x 1, 2, 4, 8 of them x LoRA, QLoRA and full tuning x rows of 2k, 32k and 128k
tokens x a dense, a mixture-of-experts and a vision-language model: 48 scenarios that meet every pair of a machine and a
tuning, ``--all`` all 432. From 32k on FlashAttention and Liger count as installed. For each scenario:

- the plan equals the best of all legal candidates, each costed by the same predictor;
- it is within the budgets of card and host;
- the installed ms-swift's own argparse takes the rendered argv, and DeepSpeed's config class the rendered JSON.

Then every shipped strategy is rehearsed on CPU processes. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import builders

from swift_autobatch import machines, rules
from swift_autobatch.candidates import enumerate_space
from swift_autobatch.errors import NothingFitsError
from swift_autobatch.pins import pinned_fields
from swift_autobatch.planner import choose, cuts, make_plan
from swift_autobatch.records import Facts, Plan, Request, Strategy
from swift_autobatch.render import render
from swift_autobatch.search import Scored, brute_force, order_for
from swift_autobatch.strategies import load_strategies

HERE = Path(__file__).parent
CARDS = {"24": "4090", "48": "A6000", "80": "A100-80G", "141": "H200"}
COUNTS = (1, 2, 4, 8)
TUNINGS: dict[str, dict[str, str]] = {
    "lora": {"tuner_type": "lora"},
    "qlora": {"tuner_type": "lora", "quant_method": "bnb", "quant_bits": "4"},
    "full": {"tuner_type": "full"},
}
LENGTHS = {"2k": 2048, "32k": 32_768, "128k": 128_000}
MODELS = {
    "dense": "meta-llama/Llama-3.1-8B-Instruct",
    "moe": "Qwen/Qwen3-VL-30B-A3B-Instruct",  # its text model is Qwen3-30B-A3B's, and takes 128k tokens
    "vl": "Qwen/Qwen2.5-VL-7B-Instruct",
}
ROWS = 256
ROOT, HOME = "/project", "/home/user"


@dataclass(frozen=True)
class Scenario:
    """One machine, tuning, length and kind of model, by their keys above."""

    card: str
    count: int
    tuning: str
    length: str
    model: str

    def __str__(self) -> str:
        return f"{self.count} x {self.card} GB, {self.tuning}, {self.length}, {self.model}"


def scenarios(*, every: bool) -> Iterator[Scenario]:
    """All of them, or those in which lengths and models take turns over machines and tunings."""
    turns = list(itertools.product(LENGTHS, MODELS))
    for number, (card, count, tuning) in enumerate(itertools.product(CARDS, COUNTS, TUNINGS)):
        shown = turns if every else [turns[(number * 4 + number // 9) % len(turns)]]
        yield from (Scenario(card, count, tuning, length, model) for length, model in shown)


def job(scenario: Scenario, folder: Path) -> tuple[Facts, Request]:
    """The scenario as facts and a request: rows of a quarter, half and the whole of the length."""
    longest = LENGTHS[scenario.length]
    lengths = tuple(longest * share // 4 for share in (1, 2, 4) for _ in range(ROWS // 3))
    spec = f"{scenario.count}x{CARDS[scenario.card]}"
    facts = builders.facts(folder, spec, MODELS[scenario.model], lengths)
    if longest > LENGTHS["2k"]:
        for name, version in (("flash-attn", "2.8.3"), ("liger-kernel", "0.6.4")):
            facts = machines.with_software(facts, name, version)
    return facts, builders.request(pins=TUNINGS[scenario.tuning])


def proved(facts: Facts, request: Request, table: tuple[Strategy, ...]) -> Scored | None:
    """The best plan by costing every legal candidate, on the whole rows and then on each shorter cut."""
    pins, order = pinned_fields(request, Path(ROOT)), order_for(request, facts)
    for cut in (None, *cuts(facts)):
        space = enumerate_space(facts, request, table, pins, cut)
        found = brute_force(space.families, facts, order)
        if found is not None:
            return found
    return None


@dataclass
class Sheet:
    """What was found."""

    misses: list[str]
    plans: list[tuple[Scenario, Plan]]
    search_s: list[float]
    costed: int = 0
    legal: int = 0
    nothing: int = 0


def examine(scenario: Scenario, folder: Path, table: tuple[Strategy, ...], sheet: Sheet) -> None:
    """One scenario: search, brute force, budget."""
    facts, request = job(scenario, folder)
    start = time.process_time()
    choice = choose(request, facts, table, pinned_fields(request, Path(ROOT)))
    sheet.search_s.append(time.process_time() - start)
    sheet.costed += len(choice.costs.known)
    sheet.legal += len(choice.space.legal)
    answer = proved(facts, request, table)
    if (choice.best and choice.best[0]) != (answer and answer[0]):
        sheet.misses.append(f"{scenario}: search chose {choice.best and choice.best[0]}, brute force {answer}")
    if choice.best is None:
        sheet.nothing += 1
        try:
            make_plan(request, facts, table, ROOT, HOME)
        except NothingFitsError as error:
            if not error.figures or not error.hints:
                sheet.misses.append(f"{scenario}: nothing fits, and no figure or hint says why")
        return
    plan = make_plan(request, facts, table, ROOT, HOME)
    if not plan.prediction.fits:
        sheet.misses.append(f"{scenario}: the plan is over its budget")
    sheet.plans.append((scenario, plan))


def rendered(plan: Plan) -> dict[str, Any]:
    """A plan as the engine will meet it."""
    files = render(plan)
    config = files.files.get("ds.json")
    return {"argv": list(files.argv), "deepspeed": json.loads(config) if config else None}


def ask_engine(sheet: Sheet) -> None:
    """Every rendered argv and DeepSpeed JSON past the installed parsers."""
    asked = [rendered(plan) for _, plan in sheet.plans]
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_accepts.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode != 0:
        sheet.misses.append(f"the engine's parsers did not start: {done.stderr[-500:]}")
        return
    answers = json.loads(done.stdout)
    for (scenario, _), answer in zip(sheet.plans, answers, strict=True):
        if answer:
            sheet.misses.append(f"{scenario}: the engine refuses it: {answer}")
    with_config = sum(plan["deepspeed"] is not None for plan in asked)
    print(f"engine: {len(answers)} argv and {with_config} DeepSpeed configs put to the installed parsers")


def start_each(sheet: Sheet) -> None:
    """Every shipped strategy through ``autoswift rehearse``, on CPU processes."""
    import public_command

    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, HF_HUB_OFFLINE="1", TORCH_EXTENSIONS_DIR=f"{home}/extensions")
        os.environ.update(XDG_CACHE_HOME=f"{home}/.cache", XDG_STATE_HOME=f"{home}/.state")
        for strategy in load_strategies():
            if strategy.use.get("parallel") == "megatron":
                print(f"  not started: {rules.find(rules.UNRENDERED).why} (rule {rules.UNRENDERED})")
                continue
            project = Path(home, strategy.name)
            project.mkdir()
            start = time.perf_counter()
            done = public_command.run(project, "rehearse", strategy.name, "--json")
            passed = done.exit_code == 0 and done.json["verdict"] == "pass"
            print(f"  {strategy.name}: {'pass' if passed else 'MISS'}, {time.perf_counter() - start:.0f} s")
            if not passed:
                sheet.misses.append(f"{strategy.name} does not start on CPU processes: {done.stderr[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all 432 scenarios instead of 48")
    parser.add_argument("--skip-engine", action="store_true", help="do not ask the engine's parsers")
    parser.add_argument("--skip-start", action="store_true", help="start nothing")
    options = parser.parse_args()
    sheet, table = Sheet([], [], []), load_strategies()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for scenario in scenarios(every=options.all):
            examine(scenario, Path(folder), table, sheet)
    spent = time.perf_counter() - start
    total = len(sheet.search_s)
    print(f"{total} scenarios, {len(sheet.plans)} planned, {sheet.nothing} where nothing fits")
    print(f"costed {sheet.costed} of {sheet.legal} legal candidates; search {max(sheet.search_s):.2f} s of CPU at most")
    print(
        "parallel: " + ", ".join(f"{k} {n}" for k, n in Counter(p.candidate.parallel for _, p in sheet.plans).items())
    )
    print(f"search, brute force and plans took {spent:.0f} s")
    if not options.skip_engine:
        ask_engine(sheet)
    if not options.skip_start:
        print("started for real on CPU processes:")
        start_each(sheet)
    for miss in sheet.misses:
        print(f"MISS {miss}")
    print(f"{len(sheet.misses)} misses")
    return 1 if sheet.misses else 0


if __name__ == "__main__":
    sys.exit(main())
