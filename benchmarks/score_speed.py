#!/usr/bin/env python3
"""Score speed predictions against published measurements.

    score_speed.py CASES.jsonl PREDICTIONS.jsonl [--json]

A prediction is one JSON object a line:
    {"id": "...", "tokens_per_s_per_gpu": 3100.0, "samples_per_s": 1.6}
tokens a second averaged over every card of the job, samples (packed rows, preference pairs) a second of the whole
job; or {"id": "...", "skipped": "why"}. Judged are the cases whose speed is of high or medium confidence, on tokens
where the case states them, else on samples; a prediction without that figure counts as skipped.

- Error: ln(predicted / measured), shown as exp(|ln|) - 1, so twice and half as fast are both 100 %. The median, the
  90th percentile by nearest rank, and the bias exp(mean ln) - 1. A case whose card has no name has no error.
- Rank: Spearman's correlation within a group of five or more errors, on the figure that most of its cases have.
- Pairs: two cases of one group with equal model, card (or source, where the card has no name), tuner and length,
  measured more than 10 % apart: 1 when predicted in the same order, 0.5 when equal, else 0.
Averages are taken within each group, then over groups.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

FIGURES = ("tokens_per_s_per_gpu", "samples_per_s")
KINDS = {"all": FIGURES, "tokens": FIGURES[:1], "samples": FIGURES[1:]}
_NAMED = re.compile(r"a100|a800|h100|h800|h200|h20|b200|l40|l20|l4\b|t4|v100|a10|a40|a5000|a6000|[34]090|titan", re.I)
_SHOWN = ("median", "p90", "bias", "spearman", "pairs_right")

Row = dict[str, Any]
Pair = tuple[str, str, float]  # group, figure, score


def is_figure(value: Any) -> bool:
    """Whether a value is a speed: a positive finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    return {name: record[name] for name in FIGURES if is_figure(record.get(name))}


def score(cases: list[Row], predictions: dict[str, Row]) -> list[Row]:
    """One row for every judged case, with its error where it has one."""
    rows = []
    for case in cases:
        speed = case.get("speed")
        measured = figures_of(speed) if speed and speed["confidence"] in ("high", "medium") else {}
        if measured:
            rows.append(_row(case, measured, predictions.get(case["id"])))
    return rows


def _row(case: Row, measured: dict[str, float], answer: Row | None) -> Row:
    figure = next(iter(measured))
    named = bool(_NAMED.search(case["gpu"] or ""))
    where = case["gpu"] if named else case["source"]
    row: Row = {
        "id": case["id"],
        "group": case["group"],
        "figure": figure,
        "named": named,
        "measured": measured,
        "predicted": figures_of(answer) if answer and not answer.get("skipped") else {},
        "key": (case["model"], where, case["tuner"], case["seq_len_effective"], case["max_length"]),
    }
    if figure not in row["predicted"]:
        absent = "no prediction" if answer is None else "no figure of the case's kind"
        row["skipped"] = (answer or {}).get("skipped") or absent
    elif named:
        row["error"] = math.log(row["predicted"][figure] / measured[figure])
    return row


def pairs(rows: list[Row]) -> list[Pair]:
    """Every comparable pair, with how well it is ordered."""
    alike = collections.defaultdict(list)
    for row in rows:
        if "skipped" not in row:
            alike[(row["group"], *row["key"])].append(row)
    found = (_pair(one, two) for group in alike.values() for one, two in itertools.combinations(group, 2))
    return [pair for pair in found if pair is not None]


def _pair(one: Row, two: Row) -> Pair | None:
    both = [
        name for name in FIGURES if all(name in row[kind] for row in (one, two) for kind in ("measured", "predicted"))
    ]
    if not both:
        return None
    measured = one["measured"][both[0]], two["measured"][both[0]]
    if max(measured) <= 1.1 * min(measured):
        return None
    apart = math.log(one["predicted"][both[0]] / two["predicted"][both[0]])
    right = 0.5 if abs(apart) < 1e-9 else float(apart * math.log(measured[0] / measured[1]) > 0)
    return one["group"], both[0], right


