"""Writes docs/rules.md from the rules themselves and from the table of the engine's conditions.

python scripts/make_rule_docs.py            # rewrite the file
python scripts/make_rule_docs.py --check    # print what differs; exit 1 when the file is stale
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from swift_autobatch import doctor, rules
from swift_autobatch.tables import DATA

TARGET = Path(__file__).parents[1] / "docs" / "rules.md"
KINDS = {
    "engine": "What the engine refuses, or does otherwise than it is told",
    "hardware": "What a card or the CPU cannot do",
    "software": "What must be installed",
    "data": "What the rows must allow",
    "planner": "What this version does not plan for",
}


def conditions() -> dict[str, dict[int, dict[str, Any]]]:
    """data/engine_conditions.yaml: ``conditions`` and ``traps`` by number."""
    found: dict[str, dict[int, dict[str, Any]]] = yaml.safe_load(
        (DATA / "engine_conditions.yaml").read_text(encoding="utf-8")
    )
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _rules() -> Iterator[str]:
    for kind, title in KINDS.items():
        yield from ("", f"## {title}", "", "| rule | why | smallest edit | proof |", "|---|---|---|---|")
        for rule in rules.RULES:
            if rule.kind == kind:
                proofs = "; ".join(_cell(proof) for proof in rule.proofs())
                yield f"| `{rule.id}` | {_cell(rule.why)} | {_cell(rule.fix)} | {proofs} |"


def _conditions() -> Iterator[str]:
    titles = {"conditions": "Conditions of ms-swift 4.6 and what answers them", "traps": "Traps and what answers them"}
    for part, title in titles.items():
        yield from ("", f"## {title}", "", "| | condition | answered by |", "|---|---|---|")
        for number, row in conditions()[part].items():
            answer = ", ".join(f"`{name}`" for name in row.get("rules", ())) or row["reason"]
            yield f"| {number} | {_cell(row['what'])} | {_cell(answer)} |"


def build() -> str:
    """The whole page."""
    reproduced = sum(bool(rule.reproduced) for rule in rules.RULES)
    cited = sum(bool(rule.cites) for rule in rules.RULES)
    return (
        "\n".join(
            [
                "# What is legal",
                "",
                "<!-- Written by scripts/make_rule_docs.py from swift_autobatch/rules; a test holds it current. -->",
                "",
                f"{len(rules.RULES)} rules, one list, read by the planner, `check` and `doctor`. {cited} of them "
                "cite a line of the installed engine, and a test holds that the line still says so; "
                f"{reproduced} are shown on the engine itself, on a CPU, by tests/test_rules_engine.py. A refusal "
                "names the rule, the flags that break it, and edits that were planned: `--fix` applies the first.",
                *_rules(),
                *_conditions(),
                "",
                "## What `autoswift doctor` looks at",
                "",
                ", ".join(f"`{name}`" for name, _ in doctor.CHECKS) + ".",
            ]
        )
        + "\n"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print what differs and exit 1 when the file is stale")
    text = build()
    if not parser.parse_args(argv).check:
        TARGET.write_text(text, encoding="utf-8")
        print(f"{TARGET}: {len(rules.RULES)} rules")
        return 0
    old = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    difference = list(difflib.unified_diff(old.splitlines(), text.splitlines(), "committed", "now", lineterm=""))
    print("\n".join(difference) if difference else f"{TARGET.name} is current")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
