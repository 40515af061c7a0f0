"""What most tests of facts start from; a file that needs another model or environment has fixtures of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import environment
from test_dataset import model_facts

from swift_autobatch.records import Environment, ModelFacts


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return environment(tmp_path)


@pytest.fixture
def model() -> ModelFacts:
    """Without a tokenizer: lengths are estimates."""
    return model_facts(None)