def spearman(xs: list[float], ys: list[float]) -> float | None:
    """Rank correlation, ties averaged; 0 for a constant prediction, None where nothing is to be ranked."""
    one, two = _ranks(xs), _ranks(ys)
    spread = math.sqrt(_square(one, one) * _square(two, two))
    if not _square(two, two):
        return None
    return _square(one, two) / spread if spread else 0.0


def _square(xs: list[float], ys: list[float]) -> float:
    return sum((x - statistics.mean(xs)) * (y - statistics.mean(ys)) for x, y in zip(xs, ys, strict=True))


def _ranks(values: list[float]) -> list[float]:
    places = collections.defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [statistics.mean(places[value]) for value in values]


def _group(rows: list[Row], group_pairs: list[Pair]) -> Row:
    errors = [row["error"] for row in rows if "error" in row]
    sizes = sorted(math.exp(abs(error)) - 1 for error in errors)
    done = [row for row in rows if "skipped" not in row]
    ranked = max(([row for row in rows if row["figure"] == f and "error" in row] for f in FIGURES), key=len)
    enough = len(ranked) >= 5
    return {
        "cases": len(rows),
        "skipped": len(rows) - len(done),
        "card_unnamed": sum(not row["named"] for row in done),
        "n": len(errors),
        "median": statistics.median(sizes) if sizes else None,
        "p90": sizes[max(0, math.ceil(0.9 * len(sizes)) - 1)] if sizes else None,
        "bias": math.exp(statistics.mean(errors)) - 1 if errors else None,
        "spearman": spearman(
            [row["predicted"][row["figure"]] for row in ranked], [row["measured"][row["figure"]] for row in ranked]
        )
        if enough
        else None,
        "pairs": len(group_pairs),
        "pairs_right": statistics.mean(pair[2] for pair in group_pairs) if group_pairs else None,
    }


def summary(rows: list[Row]) -> dict[str, Row]:
    """The score of all cases, of those judged on tokens, and of those judged on samples."""
    ordered = pairs(rows)
    out = {}
    for kind, figures in KINDS.items():
        mine = [row for row in rows if row["figure"] in figures]
        groups = {
            name: _group(
                [row for row in mine if row["group"] == name],
                [pair for pair in ordered if pair[0] == name and pair[1] in figures],
            )
            for name in sorted({row["group"] for row in mine})
        }
        out[kind] = {
            "cases": len(mine),
            "coverage": sum("skipped" not in row for row in mine) / len(mine) if mine else None,
            "n": sum(group["n"] for group in groups.values()),
            "card_unnamed": sum(group["card_unnamed"] for group in groups.values()),
            **{f"{name}_by_group": _mean(groups, name) for name in _SHOWN[:4]},
            "pairs": sum(group["pairs"] for group in groups.values()),
            "pairs_right_by_group": _mean(groups, "pairs_right"),
            "groups": groups,
        }
    return out


def _mean(groups: dict[str, Row], name: str) -> float | None:
    values = [group[name] for group in groups.values() if group[name] is not None]
    return statistics.mean(values) if values else None


def show(found: dict[str, Row]) -> None:
    """The score for people."""

    def text(value: float | None, sign: str = "") -> str:
        return "    -" if value is None else f"{value:{sign}6.3f}"

    for name, row in found["all"]["groups"].items():
        print(
            f"    {name:28} n {row['n']:4}  median {text(row['median'])}  p90 {text(row['p90'])}  "
            f"bias {text(row['bias'], '+')}  Spearman {text(row['spearman'], '+')}  "
            f"pairs {row['pairs']:5} right {text(row['pairs_right'])}  skipped {row['skipped']}"
        )
    for name, row in found.items():
        print(
            f"{name:8} cases {row['cases']:4} coverage {text(row['coverage'])}  scored {row['n']:4} "
            f"(+{row['card_unnamed']} card unnamed)  by group: median {text(row['median_by_group'])}  "
            f"p90 {text(row['p90_by_group'])}  bias {text(row['bias_by_group'], '+')}  "
            f"Spearman {text(row['spearman_by_group'], '+')}  "
            f"pairs right {text(row['pairs_right_by_group'])} of {row['pairs']}"
        )


def main() -> None:
    """Reads both files and prints the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()

    def load(path: Path) -> list[Row]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

    found = summary(score(load(asked.cases), {row["id"]: row for row in load(asked.predictions)}))
    if asked.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        show(found)


if __name__ == "__main__":
    main()
