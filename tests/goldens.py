"""Texts that are compared with files of tests/golden/: the fixture ``golden``."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


class Golden:
    """Compares text with a file under tests/golden/; ``--update-golden`` writes it instead."""

    def __init__(self, update: bool) -> None:
        self._update = update

    def check(self, name: str, text: str) -> None:
        path = GOLDEN / name
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: run pytest --update-golden and review it"
        assert text == path.read_text(encoding="utf-8")
