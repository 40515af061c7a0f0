"""The rehearsal: a plan's very command on CPU processes, with the same architecture in small.

real plan -> the same in small, without what a CPU cannot do -> the gate. What differs from the real job is a list.
"""

from swift_autobatch.rehearse.plan import Difference, Rehearsal, rehearsal
from swift_autobatch.rehearse.target import Target, assume_kernels, own_words, target

__all__ = ["Difference", "Rehearsal", "Target", "assume_kernels", "own_words", "rehearsal", "target"]
