"""Sweeps, what would change the answer, and which cards hold a job: every line is a plan that was searched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch import explore, machines, sweep
from swift_autobatch.cli import show_explore
from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.facts.prices import read_prices
from swift_autobatch.planner import make_plan
from swift_autobatch.plot import plot_sweep
from swift_autobatch.records import Plan, Sourced
from swift_autobatch.request import build_request, read_environment
from swift_autobatch.strategies import load_strategies
from swift_autobatch.units import GIB
from swift_autobatch.whatif import changes

TABLE = load_strategies()
QWEN = "Qwen/Qwen2.5-7B-Instruct"
ROWS = (100, 200, 400) * 30


def decided(folder: Path, spec: str, model: str = QWEN, **asked: Any) -> Plan:
    facts = builders.facts(folder, spec, model, asked.pop("lengths", ROWS))
    return make_plan(builders.request(**asked), facts, TABLE, "/project", "/home/user")


def told(folder: Path, spec: str, model: str = QWEN, **asked: Any) -> tuple[str, ...]:
    plan = decided(folder, spec, model, **dict(asked))
    asked.pop("lengths", None)
    return changes(builders.request(**asked), plan, TABLE, "/project")


# ------------------------------------------------------------------------------------- what would change the answer


def test_a_factor_over_another_batch_says_so(tmp_path: Path) -> None:
    """Nine cards cannot make a step of 16 rows: a part of the factor is the larger step."""
    line = next(line for line in told(tmp_path, "8xA100-80G") if line.startswith("one more GPU"))
    assert "effective batch 18 instead of 16" in line
    twice = next(line for line in told(tmp_path, "2xA100-80G") if line.startswith("twice the GPUs"))
    assert "effective batch" not in twice


def test_nothing_plans_more_cards_than_one_machine_holds(tmp_path: Path) -> None:
    assert not any("GPU" in line for line in told(tmp_path, "16xA100-80G"))
    assert not any("twice" in line for line in told(tmp_path, "9xA100-80G"))
    with pytest.raises(UsageError, match="from 1 to 16"):
        sweep.parse("gpus 1..32")
    assert sweep.parse("gpus 16") == ("gpus", (16,))


def test_a_sweep_says_where_the_batch_differs(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1xA100-80G", QWEN, ROWS)
    for values, said in (((1, 3), True), ((1, 2), False)):
        shown = show_explore.sweep(sweep.sweep(builders.request(), facts, TABLE, {}, "gpus", values))
        assert ("not the same everywhere" in " ".join(shown)) is said
        assert any(" = 16 " in line for line in shown)
        assert any(" = 18 " in line for line in shown) is said


def test_a_card_with_two_prices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("A100-80G: 1.6\n'4090': 0.4\nA100 SXM4 80GB: 2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has a price already") as caught:
        read_prices(tmp_path / "p.yaml", "p.yaml")
    assert caught.value.where == "p.yaml:3"


def test_one_more_card_is_named_with_its_factor(tmp_path: Path) -> None:
    lines = told(tmp_path, "1xT4")
    assert any(re.match(r"one more GPU: \S+, batch \d+ x 2 x \d+.*, [\d.]+ x the speed$", line) for line in lines)


def test_a_factor_is_the_one_that_planning_there_gives(tmp_path: Path) -> None:
    now, grown = decided(tmp_path, "2xA100-80G"), decided(tmp_path, "4xA100-80G")
    line = next(line for line in told(tmp_path, "2xA100-80G") if line.startswith("twice the GPUs"))
    assert grown.candidate.strategy in line
    # The grown machine has the same cards and links; hosts are assumed in proportion.
    ratio = now.prediction.epoch_s / grown.prediction.epoch_s
    assert float(re.findall(r"([\d.]+) x the speed", line)[0]) == pytest.approx(ratio, rel=0.06)


def test_16_bit_and_offload_are_said_where_they_change(tmp_path: Path) -> None:
    assert any("one more GPU" in line and "in 16-bit" in line for line in told(tmp_path, "1xT4"))
    lines = told(tmp_path, "4x4090,ram=256", pins={"tuner_type": "full"})
    assert any("without offload" in line for line in lines)


def test_megatron_is_named_only_where_it_would_be_faster(tmp_path: Path) -> None:
    slow = told(tmp_path, "4x4090", "Qwen/Qwen2.5-14B-Instruct")
    assert any(line.startswith("Megatron (tp ") and "later version" in line for line in slow)
    assert not any("Megatron" in line for line in told(tmp_path, "1x4090"))


def test_nothing_is_said_that_changes_nothing(tmp_path: Path) -> None:
    for line in told(tmp_path, "8xH100"):
        factor = float(re.findall(r"([\d.]+) x the speed", line)[0])
        assert factor > 1


# -------------------------------------------------------------------------------------------------------- sweeps


@pytest.mark.parametrize(
    ("text", "axis", "values"),
    [
        ("gpus 1..4", "gpus", (1, 2, 3, 4)),
        ("gpus 1,2,8", "gpus", (1, 2, 8)),
        ("gpus", "gpus", None),
        ("length 1000..5000", "length", (1000, 2000, 4000, 5000)),
        ("length", "length", None),
    ],
)
def test_ranges(text: str, axis: str, values: tuple[int, ...] | None) -> None:
    assert sweep.parse(text) == (axis, values)


@pytest.mark.parametrize("text", ["cards 1..8", "gpus 0..3", "gpus 8..1", "gpus 1..900", "length x", "gpus 1-8", ""])
def test_other_ranges_are_one_error_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        sweep.parse(text)
    assert caught.value.where == "--sweep"
    assert sweep.parse(caught.value.hints[0].removeprefix("--sweep "))


def test_a_point_of_a_sweep_is_the_plan_for_it(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1x4090", QWEN, ROWS)
    found = sweep.sweep(builders.request(), facts, TABLE, {}, "gpus", (1, 2, 4))
    assert [one.value for one in found.points] == [1, 2, 4]
    two = make_plan(builders.request(), machines.with_cards(facts, 2), TABLE, "/project", "/home/user")
    assert found.points[1].candidate == two.candidate


def test_lengths_that_do_not_fit_say_what_is_missing(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1x3090", "meta-llama/Llama-3.1-8B-Instruct", ROWS)
    found = sweep.sweep(builders.request(), facts, TABLE, {}, "length", None)
    assert [one.value for one in found.points] == [512 * 2**n for n in range(9)]
    assert found.points[0].candidate is not None
    last = found.points[-1]
    assert last.candidate is None
    assert re.match(r"nothing fits: \S+ needs [\d.]+ GiB of [\d.]+ GiB", last.why)
    shown = "\n".join(show_explore.sweep(found))
    assert "131072 tokens: nothing fits" in shown
    assert all(len(line) <= 80 for line in show_explore.sweep(found))


def test_cards_cannot_be_swept_where_there_is_none(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, None, "Qwen/Qwen2.5-0.5B-Instruct", ROWS)
    with pytest.raises(UsageError, match="needs a card to start from"):
        sweep.sweep(builders.request(), facts, TABLE, {}, "gpus", None)


def test_a_sweep_becomes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    facts = builders.facts(tmp_path, "1x4090", QWEN, ROWS)
    found = sweep.sweep(builders.request(), facts, TABLE, {}, "length", (512, 1024, 2048))
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        plot_sweep(found, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(UsageError, match=r"no picture is called a\.nothing"):
        plot_sweep(found, tmp_path / "a.nothing")


# ------------------------------------------------------------------------------------------------------------ fit


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"query": "hello", "response": "world"}\n' * 40)
    return tmp_path


def offers(prices: str | None = None, **options: Any) -> tuple[explore.Offer, ...]:
    env = read_environment()
    request = build_request({"dataset": ("rows.jsonl",), "model": QWEN, **options}, (), env)
    return explore.fit(request, env, prices)


def test_the_smallest_cards_come_first(rows: Path) -> None:
    found = offers()
    assert len({one.card for one in found}) == len(found) > 30
    sizes = [one.count * one.card_bytes for one in found if one.candidate.weights_rank < 2]
    assert sizes == sorted(sizes)
    assert sizes[0] <= 16 * GIB
    assert all(one.prediction.fits for one in found)
    assert all(len(line) <= 80 for line in show_explore.offers(found))
    assert "least memory in all first" in show_explore.offers(found)[-1]


def test_prices_put_the_cheapest_epoch_first(rows: Path) -> None:
    (rows / "prices.yaml").write_text("4090: 0.4\nA100-80G: 1.6\nH100: 2.5\n")
    found = offers("prices.yaml", tuner_type="full")
    assert {one.card for one in found} <= {"GeForce RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB"}
    costs = [one.price_epoch or 0.0 for one in found]
    assert costs == sorted(costs)
    assert all(cost > 0 for cost in costs)
    h100 = [one for one in found if one.card.startswith("H100")]
    assert {one.price_hour for one in h100} <= {2.5 * count for count in (1, 2, 4, 8)}
    assert any("price/h" in line for line in show_explore.offers(found))


def test_fit_takes_no_machine_beside_it(rows: Path) -> None:
    with pytest.raises(UsageError, match="--gpus names a machine"):
        offers(gpus="1x4090")


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("4090: 0.4\nRTX 9999: 1\n", "no card named 'RTX 9999'", 2),
        ("4090: cheap\n", "'cheap' is no price", 1),
        ("4090: -1\n", "'-1' is no price", 1),
    ],
)
def test_a_wrong_price_list_is_named_by_line(tmp_path: Path, text: str, what: str, line: int) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(what)) as caught:
        read_prices(path, "prices.yaml")
    assert caught.value.where == f"prices.yaml:{line}"
    assert caught.value.hints


def test_no_price_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_prices(tmp_path / "none.yaml", "none.yaml")
    (tmp_path / "list.yaml").write_text("- 4090\n")
    with pytest.raises(UsageError, match="maps cards to prices"):
        read_prices(tmp_path / "list.yaml", "list.yaml")
    (tmp_path / "bad.yaml").write_text("4090: [\n")
    with pytest.raises(InputError, match="not YAML"):
        read_prices(tmp_path / "bad.yaml", "bad.yaml")


def test_lengths_are_not_swept_under_a_pinned_one(tmp_path: Path) -> None:
    facts = builders.facts(tmp_path, "1x4090")
    pins = {"max_length": Sourced(value=1024, source="flag --max_length")}
    with pytest.raises(UsageError, match="would cut"):
        sweep.sweep(builders.request(), facts, load_strategies(), pins, "length", None)
