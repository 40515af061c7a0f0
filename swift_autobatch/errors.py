"""Every error a user can meet, as a tree; each has an exit code, what, where and a fix.

::

    AutoswiftError                70  a bug of ours if raised bare
      UsageError                   2  a flag, a recipe key
        NotLegalError              2  a pinned combination that no rule allows
      NothingFitsError             3  no legal plan fits this machine
      GateError                    4  the dry run refused or could not decide
      InputError                   5  a dataset, a model folder, a hardware file
      MachineError                 5  the environment: engine not installed, disk full, port taken
      TrainingError                6  the engine failed after the gate passed
      Interrupted                130  Ctrl-C (143 for SIGTERM)

Raised inside, printed once at the edge (``cli``): ``error:`` one sentence, the figures, then ``hint:``
lines ranked by least change.
"""

from __future__ import annotations


class AutoswiftError(Exception):
    """Base of every error that a user can meet.

    Args:
        what: one sentence without a trailing full stop's worth of detail.
        where: ``file:line`` or ``--flag`` that holds the offending value; empty when there is none.
        figures: short lines with numbers, units and the source of each.
        hints: fixes that work as they stand, least change first.
    """

    exit_code = 70

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        figures: tuple[str, ...] = (),
        hints: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.figures = figures
        self.hints = hints


class UsageError(AutoswiftError):
    """The command itself is wrong: a flag, a recipe key, a combination that no rule allows."""

    exit_code = 2


class NotLegalError(UsageError):
    """The pins allow no legal combination; the hints are edits that were planned where any was found."""


class NothingFitsError(AutoswiftError):
    """No legal plan fits; the figures name the closest one and the hints the nearest edits that fit."""

    exit_code = 3


class GateError(AutoswiftError):
    """The dry run refused the plan or could not decide; nothing was launched."""

    exit_code = 4


class InputError(AutoswiftError):
    """A dataset, model folder or hardware file cannot be used."""

    exit_code = 5


class MachineError(AutoswiftError):
    """The environment cannot do it: an engine is missing, the disk is full, a port is taken."""

    exit_code = 5


class TrainingError(AutoswiftError):
    """The engine failed after the gate passed; ``child_exit`` is the engine's own code, ``code`` why (run.py)."""

    exit_code = 6

    def __init__(
        self,
        what: str,
        *,
        child_exit: int,
        code: str = "failed",
        where: str = "",
        figures: tuple[str, ...] = (),
        hints: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, where=where, figures=(f"engine exit code {child_exit}", *figures), hints=hints)
        self.child_exit = child_exit
        self.code = code


class Interrupted(AutoswiftError):
    """A signal asked us to stop; ``exit_code`` is 128 + the signal's number."""

    def __init__(self, signal_number: int, *, then: str = "", where: str = "", hints: tuple[str, ...] = ()) -> None:
        super().__init__(f"stopped by signal {signal_number}{then}", where=where, hints=hints)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
