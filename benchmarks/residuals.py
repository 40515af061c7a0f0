"""How far published runs lie from the prediction, by kind of configuration: writes swift_autobatch/data/residuals.yaml.

residuals.py CASES.jsonl [-o swift_autobatch/data/residuals.yaml]

A residual is measured over predicted, of what does not last (boundaries, the layer in flight, logits), in runs of
the trainer family that state what torch had allocated: nvidia-smi also shows what the allocator may give back, which
decides no fit. With -o the table is written; without, only the coverage of its p99 with each source left out is shown.
"""

from __future__ import annotations

import argparse
import collections
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import exam
from cases import Case, Skip, express
from score import family, meter

from swift_autobatch.predict import predict
from swift_autobatch.predict.band import kind_of
from swift_autobatch.predict.instants import LASTING
from swift_autobatch.units import gib

LEAST_MOVING_GIB = 0.5  # below, a rounding of weights would decide the ratio
PRIOR_RUNS = 10
Z99 = 2.326  # standard deviations below which 99 % of a normal distribution lie
Residual = tuple[str, str, float]  # (source group, kind, measured over predicted)


def residuals(cases: Iterable[Case]) -> list[Residual]:
    """One residual for each scorable run of the trainer family that states an allocated peak and real lengths."""
    found = []
    for case in cases:
        measured = case.get("peak_alloc_gib") or (case["peak_gib_per_gpu"] if meter(case) == "allocated" else None)
        if not measured or not case["scorable"] or case["outcome"] != "peak" or case["tier"] == "C":
            continue
        if family(case) != "trainer":
            continue
        try:
            facts, candidate, engine = express(case)
        except Skip:
            continue
        made = predict(facts, candidate, engine=engine)
        lasting = gib(sum(term.bytes for term in made.terms if term.name in LASTING))
        moving = gib(made.allocated_bytes) - lasting
        if moving >= LEAST_MOVING_GIB:
            found.append((case["group"], kind_of(candidate), max(0.0, measured - lasting) / moving))
    return found


def upward(values: list[float]) -> tuple[int, float]:
    """How many values lie above 1, and their mean square distance from it on a log scale."""
    above = [math.log(value) ** 2 for value in values if value > 1]
    return len(above), sum(above) / max(1, len(above))


def table(rows: list[Residual]) -> dict[str, dict[str, float | int]]:
    """Kind -> number of runs, median and p99 of their residuals; ``all`` holds every kind.

    p99 is that of a half-normal through the runs above 1 (too low a prediction is what breaks a run); a kind counts
    the mean square of all kinds as if ``PRIOR_RUNS`` more runs had shown it, so that few good runs promise nothing.
    """
    by_kind: dict[str, list[float]] = collections.defaultdict(list)
    for _, kind, ratio in rows:
        by_kind["all"].append(ratio)
        by_kind[kind].append(ratio)
    _, prior = upward(by_kind["all"])
    made: dict[str, dict[str, float | int]] = {}
    for kind, values in sorted(by_kind.items()):
        count, square = upward(values)
        shrunk = (count * square + PRIOR_RUNS * prior) / (count + PRIOR_RUNS)
        p99 = math.exp(Z99 * math.sqrt(shrunk))
        made[kind] = {"runs": len(values), "p50": round(statistics.median(values), 3), "p99": round(p99, 3)}
    return made


def left_out(rows: list[Residual]) -> dict[str, tuple[int, int]]:
    """Source -> (its runs at or below the p99 made without that source, its runs)."""
    result = {}
    for group in sorted({row[0] for row in rows}):
        made = table([row for row in rows if row[0] != group])
        own = [row for row in rows if row[0] == group]
        inside = sum(ratio <= width(made, kind) for _, kind, ratio in own)
        result[group] = (inside, len(own))
    return result


def width(made: dict[str, dict[str, float | int]], kind: str) -> float:
    """The p99 of a kind in a table, as the predictor reads it."""
    return max(1.0, made.get(kind, made["all"])["p99"])


def main() -> None:
    """Prints the table and its coverage; writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows = residuals(exam.read(asked.cases))
    made = table(rows)
    for group, (inside, count) in left_out(rows).items():
        print(f"{group:28} {inside} of {count} runs within the p99 made without them")
    lines = [
        "schema: autoswift.residuals/1",
        "# Measured over predicted, of what does not last, by kind of run. Written by benchmarks/residuals.py.",
        "source: published runs of the Hugging Face Trainer that state what torch had allocated (docs/accuracy.md)",
        "kinds:",
        *(f"  {kind}: {{{', '.join(f'{k}: {v}' for k, v in row.items())}}}" for kind, row in made.items()),
    ]
    print("\n".join(lines))
    if asked.output:
        asked.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
