"""The strategy table: every shipped recipe keeps the schema, a project adds its own, and loading them is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.strategies import copied, find_strategy, load_strategies, read_strategy, shipped_folder

SHIPPED = sorted(shipped_folder().glob("*.yaml"))


def test_every_shipped_recipe_is_in_the_table() -> None:
    assert len(SHIPPED) == 20
    assert [strategy.name for strategy in load_strategies()] == sorted(path.stem for path in SHIPPED)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_keeps_the_schema_and_says_for_whom(path: Path) -> None:
    assert read_strategy(path) == find_strategy(path.stem, load_strategies())
    header = path.read_text(encoding="utf-8").splitlines()[:3]
    assert [line.split(":")[0] for line in header] == ["# For whom", "# Example", "# Limits"]


def test_a_project_replaces_and_adds(tmp_path: Path) -> None:
    folder = tmp_path / "autoswift" / "recipes"
    folder.mkdir(parents=True)
    table = load_strategies()
    cpu = find_strategy("cpu", table)
    (folder / "cpu.yaml").write_text(Path(cpu.path).read_text().replace("summary: one", "summary: my one"))
    (folder / "mine.yaml").write_text(copied(cpu, folder / "mine.yaml"))
    (folder / "job.yaml").write_text("schema: autoswift.recipe/1\nrequest: {}\n")  # a project recipe is no strategy
    ours = load_strategies(tmp_path)
    assert {strategy.name for strategy in ours} == {*(strategy.name for strategy in table), "mine"}
    assert find_strategy("cpu", ours).summary.startswith("my one")


@pytest.mark.parametrize(
    ("change", "what", "line"),
    [
        (("parallel: none", "paralel: none"), "unknown key 'paralel' in use (did you mean 'parallel'?)", 11),
        (("quant: none", "quant: nf5"), "use.quant is 'nf5', not one of none, nf4, int8", 12),
        (("quant: none", "micro_batch: 2"), "fixed under 'use' and searched under 'search'", 1),
        (("name: cpu", "name: gpu"), "strategy 'gpu' stands in a file called cpu.yaml", 1),
    ],
)
def test_a_projects_own_file_is_always_checked(tmp_path: Path, change: tuple[str, str], what: str, line: int) -> None:
    folder = tmp_path / "autoswift" / "recipes"
    folder.mkdir(parents=True)
    path = folder / "cpu.yaml"
    path.write_text((shipped_folder() / "cpu.yaml").read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_strategies(tmp_path)
    assert what in "\n".join((caught.value.what, *caught.value.figures))
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.hints


def test_a_projects_file_that_is_not_yaml(tmp_path: Path) -> None:
    folder = tmp_path / "autoswift" / "recipes"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text("a: 'b\n")
    with pytest.raises(InputError, match="not YAML"):
        load_strategies(tmp_path)


def test_a_copy_takes_the_name_of_its_file() -> None:
    cpu = find_strategy("cpu", load_strategies())
    text = copied(cpu, Path("other.yaml"))
    assert "\nname: other\n" in text
    with pytest.raises(UsageError, match="1 error in this strategy recipe"):
        copied(cpu, Path("My Own.yaml"))


def test_loading_the_table_loads_no_schema_library() -> None:
    code = "import sys\nfrom swift_autobatch.strategies import load_strategies\nload_strategies()\n"
    code += "assert 'jsonschema' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
