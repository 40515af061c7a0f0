"""The one list of what is legal: id, when, why, fix, proof. Read by candidates, the doctor and adopt.

docs/rules.md is generated from it. A new rule is one entry in a table of this package, with its proof: a line of the
installed engine, or a case of tests/test_rules_engine.py that reproduces the engine's behaviour on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from swift_autobatch.records import Candidate, Facts, Illegal
from swift_autobatch.rules import data, flags, kernels, megatron, methods, software
from swift_autobatch.rules.megatron import UNRENDERED
from swift_autobatch.rules.methods import PACKED
from swift_autobatch.rules.rule import Cite, Flags, Rule

__all__ = ["PACKED", "RULES", "UNRENDERED", "Cite", "Flags", "Rule", "broken", "check", "find"]

# In the order in which they are asked: what a person wrote first, then what a plan is made of, then what is missing.
RULES: tuple[Rule, ...] = (
    *flags.RULES,
    *methods.RULES,
    *kernels.RULES,
    *data.RULES,
    *software.RULES,
    *megatron.RULES,
)
_BY_ID = {rule.id: rule for rule in RULES}


def broken(candidate: Candidate, facts: Facts, flags: Flags) -> Iterator[Rule]:
    """Every rule that ``candidate``, run with these engine flags, breaks on this machine, model and data."""
    return (rule for rule in RULES if rule.when(candidate, facts, flags))


def check(candidate: Candidate, facts: Facts, flags: Flags) -> Illegal | None:
    """The first broken rule; None when the candidate is legal."""
    rule = next(broken(candidate, facts, flags), None)
    if rule is None:
        return None
    return Illegal(candidate=candidate, rule=rule.id, why=rule.why, fix=rule.fix, about=rule.about)


def find(rule_id: str) -> Rule:
    """The rule with this id.

    Raises:
        KeyError: there is none.
    """
    return _BY_ID[rule_id]
