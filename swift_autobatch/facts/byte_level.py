"""How byte-level vocabularies spell bytes: each of the 256 as one printable character.

Source: GPT-2 ``bytes_to_unicode``; tokenizers src/pre_tokenizers/byte_level.rs.
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_OTHERS)}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def plain_bytes(token: str) -> bytes:
    """The bytes that a token of the vocabulary stands for. Raises KeyError where it is not byte-level."""
    return bytes([BYTE_OF[character] for character in token])


def spelled(content: bytes) -> str:
    """Bytes as the vocabulary spells them."""
    return "".join(CHARACTER_OF[byte] for byte in content)
