"""``profile --plot FILE.png``: the token lengths as a picture."""

from __future__ import annotations

import os
from pathlib import Path

from swift_autobatch.errors import MachineError, UsageError
from swift_autobatch.facts.summary import trained
from swift_autobatch.records import DataFacts, Environment

_BINS = 60


def target(name: str, env: Environment, *, force: bool) -> Path:
    """The file to draw into, refused before anything is counted when it cannot be.

    Raises:
        UsageError: not a .png, or it exists.
        MachineError: matplotlib is not installed.
    """
    path = Path(env.cwd) / name
    if path.suffix != ".png":
        raise UsageError("the picture is a .png file", where=f"--plot {name}", hints=(f"--plot {path.stem}.png",))
    if path.exists() and not force:
        raise UsageError(
            f"{name} exists", where=f"--plot {name}", hints=("--force overwrites it", "choose another name")
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MachineError("matplotlib is not installed", where="--plot", hints=("pip install matplotlib",)) from error
    return path


def draw(data: DataFacts, path: Path) -> None:
    """A histogram of tokens per row with the percentiles marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    weight = data.kept / len(data.lengths)
    axes.hist(data.even_lengths, bins=_BINS, weights=[weight] * len(data.lengths), color="#4878a8")
    for name, tokens in (("P50", data.p50_tokens), ("P95", data.p95_tokens), ("longest", data.even_lengths[-1])):
        axes.axvline(tokens, color="#b04040", linewidth=1)
        axes.annotate(f"{name} {tokens}", (tokens, axes.get_ylim()[1]), rotation=90, va="top", ha="right", fontsize=8)
    axes.set_xlabel(f"tokens per row ({Path(data.tokenizer).parent.name or data.tokenizer})")
    axes.set_ylabel("rows")
    axes.set_title(f"rows: {trained(data)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.stem}.{os.getpid()}.png")
    figure.savefig(fresh, dpi=120)
    fresh.replace(path)
