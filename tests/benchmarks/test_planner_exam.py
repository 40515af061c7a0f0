"""The planner's exam: its scenarios meet every machine and tuning, and what it finds here is what it says."""

from __future__ import annotations

from pathlib import Path

import planner_exam
import pytest

from swift_autobatch.strategies import load_strategies


def test_the_scenarios_meet_every_machine_and_tuning() -> None:
    few, every = list(planner_exam.scenarios(every=False)), list(planner_exam.scenarios(every=True))
    assert (len(few), len(every)) == (48, 432)
    assert set(few) < set(every)
    assert len({(one.card, one.count, one.tuning) for one in few}) == 48
    assert len({(one.length, one.model) for one in few}) == 9


@pytest.mark.parametrize("number", [1, 14, 30, 46])
def test_a_scenario_passes(number: int, tmp_path: Path) -> None:
    sheet = planner_exam.Sheet([], [], [])
    scenario = list(planner_exam.scenarios(every=False))[number]
    planner_exam.examine(scenario, tmp_path, load_strategies(), sheet)
    assert not sheet.misses
    assert len(sheet.plans) + sheet.nothing == 1


def test_a_plan_over_another_order_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exam can fail: brute force in another order of choice finds another plan."""
    order_for = planner_exam.order_for
    facts = planner_exam.builders.facts(tmp_path)
    slowest = planner_exam.order_for(planner_exam.builders.request(prefer="memory"), facts)
    monkeypatch.setattr(planner_exam, "order_for", lambda request, facts: slowest)
    assert order_for is not planner_exam.order_for
    sheet = planner_exam.Sheet([], [], [])
    scenario = planner_exam.Scenario("80", 4, "lora", "2k", "dense")
    planner_exam.examine(scenario, tmp_path, load_strategies(), sheet)
    assert len(sheet.misses) == 1


@pytest.mark.engine
def test_the_engines_own_parsers_take_the_plans_and_refuse_nonsense(tmp_path: Path) -> None:
    sheet = planner_exam.Sheet([], [], [])
    for model in ("dense", "vl"):
        scenario = planner_exam.Scenario("80", 8, "full", "32k", model)
        planner_exam.examine(scenario, tmp_path, load_strategies(), sheet)
    planner_exam.ask_engine(sheet)
    assert sheet.plans
    assert not sheet.misses
