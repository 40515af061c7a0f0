"""The dry run: builds the probe rows, runs the real command, reads telemetry, returns a Verdict."""

from swift_autobatch.gate.dry_run import run_gate
from swift_autobatch.gate.verdict import judge

__all__ = ["judge", "run_gate"]
