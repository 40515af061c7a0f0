"""Counts the tokens of images from their size, where the model's way to cut them into patches is known here.

The engine scales an image to sides that are whole numbers of blocks (merge x merge patches), 4 to 16384 blocks in all,
and writes one token a block between a start and an end mark. Only the header of an image file is read.

Source: qwen_vl_utils 0.0.14 vision_process.py ``smart_resize`` and ``fetch_image``; ms-swift 4.6
swift/template/templates/qwen.py ``Qwen2VLTemplate`` and ``Qwen3VLTemplate``, swift/template/vision_utils.py
``rescale_image`` (--max_pixels), swift/model/models/qwen.py ``compat_qwen_vl_utils`` (MAX_PIXELS, MIN_PIXELS).
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swift_autobatch.facts.conversation import Conversation
from swift_autobatch.facts.tokens import Count
from swift_autobatch.records import Environment, ModelFacts, Sourced

# Template -> pixels along a side of a patch. Source: preprocessor_config.json of each family, patch_size.
PATCH: Mapping[str, int] = MappingProxyType({"qwen2_vl": 14, "qvq": 14, "qwen2_5_vl": 14, "qwen3_vl": 16})
_MERGE = 2  # patches along a side of a block
_LEAST, _MOST = 4, 16384  # blocks of an image
_MARKS = 2  # <|vision_start|> and <|vision_end|>
_LONGEST_RATIO = 200  # of the sides; the engine refuses more


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The images of one row: their tokens, how many were not counted, and the first that cannot be used."""

    tokens: int = 0
    unknown: int = 0
    broken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """How images become tokens for one model in one environment. ``block`` None: not known for this model."""

    block: int | None  # pixels along a side of a token
    least: int = _LEAST
    most: int = _MOST
    max_pixels: int | None = None  # --max_pixels: scaled down to so many before all else
    root: str = "."  # where relative paths start

    def of(self, talk: Conversation) -> Pictures:
        """The images of a conversation; videos and audio are never counted."""
        if not talk.media:
            return Pictures()
        other = 0 if talk.images else 1  # videos, audio, or images in a shape that is not read here
        if self.block is None:
            return Pictures(unknown=len(talk.images) + other)
        tokens, unknown, broken = 0, other, ""
        for image in talk.images:
            size = _size(image, self.root)
            if size is None:
                unknown += 1
            elif isinstance(size, str):
                broken = broken or f"{image[:80]}: {size}"
            elif max(size) > _LONGEST_RATIO * min(size):
                broken = broken or f"{image[:80]}: {size[0]} x {size[1]} pixels, sides beyond 1 : {_LONGEST_RATIO}"
            else:
                tokens += self.tokens(*size)
        return Pictures(tokens=tokens, unknown=unknown, broken=broken)

    def tokens(self, width: int, height: int) -> int:
        """Tokens of one image with its marks; ``width`` and ``height`` in pixels."""
        block = self.block
        if block is None:
            raise ValueError("the model's patches are not known")
        if self.max_pixels is not None and 0 < self.max_pixels < width * height:
            ratio = width / height
            scaled = math.sqrt(self.max_pixels / ratio)
            width, height = int(scaled * ratio), int(scaled)
        rows, columns = max(1, round(height / block)), max(1, round(width / block))
        if rows * columns > self.most:
            shrink = math.sqrt(height * width / (self.most * block**2))
            rows, columns = math.floor(height / shrink / block), math.floor(width / shrink / block)
        elif rows * columns < self.least:
            grow = math.sqrt(self.least * block**2 / (height * width))
            rows, columns = math.ceil(height * grow / block), math.ceil(width * grow / block)
        return rows * columns + _MARKS


def media_for(model: ModelFacts, env: Environment, pins: Mapping[str, Sourced[Any]]) -> Media:
    """How this model's images become tokens.

    Args:
        model: its template tells the patches.
        env: MAX_PIXELS, MIN_PIXELS, IMAGE_MAX_TOKEN_NUM, IMAGE_MIN_TOKEN_NUM and ROOT_IMAGE_DIR.
        pins: ``--max_pixels``.
    """
    patch = PATCH.get(model.swift_template or "")
    block = None if patch is None else patch * _MERGE
    most, least = (_bound(env, word, block, otherwise) for word, otherwise in (("MAX", _MOST), ("MIN", _LEAST)))
    pin = pins.get("max_pixels")
    return Media(
        block=block,
        most=most,
        least=least,
        max_pixels=int(pin.value) if pin is not None and str(pin.value).isdigit() else None,
        root=str(Path(env.cwd, env.variables.get("ROOT_IMAGE_DIR") or ".")),
    )


def with_pictures(count: Count, pictures: Pictures) -> Count:
    """A row's tokens with those of its images, which stand in the question."""
    more = pictures.tokens
    if not more:
        return count
    return replace(
        count,
        tokens=count.tokens + more,
        prompt=count.prompt + more if count.prompt else 0,
        planned=count.planned + more,
        bound=count.bound + more,
    )


def _bound(env: Environment, word: str, block: int | None, otherwise: int) -> int:
    """Blocks that the environment allows: MAX_PIXELS in pixels, or IMAGE_MAX_TOKEN_NUM in tokens, which wins."""
    tokens, pixels = env.variables.get(f"IMAGE_{word}_TOKEN_NUM", ""), env.variables.get(f"{word}_PIXELS", "")
    if tokens.isdigit():
        return max(1, int(tokens))
    if pixels.isdigit() and block:
        return max(1, int(pixels) // block**2)
    return otherwise


@lru_cache(maxsize=4096)
def _size(image: str, root: str) -> tuple[int, int] | str | None:
    """Width and height in pixels, what is wrong with the file, or None: nobody knows without the network."""
    from PIL import Image, UnidentifiedImageError

    if not image or image.startswith(("http://", "https://")):
        return None
    try:
        source: Any = _inline(image) if image.startswith("data:") else Path(root, image.removeprefix("file://"))
        with Image.open(source) as opened:
            return (int(opened.width), int(opened.height))
    except UnidentifiedImageError:
        return "not an image"
    except (OSError, ValueError, binascii.Error, Image.DecompressionBombError) as error:
        return str(getattr(error, "strerror", None) or error)


def _inline(image: str) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(image.partition("base64,")[2], validate=True))
