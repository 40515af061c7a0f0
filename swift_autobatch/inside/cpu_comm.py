"""Runs inside ``swift`` (``--external_plugins``): gives DeepSpeed its gloo communicator before the model is built.

Without it, several CPU processes under ZeRO-3 stop with ``Check batch related parameters``: the model is built
under ``zero.Init`` before anything has told DeepSpeed the world size. Imports nothing of autoswift.
"""

from __future__ import annotations

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import deepspeed

    deepspeed.comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
