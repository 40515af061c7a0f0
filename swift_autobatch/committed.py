"""Project recipes on the road: takes a committed decision where it holds, plans again elsewhere, writes new ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swift_autobatch import decision, render
from swift_autobatch.planner import make_plan
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment, Facts, Measured, Plan, Request, Strategy

Seen = tuple[tuple[Measured, ...], str]  # peaks by phase, and what measured them: "dry run" or "training"


def decide(asked: Request, facts: Facts, table: tuple[Strategy, ...], env: Environment, progress: Progress) -> Plan:
    """The plan of a request; a project recipe's own where it holds on these facts.

    Raises:
        UsageError, NothingFitsError: as ``make_plan``; and under ``--locked`` what of the recipe does not hold.
    """
    recipe = asked.recipe
    if recipe is None:
        return make_plan(asked, facts, table, env.cwd, env.home)
    reasons = decision.broken(asked, facts, env.cwd)
    if not reasons:
        progress.stage(decision.holds(recipe, facts))
        return make_plan(replace(asked, decided=recipe), facts, table, env.cwd, env.home)
    if asked.locked:
        raise decision.refusal(recipe, reasons)
    said = decision.said(recipe, reasons)
    progress.stage(said)
    decided = make_plan(asked, facts, table, env.cwd, env.home)
    return decided if recipe.candidate is None else replace(decided, notes=(said, *decided.notes))


def may_save(request: Request, env: Environment) -> None:
    """Refuses a ``--save-recipe`` that would overwrite a file; asked before any work is done for it."""
    if request.save_recipe:
        render.may_write(Path(env.cwd, request.save_recipe), force=request.force)


def save(
    decided: Plan, asked: Request, env: Environment, progress: Progress, seen: Seen | None = None
) -> tuple[Path, ...]:
    """Writes the decision where ``--save-recipe`` says; returns the file, or nothing when it was not asked for.

    Args:
        asked: the request with its defaults filled in.
        seen: what was measured; None: nothing ran.
    """
    if not asked.save_recipe:
        return ()
    path = Path(env.cwd, asked.save_recipe)
    measured = None
    if seen is not None:
        measured = render.measured_figures(seen[0], by=seen[1], on_gpu=bool(decided.facts.machine.gpus))
    name = path.name if Path(asked.save_recipe).is_absolute() else asked.save_recipe
    render.write_file(path, render.recipe_yaml(decided, asked, name=name, measured=measured))
    progress.stage(f"recipe written: {path}")
    return (path,)
