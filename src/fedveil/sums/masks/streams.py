"""Masks: streams of AES-256 in counter mode, read as integers, added or subtracted modulo 2**64."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Ring = NDArray[np.uint64]

WORD: Final = np.dtype("<u8")  # little-endian, for the same integers on every machine
_BLOCK: Final = 2**14  # in words, so that the sum, the zeros and the stream stay in the processor's cache
_ZEROS: Final = bytes(8 * _BLOCK)


def add_masks(values: Ring, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add each mask in place, or subtract it if its flag says so.

    A key has one mask, so counters start at 0.
    """
    streams = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), off) for key, off in masks]
    room = bytearray(8 * _BLOCK)
    words: Ring = np.frombuffer(room, dtype=WORD)
    for start in range(0, values.size, _BLOCK):
        part = values[start : start + _BLOCK]
        zeros, these = (_ZEROS, words) if part.size == _BLOCK else (_ZEROS[: 8 * part.size], words[: part.size])
        for stream, off in streams:
            stream.update_into(zeros, room)
            if off:
                np.subtract(part, these, out=part)
            else:
                np.add(part, these, out=part)
