"""Predicts the speed of published fine-tuning runs and scores the predictor on them; exits 1 on a missed target.

speed_exam.py CASES.jsonl -o PREDICTIONS.jsonl [--json] [--worst N] [--groups NAME,...]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import exam
from cases import Case, Skip
from score_speed import score, show, summary
from speed_cases import epochs_counted_once, express_speed

from swift_autobatch.predict import predict

MEDIAN, P90, RANK, PAIRS = 0.20, 0.60, 0.8, 0.85


def answer(case: Case) -> dict[str, Any]:
    """One line of the predictions file, in the format of score_speed.py."""
    try:
        facts, candidate, engine = express_speed(case)
    except Skip as why:
        return {"id": case["id"], "skipped": str(why)}
    made = predict(facts, candidate, engine=engine)
    samples = made.tokens_per_s / candidate.max_length if candidate.packing else made.samples_per_s
    epochs = epochs_counted_once(case)
    return {
        "id": case["id"],
        "tokens_per_s_per_gpu": made.tokens_per_s / candidate.world / epochs,
        "samples_per_s": samples / epochs,
        "step_s": made.step_s,
        "terms": dict(made.time_terms),
        "bound_by": made.bound_by,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """The targets that the score misses, in words."""
    whole, words = found["all"], []
    for name, value, most in (("median", "median_by_group", MEDIAN), ("p90", "p90_by_group", P90)):
        if whole[value] is None or whole[value] > most:
            words.append(f"{name} error {whole[value]} is above {most}")
    if whole["pairs_right_by_group"] is None or whole["pairs_right_by_group"] < PAIRS:
        words.append(f"pairs right {whole['pairs_right_by_group']} is below {PAIRS}")
    for name, group in whole["groups"].items():
        if group["spearman"] is not None and group["spearman"] <= RANK:
            words.append(f"rank correlation {group['spearman']:.3f} of {name} is not above {RANK}")
    return words


def show_worst(rows: list[dict[str, Any]], answers: dict[str, dict[str, Any]], count: int) -> None:
    """The largest errors, each with the seconds that the predictor named."""
    wrong = sorted((row for row in rows if "error" in row), key=lambda row: -abs(row["error"]))
    for row in wrong[:count]:
        parts = "  ".join(f"{name} {seconds:.3g}" for name, seconds in answers[row["id"]]["terms"].items())
        measured = f"{row['figure'][:6]} {row['measured'][row['figure']]:.4g}"
        print(f"  x{math.exp(row['error']):.2f}  {row['id']}  {measured}  {parts}")
    exam.show_skipped(rows)


def main() -> int:
    """Reads the cases, writes the predictions, prints the score."""
    parser = exam.options(__doc__)
    parser.add_argument("--groups", help="only these groups, joined by commas")
    asked = parser.parse_args()
    cases = [case for case in exam.read(asked.cases) if case.get("speed")]
    if asked.groups:
        cases = [case for case in cases if case["group"] in asked.groups.split(",")]
    answers = {case["id"]: answer(case) for case in cases}
    exam.write(asked.output, answers.values())
    rows = score(cases, answers)
    found = summary(rows)
    if asked.json:
        exam.as_json(found)
    else:
        show(found)
        show_worst(rows, answers, asked.worst)
    return exam.verdict(missed(found))


if __name__ == "__main__":
    sys.exit(main())
