"""Image tokens from image sizes, worked out by hand, and what is said of images that cannot be used."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from test_dataset import model_facts, write

from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.media import Media, media_for
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, Sourced


@pytest.mark.parametrize(
    ("size", "block", "tokens"),
    [
        ((224, 224), 28, 8 * 8),
        ((1000, 1000), 28, 36 * 36),  # 35.7 blocks are rounded
        ((640, 480), 28, 23 * 17),
        ((10, 10), 28, 2 * 2),  # four blocks at least
        ((1024, 1024), 32, 32 * 32),  # Qwen3-VL: patches of 16 pixels
        ((1000, 1000), 32, 31 * 31),
        ((8000, 6000), 28, 147 * 110),  # 61204 blocks shrink to at most 16384, each side rounded down
    ],
)
def test_tokens_of_an_image(size: tuple[int, int], block: int, tokens: int) -> None:
    assert Media(block=block).tokens(*size) == tokens + 2


def media(env: Environment, template: str, variables: dict[str, str] | None = None, **flags: str) -> Media:
    pins = {name: Sourced(value=value, source="flag") for name, value in flags.items()}
    model = replace(model_facts(None), swift_template=template)
    return media_for(model, replace(env, variables={**env.variables, **(variables or {})}), pins)


def test_bounds_come_from_the_environment_and_the_flag(env: Environment) -> None:
    photo = (4000, 3000)
    assert media(env, "qwen2_vl").tokens(*photo) == 143 * 107 + 2
    assert media(env, "qwen2_5_vl", {"MAX_PIXELS": "1003520"}).tokens(*photo) == 41 * 30 + 2  # 1280 blocks of 28 x 28
    assert media(env, "qwen3_vl", {"MAX_PIXELS": "1003520"}).most == 980
    assert media(env, "qwen3_vl", {"IMAGE_MAX_TOKEN_NUM": "256", "MAX_PIXELS": "1003520"}).most == 256
    assert media(env, "qwen2_vl", {"MIN_PIXELS": "50176"}).tokens(28, 28) == 64 + 2
    # 1154 x 866 pixels after --max_pixels, then whole blocks
    assert media(env, "qwen2_vl", max_pixels="1000000").tokens(*photo) == 41 * 31 + 2
    assert media(env, "qwen2_5").block is None


def picture(folder: Path, name: str, size: tuple[int, int]) -> str:
    Image.new("RGB", size).save(folder / name)
    return name


def read(env: Environment, path: str, template: str = "qwen2_vl", context: int = 4096) -> DataFacts:
    model = replace(model_facts(None), swift_template=template, max_position=context)
    return read_dataset((path,), model, env, system=None, progress=Silent())


def test_rows_with_images(tmp_path: Path, env: Environment) -> None:
    small, large = picture(tmp_path, "small.png", (224, 224)), picture(tmp_path, "large.png", (1000, 1000))
    buffer = io.BytesIO()
    Image.new("RGB", (224, 224)).save(buffer, "PNG")
    inline = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    rows: list[dict[str, Any]] = [
        {"query": "<image>a", "response": "b", "images": [small]},
        {"query": "<image><image>c", "response": "d", "images": [large, {"path": small, "bytes": None}]},
        {"query": "<image>e", "response": "f", "image": str(tmp_path / small)},
        {"query": "<image>g", "response": "h", "images": [inline]},
        {"query": "i", "response": "j"},
    ]
    data = read(env, write(tmp_path, "a.jsonl", *rows))
    assert data.problems == ()
    assert data.media_rows == 0, "every image was counted"
    assert data.max_image_tokens == 36 * 36 + 2 + 66
    assert data.mean_image_tokens == (3 * 66 + 36 * 36 + 2 + 66) / 5
    assert data.costliest[0].line == 2
    text = read(env, write(tmp_path, "b.jsonl", *({**row, "images": None, "image": None} for row in rows)))
    assert data.max_tokens - data.max_image_tokens == pytest.approx(text.max_tokens, abs=3)
    assert not data.exact


def test_images_that_cannot_be_counted_are_said(tmp_path: Path, env: Environment) -> None:
    small = picture(tmp_path, "small.png", (224, 224))
    rows: list[dict[str, Any]] = [
        {"query": "<image>a", "response": "b", "images": [small]},
        {"query": "<image>c", "response": "d", "images": ["https://example.com/x.png"]},
        {"query": "<video>e", "response": "f", "videos": ["film.mp4"]},
    ]
    path = write(tmp_path, "a.jsonl", *rows)
    assert read(env, path).media_rows == 2
    unknown = read(env, path, "internvl2")
    assert (unknown.media_rows, unknown.max_image_tokens) == (3, 0)


def test_images_that_cannot_be_used(tmp_path: Path, env: Environment) -> None:
    (tmp_path / "text.png").write_text("no image")
    rows: list[dict[str, Any]] = [
        {"query": "<image>a", "response": "b", "images": ["missing.png"]},
        {"query": "<image>c", "response": "d", "images": ["text.png"]},
        {"query": "<image>e", "response": "f", "images": [picture(tmp_path, "thin.png", (3, 900))]},
        {"query": "<image><image>g", "response": "h", "images": [picture(tmp_path, "small.png", (224, 224))]},
        {"query": "<image>i", "response": "j", "images": [picture(tmp_path, "large.png", (3000, 3000))]},
    ]
    data = read(env, write(tmp_path, "a.jsonl", *rows))
    found = [(problem.code, problem.line, problem.text) for problem in data.problems]
    codes = ["broken-image"] * 3 + ["image-count", "long-image", "over-context"]
    assert [(code, line) for code, line, _ in found] == list(zip(codes, (1, 2, 3, 4, 5, 5), strict=True))
    assert "missing.png: No such file" in found[0][2]
    assert "text.png: not an image" in found[1][2]
    assert "3 x 900 pixels" in found[2][2]
    assert data.kept == 5
