"""Starts the engine for the dry run, the job and the questions: resolves the command, builds the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from swift_autobatch import render
from swift_autobatch.process import ChildResult, engine_command, free_port, run_child
from swift_autobatch.records import Artefacts, Environment, Plan

LOG = "autoswift/swift.log"

# Set by a launcher or cluster around us and read by the engine as its own: a stale RANK makes it wait for peers that
# do not exist, and PAI_TRAINING_JOB_ID keeps training rows out of logging.jsonl (swift/trainers/patcher.py).
_FOREIGN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PAI_TRAINING_JOB_ID",
    "SWIFT_CONFIG_FILE",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_CPU",
)


def child_env(env: Environment, own: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without foreign launcher variables, then ours; UTF-8 whatever the locale.

    The engine prints rows and reads files in the locale's encoding where no other is named, and a Chinese row would end
    it where that is GBK or ASCII; our logs are UTF-8.
    """
    kept = {name: value for name, value in env.variables.items() if name not in _FOREIGN}
    return {"PYTHONUTF8": "1", **kept, "PYTHONUNBUFFERED": "1", **own}


def devices(plan: Plan) -> str | None:
    """CUDA_VISIBLE_DEVICES for exactly as many cards as the plan has processes; None: the rendered default."""
    visible = plan.facts.machine.visible_devices
    if not visible:
        return None
    return ",".join(visible.split(",")[: plan.candidate.world])


def train(
    plan: Plan,
    artefacts: Artefacts,
    *,
    root: Path,
    run: Path,
    env: Environment,
    on_line: Callable[[str], object],
    timeout_s: float | None = None,
    idle_s: float | None = None,
    on_stop: Callable[[], float] = lambda: 0.0,
) -> ChildResult:
    """Runs ``swift sft`` in the project folder, with the run folder's log; what was started is kept in launch.json.

    Args:
        timeout_s, idle_s, on_stop: see ``process.run_child``.

    Raises:
        MachineError: the engine cannot be started.
        Interrupted: we were asked to stop; nothing of it is alive any more.
    """
    port = int(env.variables.get("MASTER_PORT") or free_port())
    argv, own = render.resolve(artefacts, root=root, run=run, home=env.home, port=port, devices=devices(plan))
    own.setdefault("AUTOSWIFT_TELEMETRY_DIR", str(run / "autoswift"))
    command = (*engine_command(env.interpreter), "sft", *argv)
    launch = {"argv": list(command), "env": own, "cwd": str(root), "port": port}
    render.write_file(run / "autoswift" / "launch.json", render.to_json(launch))
    return run_child(
        command,
        env=child_env(env, own),
        cwd=root,
        log=run / LOG,
        on_line=on_line,
        timeout_s=timeout_s,
        idle_s=idle_s,
        on_stop=on_stop,
    )
