#!/usr/bin/env python3
"""Score memory predictions against published measurements.

    score.py CASES.jsonl PREDICTIONS.jsonl [--json]

A prediction is one JSON object a line:
    {"id": "...",                 the case's id
     "allocated_gib": 18.2,       peak per card, torch max_memory_allocated
     "reserved_gib": 20.1,        peak per card, torch max_memory_reserved
     "driver_gib": 20.6,          peak per card as nvidia-smi shows it (context and NCCL included)
     "fits": true}                would it run on the case's card?   (null: not judged)
or  {"id": "...", "skipped": "why"}: it is counted, and a skipped case lowers coverage.

What is compared
- Exact cases (tiers A and B, real sequence length known): the figure of the case's own meter. The
  error is 0 inside the case's band [peak_lo_gib, peak_hi_gib], else the relative distance to the
  nearer edge, signed (negative: predicted too low). Where the meter is not stated, anything between
  the predicted reserved and driver figures counts as the prediction.
- Upper-length cases (tier C, only max_length known): predicted with every sample at max_length, the
  driver figure must not be below the measured band: such a case can only be under-called.
- OOM cases whose basis is static or padded: `fits` must be false. Fits cases and every measured
  peak that ran on a named card: `fits` must be true (else a false refusal). A run measured above 95 %
  of its card is not counted as a false refusal: refusing it is prudence.
Averages are taken per source group first, then over groups, so that a big table does not dominate.
"""

import argparse
import collections
import json
import statistics
import sys
from pathlib import Path

CORE_TOOLS = {"ms-swift", "qwen", "llamafactory", "axolotl", "deepspeed"}
CORE_GROUPS = {"fms-a100", "fms-liger", "fms-granite", "fsdp-qlora", "xtuner", "peft-accelerate-docs"}


def family(case):
    if case["tool"] == "megatron-swift" or case["deepspeed"] == "megatron":
        return "megatron"
    if case["tool"] in CORE_TOOLS or case["group"] in CORE_GROUPS:
        return "trainer"  # the Hugging Face Trainer path that `swift sft` runs
    return "other"


def meter(case):
    m = (case.get("mem_metric") or "").lower()
    if "allocated or reserved" in m or "reserved / max allocated" in m:
        return "any"
    if m.startswith("nvidia-smi"):
        return "driver"
    if "max_memory_allocated" in m or m.startswith("torch peak"):
        return "allocated"
    if "reserved" in m:
        return "reserved"
    return "unstated"


def distance(low, high, lo, hi):
    """Signed relative distance from the predicted range [low, high] to the measured band [lo, hi]."""
    if high < lo:
        return (high - lo) / lo
    if low > hi:
        return (low - hi) / hi
    return 0.0


def score(cases, predictions):
    rows = []
    for c in cases:
        if not c.get("scorable"):
            continue
        p = predictions.get(c["id"])
        row = {
            "id": c["id"],
            "family": family(c),
            "group": c["group"],
            "tuner": c["tuner"],
            "parallel": c["deepspeed"],
            "tier": c["tier"],
            "outcome": c["outcome"],
        }
        rows.append(row)
        if p is None or p.get("skipped"):
            row["skipped"] = (p or {}).get("skipped", "no prediction")
            continue
        if c["outcome"] == "oom":
            if c.get("oom_basis") in ("static", "padded"):
                row["kind"], row["called_fit"] = "oom", bool(p.get("fits"))
            continue
        card = c.get("gpu_mem_gib")
        measured = c.get("peak_gib_per_gpu")
        if card and c["tier"] in "AB" and not (measured and measured > 0.95 * card):
            row["refused"] = p.get("fits") is False
        if c["outcome"] != "peak":
            row["kind"] = "fits"
            continue
        a, r, d = (p.get(k) for k in ("allocated_gib", "reserved_gib", "driver_gib"))
        lo, hi = c["peak_lo_gib"] or 0.0, c["peak_hi_gib"]
        if c["tier"] == "C":
            row["kind"], row["under"] = "upper", d is not None and lo > 0 and d < lo
            continue
        span = {"allocated": (a, a), "reserved": (r, r), "driver": (d, d), "unstated": (r, d), "any": (a, r)}[meter(c)]
        if None in span:
            row["skipped"] = "no figure for the case's meter"
            continue
        row["kind"], row["error"] = "exact", distance(min(span), max(span), lo, hi)
    return rows


def summary(rows):
    out = {}
    for fam in ("trainer", "megatron", "other"):
        rs = [r for r in rows if r["family"] == fam]
        done = [r for r in rs if "skipped" not in r]
        by_group = collections.defaultdict(list)
        for r in done:
            if r.get("kind") == "exact":
                by_group[r["group"]].append(r["error"])
        errors = [e for g in by_group.values() for e in g]
        oom = [r for r in done if r.get("kind") == "oom"]
        judged = [r for r in done if "refused" in r]
        upper = [r for r in done if r.get("kind") == "upper"]
        out[fam] = {
            "cases": len(rs),
            "coverage": round(len(done) / len(rs), 3) if rs else None,
            "exact": len(errors),
            "mape_by_group": round(statistics.mean(statistics.mean(map(abs, g)) for g in by_group.values()), 4)
            if by_group
            else None,
            "median_ape": round(statistics.median(map(abs, errors)), 4) if errors else None,
            "p90_ape": round(sorted(map(abs, errors))[int(0.9 * (len(errors) - 1))], 4) if errors else None,
            "bias": round(statistics.mean(errors), 4) if errors else None,
            "within_10pct": round(sum(abs(e) <= 0.10 for e in errors) / len(errors), 3) if errors else None,
            "oom": len(oom),
            "oom_called_fit": sum(r["called_fit"] for r in oom),
            "ran": len(judged),
            "false_refusals": sum(r["refused"] for r in judged),
            "upper": len(upper),
            "upper_under": sum(r["under"] for r in upper),
            "groups": {
                g: {"n": len(e), "mape": round(statistics.mean(map(abs, e)), 4), "bias": round(statistics.mean(e), 4)}
                for g, e in sorted(by_group.items())
            },
        }
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases")
    ap.add_argument("predictions")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--worst", type=int, default=0, metavar="N", help="also list the N worst exact cases")
    a = ap.parse_args()

    def load(name):
        return [json.loads(x) for x in Path(name).read_text(encoding="utf-8").splitlines() if x.strip()]

    rows = score(load(a.cases), {p["id"]: p for p in load(a.predictions)})
    s = summary(rows)
    if a.json:
        json.dump(s, sys.stdout, indent=1)
        print()
    else:
        for fam, v in s.items():
            print(
                f"{fam:9} cases {v['cases']:4} coverage {v['coverage']}  exact {v['exact']:4}  "
                f"MAPE(groups) {v['mape_by_group']}  median {v['median_ape']}  p90 {v['p90_ape']}  "
                f"bias {v['bias']}  within10% {v['within_10pct']}  "
                f"OOM called fit {v['oom_called_fit']}/{v['oom']}  "
                f"false refusals {v['false_refusals']}/{v['ran']}  under {v['upper_under']}/{v['upper']}"
            )
            for g, w in v["groups"].items():
                print(f"    {g:28} n {w['n']:4}  MAPE {w['mape']:.3f}  bias {w['bias']:+.3f}")
    for r in sorted((r for r in rows if r.get("kind") == "exact"), key=lambda r: -abs(r["error"]))[: a.worst]:
        print(f"{r['error']:+.3f}  {r['id']}  {r['tuner']} {r['parallel']}")


if __name__ == "__main__":
    main()
