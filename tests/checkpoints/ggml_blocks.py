"""What the bytes of a block mean, one number after the other, written out from ggml-quants.c: the reference for types.

Every function takes one block of bytes and gives its numbers.
"""

import struct
from collections.abc import Callable, Iterator

_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def _half(block: bytes, at: int) -> float:
    return struct.unpack_from("<e", block, at)[0]


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _nibbles(quants: bytes) -> list[int]:
    """The low halves of all bytes, then the high ones."""
    return [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]


def _fifth_bits(four_bytes: bytes) -> list[int]:
    bits = int.from_bytes(four_bytes, "little")
    return [(bits >> place & 1) << 4 for place in range(32)]


def q8_0(block: bytes) -> Iterator[float]:
    return (_half(block, 0) * _signed(byte) for byte in block[2:])


def q4_0(block: bytes) -> Iterator[float]:
    return (_half(block, 0) * (quant - 8) for quant in _nibbles(block[2:]))


def q4_1(block: bytes) -> Iterator[float]:
    return (_half(block, 0) * quant + _half(block, 2) for quant in _nibbles(block[4:]))


def q5_0(block: bytes) -> Iterator[float]:
    quants = zip(_nibbles(block[6:]), _fifth_bits(block[2:6]), strict=True)
    return (_half(block, 0) * ((low | high) - 16) for low, high in quants)


def q5_1(block: bytes) -> Iterator[float]:
    quants = zip(_nibbles(block[8:]), _fifth_bits(block[4:8]), strict=True)
    return (_half(block, 0) * (low | high) + _half(block, 2) for low, high in quants)


def q2_k(block: bytes) -> Iterator[float]:
    scales, quants, d, least = block[:16], block[16:80], _half(block, 80), _half(block, 82)
    for group in range(16):  # of 16 numbers each
        half, shift, part = group // 8, group % 8 // 2, group % 2
        for place in range(16):
            quant = quants[half * 32 + part * 16 + place] >> 2 * shift & 3
            yield d * (scales[group] & 15) * quant - least * (scales[group] >> 4)


def q3_k(block: bytes) -> Iterator[float]:
    high, quants, packed, d = block[:32], block[32:96], block[96:108], _half(block, 108)
    for group in range(16):
        half, shift, part = group // 8, group % 8 // 2, group % 2
        low_bits = packed[group] & 15 if group < 8 else packed[group - 8] >> 4
        scale = (low_bits | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4) - 32
        for place in range(16):
            at = part * 16 + place
            quant = quants[half * 32 + at] >> 2 * shift & 3
            yield d * scale * (quant - (0 if high[at] >> (half * 4 + shift) & 1 else 4))


def _scale_and_minimum(packed: bytes, group: int) -> tuple[int, int]:
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    return (
        packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
        packed[group + 4] >> 4 | packed[group] >> 6 << 4,
    )


def q4_k(block: bytes) -> Iterator[float]:
    d, least, packed, quants = _half(block, 0), _half(block, 2), block[4:16], block[16:]
    for group in range(8):
        scale, minimum = _scale_and_minimum(packed, group)
        for place in range(32):
            quant = quants[group // 2 * 32 + place] >> 4 * (group % 2) & 15
            yield d * scale * quant - least * minimum


def q5_k(block: bytes) -> Iterator[float]:
    d, least, packed, high, quants = _half(block, 0), _half(block, 2), block[4:16], block[16:48], block[48:]
    for group in range(8):
        scale, minimum = _scale_and_minimum(packed, group)
        for place in range(32):
            quant = quants[group // 2 * 32 + place] >> 4 * (group % 2) & 15
            quant |= (high[place] >> group & 1) << 4
            yield d * scale * quant - least * minimum


def q6_k(block: bytes) -> Iterator[float]:
    low, high, scales, d = block[:128], block[128:192], block[192:208], _half(block, 208)
    for half in range(2):
        for quarter in range(4):
            for place in range(32):
                bits = low[half * 64 + quarter % 2 * 32 + place] >> 4 * (quarter // 2) & 15
                quant = (bits | (high[half * 32 + place] >> 2 * quarter & 3) << 4) - 32
                yield d * _signed(scales[half * 8 + quarter * 2 + place // 16]) * quant


def iq4_nl(block: bytes) -> Iterator[float]:
    return (_half(block, 0) * _NON_LINEAR[quant] for quant in _nibbles(block[2:]))


def iq4_xs(block: bytes) -> Iterator[float]:
    d, high, low, quants = _half(block, 0), int.from_bytes(block[2:4], "little"), block[4:8], block[8:]
    for group in range(8):
        scale = (low[group // 2] >> 4 * (group % 2) & 15 | (high >> 2 * group & 3) << 4) - 32
        for quant in _nibbles(quants[group * 16 : group * 16 + 16]):
            yield d * scale * _NON_LINEAR[quant]


def mxfp4(block: bytes) -> Iterator[float]:
    """The microscaling format of the Open Compute Project: a shared power of two, and E2M1 numbers."""
    scale = 2.0 ** (block[0] - 127)
    return (scale * _FP4[quant & 7] * (-1 if quant & 8 else 1) for quant in _nibbles(block[1:]))


def tq2_0(block: bytes) -> Iterator[float]:
    for half in range(2):
        for shift in range(4):
            for place in range(32):
                yield _half(block, 64) * ((block[half * 32 + place] >> 2 * shift & 3) - 1)


def tq1_0(block: bytes) -> Iterator[float]:
    """Five digits of base three to a byte, which holds them as a fraction of 256; times 3 brings up the next."""
    for start, width, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        for digit in range(digits):
            for place in range(width):
                rest = block[start + place] * 3**digit & 255
                yield _half(block, 52) * ((rest * 3 >> 8) - 1)


BLOCKS: dict[str, tuple[Callable[[bytes], Iterator[float]], tuple[int, ...]]] = {
    "Q8_0": (q8_0, (0,)),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
    "IQ4_NL": (iq4_nl, (0,)),
    "IQ4_XS": (iq4_xs, (0,)),
    "MXFP4": (mxfp4, ()),
    "TQ2_0": (tq2_0, (64,)),
    "TQ1_0": (tq1_0, (52,)),
}
"""By the name of a type: what a block means, and where in it scales in float16 are."""
