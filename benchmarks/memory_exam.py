"""Predicts the memory of published fine-tuning runs and scores the predictor on them; exits 1 on a missed target.

memory_exam.py CASES.jsonl -o PREDICTIONS.jsonl [--json] [--worst N]
"""

from __future__ import annotations

import collections
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import exam
from cases import Case, Skip, card_gib, express, model_of
from residuals import left_out, residuals, table, width
from score import score, summary

from swift_autobatch.predict import predict
from swift_autobatch.predict.band import CALIBRATED, kind_of
from swift_autobatch.records import Prediction
from swift_autobatch.units import GIB, gib


def prediction_of(case: Case) -> Prediction:
    """The predictor's answer for one case.

    Raises:
        Skip: the case cannot be expressed.
    """
    facts, candidate, engine = express(case)
    return predict(facts, candidate, engine=engine)


def answer(case: Case) -> dict[str, Any]:
    """One line of the predictions file, in the format of score.py."""
    try:
        made = prediction_of(case)
    except Skip as why:
        return {"id": case["id"], "skipped": str(why)}
    card = card_gib(case)
    reserved = made.needs_p50_bytes if made.reserved_bytes is None else made.reserved_bytes
    return {
        "id": case["id"],
        "allocated_gib": round(gib(made.allocated_bytes), 3),
        "reserved_gib": round(gib(reserved), 3),
        "driver_gib": round(gib(made.driver_bytes), 3),
        "fits": made.needs_p50_bytes + made.context_bytes + made.nccl_bytes <= card * GIB if card else None,
        "assumed_shape": model_of(case["model"], case["params_b"])[1],
    }


@dataclass(frozen=True, slots=True)
class Target:
    """What one family of runs must reach; shares of 1."""

    coverage: float
    error: float  # mean over sources
    median: float = 1.0
    within_10pct: float = 0.0
    oom_called_fit: int = 10**6  # runs
    refused: float = 1.0  # of the runs that ran
    under: float = 1.0  # of the runs of which an upper length is known


TARGETS = {
    "trainer": Target(
        coverage=0.95, error=0.12, median=0.07, within_10pct=0.65, oom_called_fit=2, refused=0.05, under=0.03
    ),
    "megatron": Target(coverage=0.80, error=0.15),
    "other": Target(coverage=0.80, error=0.15),
}


def missed(found: dict[str, Any]) -> list[str]:
    """The targets that the score misses, in words. A family without cases, or without runs of a kind, misses none."""
    words = []
    for family, target in TARGETS.items():
        part = found[family]
        checks = (
            ("coverage", part["coverage"], -target.coverage),
            ("mean error by source", part["mape_by_group"], target.error),
            ("median error", part["median_ape"], target.median),
            ("share within 10 %", part["within_10pct"], -target.within_10pct),
            ("out-of-memory runs called fit", part["oom_called_fit"], target.oom_called_fit),
            ("share of refused runs", part["false_refusals"] / max(1, part["ran"]), target.refused),
            ("share of under-called runs", part["upper_under"] / max(1, part["upper"]), target.under),
        )
        for name, value, bound in checks:
            if value is None:
                continue
            if (value > bound) if bound > 0 else (value < -bound):
                side = "above" if bound > 0 else "below"
                words.append(f"{family}: {name} {value:.3g} is {side} {abs(bound):g}")
    return words


def main() -> int:
    """Reads the cases, writes the predictions, prints the score."""
    asked = exam.options(__doc__).parse_args()
    cases = exam.read(asked.cases)
    answers = [answer(case) for case in cases]
    exam.write(asked.output, answers)
    rows = score(cases, {row["id"]: row for row in answers})
    found = summary(rows)
    if asked.json:
        exam.as_json(found)
        return exam.verdict(missed(found))
    show(found, rows, asked.worst)
    show_left_out(cases, rows)
    show_named(found, rows, {row["id"] for row in answers if not row.get("assumed_shape")})
    return exam.verdict(missed(found))


def show_named(found: dict[str, Any], rows: list[dict[str, Any]], named: set[str]) -> None:
    """The score of the runs whose model has a shape of its own."""
    apart = summary([row for row in rows if row["id"] in named])
    print("without the models whose shape is assumed from their size:")
    for family, part in apart.items():
        covered = sum("skipped" not in row and row["id"] in named for row in rows if row["family"] == family)
        share = covered / max(1, found[family]["cases"])
        print(
            f"  {family:9} coverage {share:.3f}  MAPE(groups) {part['mape_by_group']}  "
            f"median {part['median_ape']}  OOM called fit {part['oom_called_fit']}/{part['oom']}"
        )


def by_the_rule(cases: list[Case], rows: list[dict[str, Any]]) -> dict[str, tuple[int, int, int, int]]:
    """Judges by the product's own fit rule (p99 on 90 % of the card), the band made without the case's source.

    Returns:
        family -> (out-of-memory runs accepted, of, runs refused that ran, of).
    """
    known = residuals(cases)
    tables = {group: table([row for row in known if row[0] != group]) for group in {case["group"] for case in cases}}
    by_id = {case["id"]: case for case in cases}
    tally: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        case = by_id[row["id"]]
        failed = row.get("kind") == "oom"
        if "skipped" in row or not (failed or "refused" in row):
            continue
        facts, candidate, engine = express(case)
        p99 = width(tables[case["group"]], kind_of(candidate))
        fits = predict(facts, candidate, {CALIBRATED: p99}, engine=engine).fits
        at = 0 if failed else 2
        tally[row["family"]][at] += fits if failed else not fits
        tally[row["family"]][at + 1] += 1
    return {name: (a, b, c, d) for name, (a, b, c, d) in tally.items()}


def show_left_out(cases: list[Case], rows: list[dict[str, Any]]) -> None:
    """What leaving each source out of the calibration does: p50 has none, the band's p99 does."""
    print("p50: no figure is fitted to these rows, so leaving a source out changes no prediction above")
    covered = left_out(residuals(cases))
    inside, count = sum(row[0] for row in covered.values()), sum(row[1] for row in covered.values())
    each = ", ".join(f"{group} {a}/{b}" for group, (a, b) in covered.items())
    print(f"p99 made without a run's own source covers {inside}/{count} runs ({each})")
    for name, (accepted, failed, refused, ran) in by_the_rule(cases, rows).items():
        print(f"  fit rule of the product, {name}: OOM accepted {accepted}/{failed}, runs refused {refused}/{ran}")


def show(found: dict[str, Any], rows: list[dict[str, Any]], worst: int) -> None:
    """The score for people."""
    for family, row in found.items():
        print(
            f"{family:9} cases {row['cases']:4} coverage {row['coverage']}  exact {row['exact']:4}  "
            f"MAPE(groups) {row['mape_by_group']}  median {row['median_ape']}  p90 {row['p90_ape']}  "
            f"bias {row['bias']}  within10% {row['within_10pct']}  "
            f"OOM called fit {row['oom_called_fit']}/{row['oom']}  "
            f"false refusals {row['false_refusals']}/{row['ran']}  under {row['upper_under']}/{row['upper']}"
        )
        for group, part in row["groups"].items():
            print(f"    {group:28} n {part['n']:4}  MAPE {part['mape']:.3f}  bias {part['bias']:+.3f}")
    exact = sorted((row for row in rows if row.get("kind") == "exact"), key=lambda row: -abs(row["error"]))
    for row in exact[:worst]:
        print(f"  {row['error']:+.3f}  {row['id']}  {row['tuner']} {row['parallel']}")
    exam.show_skipped(rows)


if __name__ == "__main__":
    sys.exit(main())
