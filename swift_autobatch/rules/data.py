"""Rules between the rows and the ranks."""

from __future__ import annotations

from swift_autobatch.rules.rule import Cite, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="rows-fewer-than-ranks",
        kind="data",
        about=(),
        when=lambda c, f, p: 0 < f.data.kept < c.dp,
        why="fewer rows than data-parallel ranks: the engine makes no step and exits 0",
        fix="more rows, or fewer processes (--nproc)",
        cites=(Cite("swift/dataloader/shard.py", 24, "total_samples // self.world_size"),),
    ),
)
