"""Runs the real model on meta tensors in a child process and returns what its training allocates: Footprints.

Only ``worker.py`` and what it imports load torch; ``shelf.py`` is the door.
"""

from swift_autobatch.trace.shelf import Shelf, Traceable, kept, traced

__all__ = ["Shelf", "Traceable", "kept", "traced"]
