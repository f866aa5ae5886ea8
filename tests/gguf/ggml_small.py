"""ggml's reference quantisers and decoders of Q1_0, Q2_0 and NVFP4, one block at a time, written apart from assay's.

    python -m tests.gguf.ggml_small      adds their errors to tests/data/encode_rms.json

The package gguf decodes NVFP4 alone, and llama.cpp's builds of that time do not have all three. ggml ignores
importance in all of them.
"""

from __future__ import annotations

import json
import math
import struct

import numpy as np

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
NAMES = {"Q1_0": 128, "Q2_0": 64, "NVFP4": 64}


def half(x: float) -> bytes:
    return struct.pack("<e", np.float16(np.float32(x)))


def e4m3(code: int) -> float:
    if code in (0, 0x7F):
        return 0.0
    exponent, mantissa = code >> 3 & 15, code & 7
    return math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(1 + mantissa / 8, exponent - 7)


def to_e4m3(x: float) -> int:
    """Half a step rounds up; the mantissa of a normal number carries into the exponent."""
    if not x > 0:
        return 0
    x = min(x, 448.0)
    exponent = math.frexp(x)[1] - 1
    if exponent + 7 <= 0:
        return min(int(x * 512 + 0.5), 7)
    mantissa = int((x / 2.0**exponent - 1) * 16)  # three bits and the one that rounds
    code = ((exponent + 7) << 3) + (mantissa >> 1) + (mantissa & 1)
    return min(code, 0x7E)


def encode(name: str, x: np.ndarray) -> bytes:
    """One block of float32."""
    if name == "Q1_0":
        total = np.float32(0)
        for value in x:
            total += abs(value)
        bits = sum(1 << i for i, value in enumerate(x) if value >= 0)
        return half(total / np.float32(128)) + bits.to_bytes(16, "little")
    if name == "Q2_0":
        d = np.abs(x).max()
        inverse = np.float32(1) / d if d > 0 else np.float32(0)
        codes = [min(max(int(np.trunc(v + np.copysign(0.5, v))) + 1, 0), 3) for v in x * inverse]
        return half(d) + bytes(sum(codes[4 * i + k] << 2 * k for k in range(4)) for i in range(16))
    scales, quants = b"", b""
    for sub in x.reshape(4, 16):
        code = to_e4m3(float(np.abs(sub).max() / np.float32(6)))
        values = [sign * value * e4m3(code) for sign in (1, -1) for value in E2M1]
        best = [min(range(16), key=lambda i: (abs(values[i] - v), i)) for v in sub.tolist()]
        scales += bytes([code])
        quants += bytes(best[i] | best[i + 8] << 4 for i in range(8))
    return scales + quants


def decode(name: str, block: bytes) -> list[float]:
    if name == "NVFP4":
        found = []
        for s in range(4):
            scale = e4m3(block[s])
            for i in range(16):
                code = block[4 + 8 * s + i % 8] >> (4 if i >= 8 else 0) & 15
                found.append((-E2M1[code - 8] if code > 8 else E2M1[code % 8]) * scale)
        return found
    (d,) = struct.unpack("<e", block[:2])
    bits = int.from_bytes(block[2:], "little")
    if name == "Q1_0":
        return [d if bits >> i & 1 else -d for i in range(128)]
    return [d * ((bits >> 2 * i & 3) - 1) for i in range(64)]


def rows(name: str, x: np.ndarray) -> np.ndarray:
    """The decoded values of the blocks that ggml makes of x."""
    blocks = x.reshape(-1, NAMES[name])
    return np.array([decode(name, encode(name, block)) for block in blocks], np.float32).reshape(x.shape)


if __name__ == "__main__":
    from tests.gguf import witness

    path = witness.DATA / "encode_rms.json"
    record = json.loads(path.read_text())
    x, (other, importance) = witness.gaussian(), witness.weighted_gaussian()
    for name in NAMES:
        record[name] = witness.rms(rows(name, x) - x)
        record[f"{name} weighted"] = witness.lost(rows(name, other) - other, importance)
    path.write_text(json.dumps(record, indent=1) + "\n")
