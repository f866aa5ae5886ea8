"""A second little Llama engine, for holding the diagnosis against something that is not its own mirror.

It shares no code with the package: its own GGUF reader, block decoders, forward pass, key/value cache and dump
writers, in float32, the way a port to another language would look. `bugs` is a set of names; each is one mistake,
written where a programmer would make it, in loops and reshapes rather than as an edit of a graph.

    engine = Engine("model.gguf", bugs={"rope-type"})
    trace = engine.run([1, 2, 3, 4], steps=(2, 1, 1))      # node name -> array over all tokens
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path

import numpy as np

f32 = np.float32

# -- the file ------------------------------------------------------------------------------------------------------

SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
         11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}  # fmt: skip
NAME = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
        12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}  # fmt: skip
STRIDE = {
    "Q4_K": 148,
    "Q5_K": 178,
    "Q6_K": 212,
    "Q4_0": 20,
    "Q4_1": 24,
    "Q8_0": 36,
    "Q5_0": 24,
    "Q2_K": 80,
    "Q3_K": 104,
}
MISREAD = {
    3: 2,
    2: 3,
    8: 3,
    12: 3,
    13: 12,
    14: 13,
    6: 2,
    10: 2,
    11: 10,
}  # `gguf-type-enum`: which type is taken for which


class File:
    def __init__(self, path):
        self.data = Path(path).read_bytes()
        self.key = str(path), Path(path).stat().st_mtime_ns, len(self.data)
        self.at = 4
        _version, n_tensors, n_pairs = self.take("IQQ")
        self.meta = {}
        for _ in range(n_pairs):
            key = self.string()
            (kind,) = self.take("I")
            self.meta[key] = self.value(kind)
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.string()
            (n_dims,) = self.take("I")
            dims = self.take(f"{n_dims}Q")
            kind, offset = self.take("IQ")
            self.tensors[name] = (dims, kind, offset)
        align = self.meta.get("general.alignment", 32)
        self.unaligned = self.at
        self.start = (self.at + align - 1) // align * align

    def take(self, code):
        size = struct.calcsize("<" + code)
        out = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return out

    def string(self):
        (n,) = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, n = self.take("IQ")
            if inner == 8:
                return [self.string() for _ in range(n)]
            return list(self.take(f"{n}{SCALAR[inner]}"))
        return self.take(SCALAR[kind])[0]


def bf16(x):
    bits = np.ascontiguousarray(x, f32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(f32)


def tiled(scores, values, tile=4):
    """softmax(scores) @ values as flash attention does it: tiles of keys, a running maximum, one division."""
    top, total = np.full(len(scores), -np.inf), np.zeros(len(scores))
    out = np.zeros((len(scores), values.shape[1]), f32)
    for a in range(0, scores.shape[1], tile):
        part = scores[:, a : a + tile]
        new = np.maximum(top, part.max(-1))
        safe = np.where(np.isfinite(new), new, 0)
        shrink, p = np.exp(top - safe).astype(f32), np.exp(part - safe[:, None]).astype(f32)
        out = out * shrink[:, None] + p @ values[a : a + tile]
        total, top = total * shrink + p.sum(-1), new
    return out / total[:, None].astype(f32)


def halves(raw):
    return raw.copy().view("<f2").astype(f32)


def scale_of(raw, bugs):
    """The 16-bit scale of each block."""
    if "f16-as-bf16" in bugs:
        return (raw.copy().view("<u2").astype(np.uint32) << 16).view(f32)
    d = halves(raw)
    if "f16-subnormal" in bugs:
        d[np.abs(d) < 2.0**-14] = 0
    return d


def nibble_order(lo, hi, swapped):
    """Low nibbles first, then high ones; a wrong reader takes them in turn."""
    return np.stack([lo, hi], -1).reshape(len(lo), -1) if swapped else np.concatenate([lo, hi], -1)


def unpack(kind, b, bugs):
    """Blocks of bytes [n, size] to numbers [n, block]."""
    name = NAME[kind]
    if name == "F32":
        return b.copy().view(">f4" if "gguf-endian" in bugs else "<f4").astype(f32)
    if name == "F16":
        return scale_of(b, bugs)
    if name == "BF16":
        return (b.copy().view("<u2").astype(np.uint32) << 16).view(f32)
    if "gguf-endian" in bugs:
        b = b.copy()
        at = {
            "Q6_K": (208,),
            "Q2_K": (80, 82),
            "Q3_K": (108,),
            "Q4_1": (0, 2),
            "Q5_1": (0, 2),
            "Q4_K": (0, 2),
            "Q5_K": (0, 2),
        }
        for i in at.get(name, (0,)):
            b[:, [i, i + 1]] = b[:, [i + 1, i]]
    inter = "q4_0-interleave" in bugs
    if name == "Q4_0":
        q = nibble_order(b[:, 2:] & 15, b[:, 2:] >> 4, inter).astype(f32)
        if "q4_0-zero-point/twos" in bugs:
            q = np.where(q >= 8, q - 16, q)
        elif "q4_0-zero-point" not in bugs:
            q = q - 8
        return q * scale_of(b[:, :2], bugs)
    if name == "Q4_1":
        q = nibble_order(b[:, 4:] & 15, b[:, 4:] >> 4, inter).astype(f32)
        d, m = scale_of(b[:, :2], bugs), scale_of(b[:, 2:4], bugs)
        if "q4_1-min/dropped" in bugs:
            return q * d
        if "q4_1-min/subtracted" in bugs:
            return q * d - m
        if "q4_1-min/zero" in bugs:
            return (q - 8) * d + m
        return q * d + m
    if name in ("Q5_0", "Q5_1"):
        at = 2 if name == "Q5_0" else 4
        word = b[:, at : at + 4].copy().view("<u4")[:, 0]
        bit = np.stack([(word >> j) & 1 for j in range(32)], 1)
        if "q5-highbit-index" in bugs:
            bit = np.stack(
                [(word >> (2 * j)) & 1 for j in range(16)] + [(word >> (2 * j + 1)) & 1 for j in range(16)], 1
            )
        q = nibble_order(b[:, at + 4 :] & 15, b[:, at + 4 :] >> 4, inter).astype(f32) + 16 * bit.astype(f32)
        d = scale_of(b[:, :2], bugs)
        if name == "Q5_1":
            return q * d + scale_of(b[:, 2:4], bugs)
        return (q if "q4_0-zero-point" in bugs else q - 16) * d
    if name == "Q8_0":
        return b[:, 2:].copy().view(np.int8).astype(f32) * scale_of(b[:, :2], bugs)
    return unpack_k(name, b, bugs)


READING = ("f16-", "gguf-endian", "kquant-", "q2", "q3", "q4", "q5", "q6")  # how the names of bugs of `unpack` begin
LOADING = (*READING, "dequant-", "gguf-", "weight-")  # and of bugs of `Engine.load`
RIGHT = {}  # by file: the tensors that no bug of loading touched. Most engines of a test differ in nothing else.
FILES = 2  # kept in RIGHT


@lru_cache(512)
def unpacked(kind, data, size, bugs):
    """`unpack` of a small tensor: most bugs leave most weights alone, so hundreds of engines share them."""
    return unpack(kind, np.frombuffer(data, np.uint8).reshape(-1, size), bugs)


def unpack_k(name, b, bugs):
    n = len(b)
    if name in ("Q4_K", "Q5_K"):
        d, dmin, s = scale_of(b[:, 0:2], bugs), scale_of(b[:, 2:4], bugs), b[:, 4:16].astype(np.int32)
        qs = b[:, 16:] if name == "Q4_K" else b[:, 48:]
        sc, m = np.zeros((n, 8), f32), np.zeros((n, 8), f32)
        for j in range(8):
            if j < 4 or "q4_k-scale-high" in bugs:
                sc[:, j], m[:, j] = s[:, j] & 63, s[:, j + 4] & 63
            else:
                sc[:, j] = (s[:, j + 4] & 15) | ((s[:, j - 4] >> 6) << 4)
                m[:, j] = (s[:, j + 4] >> 4) | ((s[:, j] >> 6) << 4)
        if "q4_k-scale-high/sequential" in bugs:
            bits = np.zeros((n, 96), np.int32)
            for i in range(12):
                for k in range(8):
                    bits[:, 8 * i + k] = (s[:, i] >> k) & 1
            six = np.zeros((n, 16), f32)
            for i in range(16):
                for k in range(6):
                    six[:, i] += bits[:, 6 * i + k] * (1 << k)
            sc, m = six[:, :8], six[:, 8:]
        out = np.zeros((n, 256), f32)
        for g in range(4):
            raw = qs[:, 32 * g : 32 * g + 32]
            lo, hi = (raw & 15).astype(np.int32), (raw >> 4).astype(np.int32)
            if name == "Q5_K":
                if "q5_k-qh" in bugs:
                    for i in range(32):
                        e0, e1 = 64 * g + i, 64 * g + 32 + i
                        lo[:, i] |= ((b[:, 16 + e0 // 8] >> (e0 % 8)) & 1).astype(np.int32) << 4
                        hi[:, i] |= ((b[:, 16 + e1 // 8] >> (e1 % 8)) & 1).astype(np.int32) << 4
                else:
                    lo |= ((b[:, 16:48] >> (2 * g)) & 1).astype(np.int32) << 4
                    hi |= ((b[:, 16:48] >> (2 * g + 1)) & 1).astype(np.int32) << 4
            if "q4_k-nibble-group" in bugs:
                pair = np.stack([lo, hi], -1).reshape(n, 64)
                lo, hi = pair[:, :32], pair[:, 32:]
            for part, q in ((2 * g, lo), (2 * g + 1, hi)):
                a, c = d[:, 0] * sc[:, part], dmin[:, 0] * m[:, part]
                if "q4_k-subscale-ignored" in bugs:
                    a, c = d[:, 0], dmin[:, 0]
                if "q4_k-min-sign/exchanged" in bugs:
                    a, c = d[:, 0] * m[:, part], dmin[:, 0] * sc[:, part]
                if "q4_k-min-sign" in bugs:
                    c = -c
                out[:, 32 * part : 32 * part + 32] = a[:, None] * q - c[:, None]
        return out
    if name == "Q6_K":
        ql, qh, sc = b[:, :128], b[:, 128:192], b[:, 192:208].copy().view(np.int8).astype(f32)
        if "q6_k-offset/unsigned" in bugs:
            sc = b[:, 192:208].astype(f32)
        d = scale_of(b[:, 0:2] if "kquant-d-location" in bugs else b[:, 208:210], bugs)
        zero = 0 if "q6_k-offset" in bugs else 32
        out = np.zeros((n, 256), f32)
        for h in range(2):
            for i in range(32):
                low0, low1 = ql[:, 64 * h + i].astype(np.int32), ql[:, 64 * h + 32 + i].astype(np.int32)
                top = qh[:, 32 * h + i].astype(np.int32)
                four = [(low0 & 15) | ((top & 3) << 4), (low1 & 15) | (((top >> 2) & 3) << 4),
                        (low0 >> 4) | (((top >> 4) & 3) << 4), (low1 >> 4) | (((top >> 6) & 3) << 4)]  # fmt: skip
                for k, q in enumerate(four):
                    if k and "q6_k-partial-write" in bugs:
                        continue
                    e = 128 * h + (4 * i + k if "q6_k-order" in bugs else i + 32 * k)
                    out[:, e] = d[:, 0] * sc[:, e // 16] * (q - zero)
        return out
    if name == "Q2_K":
        sc, qs = b[:, :16], b[:, 16:80]
        at = (0, 2) if "kquant-d-location" in bugs else (80, 82)
        d, dmin = scale_of(b[:, at[0] : at[0] + 2], bugs), scale_of(b[:, at[1] : at[1] + 2], bugs)
        out = np.zeros((n, 256), f32)
        for h in range(2):
            for j in range(4):
                for half in range(2):
                    group = 8 * h + (4 * half + j if "q2_k-lane-map" in bugs else 2 * j + half)
                    raw = qs[:, 32 * h + 16 * half : 32 * h + 16 * half + 16]
                    q = ((raw >> (2 * j)) & 3).astype(f32)
                    e = 128 * h + 32 * j + 16 * half
                    out[:, e : e + 16] = d * (sc[:, [group]] & 15) * q - dmin * (sc[:, [group]] >> 4)
        return out
    assert name == "Q3_K"
    s, out = b[:, 96:108].astype(np.int32), np.zeros((n, 256), f32)
    d = scale_of(b[:, 0:2] if "kquant-d-location" in bugs else b[:, 108:110], bugs)
    for g in range(16):
        low = s[:, g] & 15 if g < 8 else s[:, g - 8] >> 4
        scale = low - 8 if "q3_k-scales" in bugs else (low | ((s[:, 8 + g % 4] >> (2 * (g // 4))) & 3) << 4) - 32
        h, j, half = g // 8, (g % 8) // 2, g % 2
        for i in range(16):
            q = (b[:, 32 + 32 * h + 16 * half + i].astype(np.int32) >> (2 * j)) & 3
            bit = (b[:, 16 * half + i].astype(np.int32) >> (4 * h + j)) & 1
            out[:, 16 * g + i] = d[:, 0] * scale * (q - 4 * (1 - bit))
    return out


# Values that stay inside a fused kernel: norm with projections, projections with rotation, the gate with its product.
INSIDE = ("attn_norm", "Qcur_proj", "Kcur_proj", "ffn_norm", "ffn_gate", "ffn_up")


# -- the engine ------------------------------------------------------------------------------------------------------


class Engine:
    def __init__(self, path, bugs=(), only=None, arithmetic="f32", limit=0.0):
        """`only`: names of tensors that the decoding bugs are limited to (None: all). `arithmetic`: f32, f16 or bf16
        (every result rounded), q8 (operands of products quantised), kv16 and kvq8 (the cache in halves or blocks of
        eight bits), w16 (weights in halves), flash (attention by tiles, no scores), fused (values inside a kernel
        neither rounded nor seen); several joined by +. `limit`: what `clamp-silent` clips activations to."""
        self.file, self.bugs, self.only, self.arithmetic = File(path), set(bugs), only, arithmetic.split("+")
        self.limit = f32(limit)
        meta = self.file.meta
        arch = meta["general.architecture"]
        self.gemma = arch == "gemma3"  # without norms of Q and K
        get = lambda key, default=None: meta.get(f"{arch}.{key}", default)  # noqa: E731
        self.n_layer, self.n_embd = get("block_count"), get("embedding_length")
        self.n_head = get("attention.head_count")
        self.n_kv = get("attention.head_count_kv", self.n_head)
        self.hd = get("attention.key_length", self.n_embd // self.n_head)
        self.n_ff, self.eps = get("feed_forward_length"), f32(get("attention.layer_norm_rms_epsilon", 1e-5))
        self.base, self.n_rot = get("rope.freq_base", 10000.0), get("rope.dimension_count", self.hd)
        self.window = get("attention.sliding_window", 0)
        self.n_used = get("expert_used_count", 0)
        self.kept = {}
        if "weight-torn" in self.bugs:
            names = sorted(self.file.tensors, key=lambda n: self.file.tensors[n][2])
            matrices = [n for n in names if len(self.file.tensors[n][0]) > 1 and n != "token_embd.weight"]
            dims, kind, offset = self.file.tensors[matrices[-2]]
            width, size = BLOCK[kind]
            cut = self.file.start + offset + int(np.prod(dims)) // width * size // 2
            self.file.data = self.file.data[:cut] + bytes(len(self.file.data) - cut)

    def has(self, name):
        return name in self.file.tensors

    def __contains__(self, bug):
        return bug in self.bugs

    def weight(self, name):
        if "layer-weights" in self:
            name = name.replace("blk.1.", "blk.3.")
        if "layer-weights/text" in self and name.startswith("blk."):  # a loader that sorts its layers by name
            _, at, rest = name.split(".", 2)
            name = f"blk.{sorted(map(str, range(self.n_layer)))[int(at)]}.{rest}"
        if name not in self.kept:
            loaded = self.load(name)
            self.kept[name] = loaded.astype(np.float16).astype(f32) if "w16" in self.arithmetic else loaded
        return self.kept[name]

    def load(self, name):
        bugs = self.bugs if self.only is None or name in self.only else set()
        if "weight-torn" in self.bugs or any(bug.startswith(LOADING) for bug in bugs):
            return self.decode(name, bugs)
        known = RIGHT.setdefault(self.file.key, {})
        if name not in known:
            known[name] = self.decode(name, bugs)
            known[name].flags.writeable = False
            while len(RIGHT) > FILES:
                RIGHT.pop(next(key for key in RIGHT if key != self.file.key))
        return known[name]

    def decode(self, name, bugs):
        dims, kind, offset = self.file.tensors[name]
        count = int(np.prod(dims))
        width, size = BLOCK[kind]
        start = self.file.start + offset
        if "gguf-offset-base/omitted" in bugs:
            start = offset
        if "gguf-offset-base/twice" in bugs:
            start = 2 * self.file.start + offset
        if "gguf-data-align" in bugs:
            start -= 16
        if "gguf-missing-tensor" in bugs:
            return np.zeros(dims[::-1], f32)
        stride = size
        if "gguf-block-bytes" in bugs and width > 1:
            stride = STRIDE[NAME[kind]]
        if "gguf-type-enum" in bugs and kind in MISREAD:
            kind = MISREAD[kind]
            width, size = BLOCK[kind]
            stride = size
        if "gguf-bf16-raw" in bugs and NAME[kind] == "F16":
            rows = np.frombuffer(self.file.data, np.uint8, 2 * count, start).reshape(
                dims[1] if len(dims) > 1 else 1, -1
            )
            return rows[:, : dims[0]].astype(f32).reshape(dims[::-1])
        n = -(-count // width)
        need = (n - 1) * stride + size
        have = self.file.data[start : start + need]
        raw = np.frombuffer(have + bytes(need - len(have)), np.uint8)
        if "weight-damaged" in bugs and self.only:  # a flipped bit in the exponent of a block's scale, or of a number
            raw = raw.copy()
            block = dims[0] // width * 5 + (1 if dims[0] // width > 1 else 0)
            raw[block * size + {"F32": 3, "Q6_K": 209, "Q2_K": 81, "Q3_K": 109}.get(NAME[kind], 1)] ^= 8
        index = np.arange(n)[:, None] * stride + np.arange(size)[None, :]
        with np.errstate(all="ignore"):
            if count <= 1 << 18:
                reading = frozenset(bug for bug in bugs if bug.startswith(READING))
                flat = unpacked(kind, raw[index].tobytes(), size, reading).reshape(-1)[:count].copy()
            else:
                flat = unpack(kind, raw[index], bugs).reshape(-1)[:count].copy()
        block = max(32, width)
        if "gguf-first-block-only" in bugs and width > 1:
            flat[block:] = 0
        out = flat.reshape(dims[::-1])
        if "weight-damaged/row" in bugs and self.only:
            out[7] = 0
        if "dequant-tile-alias" in bugs and width > 1:
            for i in range(width, dims[0], width):
                out[..., i : i + width] = out[..., :width]
        return out

    def matrix(self, name):
        """[out, in]."""
        w = self.table if "embd-overwritten" in self and name == "token_embd.weight" else self.weight(name)
        head = name in ("output.weight", "token_embd.weight")
        flip = "gguf-dims-order" in self or ("w-transposed" in self and not head)
        flip = flip or ("w-square-only-transposed" in self and w.shape[0] == w.shape[1])
        flip = flip or (head and ("head-transposed" in self or "head-gemm-ld" in self))
        return w.reshape(-1).reshape(w.shape[1], w.shape[0]).T if flip else w

    def matvec(self, name, x, decode=False):
        w = self.matrix(name)
        if "q8" in self.arithmetic and BLOCK[self.file.tensors[name][1]][0] > 1:
            x = self.quantised(x, BLOCK[self.file.tensors[name][1]][0])
        y = self.narrow_sums(x, w) if "accumulate-half" in self else x @ w.T
        if decode and "q4_0-dot-sum" in self and NAME[self.file.tensors[name][1]] == "Q4_0":
            blocks = x.reshape(len(x), -1, 32)
            dx = np.abs(blocks).max(-1, keepdims=True) / f32(127)
            xq = np.rint(blocks / np.where(dx == 0, 1, dx))
            y = (xq * dx).reshape(x.shape) @ w.T
            at = self.file.start + self.file.tensors[name][2]
            raw = np.frombuffer(self.file.data, np.uint8, w.size // 32 * 18, at).reshape(-1, 18)
            d = halves(raw[:, :2]).reshape(w.shape[0], -1)
            y = y - 8 * ((xq - xq * dx).sum(-1)) @ d.T
        y = y.astype(f32)
        if "rows-unwritten" in self:  # seven workers, each with rows // 7
            y[:, len(w) // 7 * 7 :] = 0
        if "rows-unwritten/worker" in self:  # the second of four workers did not run
            y[:, -(-len(w) // 4) : 2 * -(-len(w) // 4)] = 0
        if "rows-unwritten/columns" in self:  # lanes of eight without a loop for the rest
            y = x[:, : x.shape[1] // 8 * 8] @ w[:, : x.shape[1] // 8 * 8].T
        return y

    def summed(self, value, layer):
        """A sum in a buffer that one of the bugs does not clear."""
        if "buffer-not-cleared" in self:
            value = self.left = value + (self.left if layer else 0)
        if "buffer-not-cleared/tokens" in self:  # every layer has a buffer of its own
            for row in value:
                row += self.sums.get(layer, 0)
                self.sums[layer] = row.copy()
        return value

    def narrow_sums(self, x, w):
        """A half-precision accumulator that takes 32 products at a time."""
        acc = np.zeros((len(x), len(w)), np.float16)
        for i in range(0, x.shape[1], 32):
            acc = (acc.astype(f32) + x[:, i : i + 32] @ w[:, i : i + 32].T).astype(np.float16)
        return acc.astype(f32)

    def quantised(self, x, block):
        """Blocks of 32 or 256 activations as 8-bit integers and a scale."""
        b = x.reshape(len(x), -1, block)
        d = np.abs(b).max(-1, keepdims=True) / f32(127)
        d = d.astype(np.float16).astype(f32) if block == 32 else d
        return (np.rint(b / np.where(d == 0, 1, d)) * d).reshape(x.shape).astype(f32)

    def norm(self, x, name):
        w = self.weight(name).astype(f32)
        eps = self.eps
        if "norm-weight-half" in self:
            w = w.astype(np.float16).astype(f32)
        if "norm-weight-half/bf16" in self:
            w = bf16(w)
        if "norm-half" in self:
            x16 = x.astype(np.float16).astype(f32)
            root = np.sqrt(np.mean(x16 * x16, -1, keepdims=True) + eps).astype(np.float16).astype(f32)
            return ((x16 / root).astype(np.float16) * w.astype(np.float16)).astype(f32)
        if "eps-value" in self:
            eps = f32(1e-6) if eps > 5e-6 else f32(1e-5)
        if "eps-value/odd" in self:
            eps = f32(3.7e-4)
        if "eps-floor-half" in self:
            eps = f32(max(eps, 1e-4))
        if "norm-layernorm" in self:
            x = x - x.mean(-1, keepdims=True)
        ms = np.mean(x * x, -1, keepdims=True, dtype=f32)
        y = x / (np.sqrt(ms) + eps) if "eps-place" in self else x / np.sqrt(ms + eps)
        if "norm-no-weight" in self:
            return y
        if "x-norm-abs" in self:
            return x / np.abs(x).mean(-1, keepdims=True) * w
        if "x-norm-clipped" in self:
            return np.clip(y, -1.5, 1.5) * w
        if "norm-weight-twice" in self:
            return y * w * w
        if "norm-plus1-double" in self or (name == "output_norm.weight" and "norm-final-offset" in self):
            return y * (1 + w)
        return y * w

    def rotate(self, x, positions, which):
        """x [T, heads, hd]."""
        if "rope-missing" in self or f"rope-one-side/{which}" in self:
            return x
        if "head-dim-axes" in self:
            x = x.reshape(len(x), x.shape[2], x.shape[1]).transpose(0, 2, 1)
        out = x.astype(f32).copy()
        base, n_rot = self.base, self.n_rot
        if "rope-base" in self:
            base = 10000.0 if base != 10000.0 else 500000.0
        if "rope-base/odd" in self:
            base = 31415.0
        exponent_over = n_rot
        if "rope-partial" in self:
            n_rot //= 2
            exponent_over = n_rot
        halfsplit = ("rope-type" in self or "qk-gguf-in-halfsplit" in self) != self.gemma
        factors = self.weight("rope_freqs.weight") if self.has("rope_freqs.weight") else None
        head = np.arange(x.shape[1])[None, :]
        at = np.asarray(positions, np.float64)[:, None] + 0 * head
        if "rope-axis" in self:
            at = head + 0 * at
        for i in range(n_rot // 2):
            index = i + head * (n_rot // 2) if "rope-global-index" in self else i
            theta = at * base ** (-2.0 * index / exponent_over)
            if factors is not None and "rope-freq-factors" not in self:
                theta = theta / float(factors.max() if "rope-scheme-confused" in self else factors[i])
            if "rope-linear" in self:
                theta = theta / 4
            if "rope-twice" in self and which == "k":
                theta = theta * 2
            c, s = np.cos(theta).astype(f32), np.sin(theta).astype(f32)
            if "rope-overlap-pairs" in self:
                a, b = out[:, :, i].copy(), out[:, :, i + 1].copy()
                out[:, :, i], out[:, :, i + 1] = a * c - b * s, a * s + b * c
                continue
            j, k = (i, i + n_rot // 2) if halfsplit else (2 * i, 2 * i + 1)
            a, b = x[:, :, j], x[:, :, k]
            out[:, :, j] = a * c - b * s
            out[:, :, k] = (out[:, :, j] if "rope-inplace-alias" in self else a) * s + b * c
        if "rope-yarn-factor" in self:
            out *= f32(1.1386294)
        if "x-rope-last-pair" in self:
            out[..., -2:] = x[..., -2:]
        if "x-rope-degrees" in self:
            out = out + f32(0.05) * np.asarray(positions, f32)[:, None, None] * out[..., ::-1]
        if "q-tail-stale" in self and which == "q":
            out[..., self.hd // 4 :] = 0
        return out

    def positions(self, start, n, layer):
        pos = start + np.arange(n)
        decode = start > 0
        if "pos-all-same" in self:
            pos = 0 * pos + start
        if decode and "pos-reset-decode" in self:
            pos = 0 * pos
        if decode and "pos-off-by-one-decode" in self and layer > 0:
            pos = pos + 1
        if decode and "pos-off-by-one-decode/early" in self:
            pos = pos - 1
        if decode and "pos-padding" in self:
            pos = pos + 10
        if "pos-last-off-by-one" in self and not decode:
            pos = np.where(np.arange(n) == n - 1, pos + 1, pos)
        if "pos-last-off-by-one/early" in self and not decode:
            pos = np.where(np.arange(n) == n - 1, pos - 1, pos)
        if "pos-clamped" in self:
            pos = np.minimum(pos, self.total - 3)
        if "prefill-chunk" in self:
            pos = pos % 4
        if "pos-global-offset" in self:
            pos = pos + 11
        return pos

    def run(self, tokens, steps=None, hf=False):
        """Every node over all tokens. `hf`: Q and K in Hugging Face's row order with half-split rotation: healthy."""
        steps = steps or (len(tokens),)
        self.hf, self.trace, self.cache, self.total, self.prompt = hf, {}, {}, len(tokens), steps[0]
        self.sums = {}
        self.parts, start = [], 0  # what each step gave
        for n in steps:
            self.parts.append({})
            self.step(np.asarray(tokens[start : start + n]), start, self.prompt)
            start += n
        return self.trace

    def more(self, tokens):
        """Another step of the last run: the nodes of these tokens."""
        start, self.trace = self.total, {}
        self.total += len(tokens)
        self.parts.append({})
        self.step(np.asarray(tokens), start, self.prompt)
        return self.parts[-1]

    def keep(self, name, value, start, heads=False):
        """Put this step's rows in their place; scores are [head, token, key]."""
        if "fused" in self.arithmetic and name.split("-")[0] in INSIDE:
            return value
        value = self.stored(value)
        self.parts[-1][name] = value
        if heads:
            whole = self.trace.setdefault(name, np.zeros((len(value), self.total, self.total), f32))
            whole[:, start : start + value.shape[1], : value.shape[2]] = value
        else:
            whole = self.trace.setdefault(name, np.zeros((self.total, *value.shape[1:]), f32))
            whole[start : start + len(value)] = value
        return value

    def stored(self, value):
        if "f16" in self.arithmetic:
            return value.astype(np.float16).astype(f32)
        return bf16(value) if "bf16" in self.arithmetic else value

    def step(self, tokens, start, prompt):
        emb = self.weight("token_embd.weight")
        if "embd-overwritten" in self:
            self.table = emb = emb.copy() if start == 0 else self.table
        if "embd-strided" in self:
            flat = emb.reshape(-1)
            x = np.stack([flat[np.arange(self.n_embd) * emb.shape[0] + t] for t in tokens])
        else:
            x = emb[tokens].copy()
        if "embd-scale-missing" in self:
            x = x * f32(np.sqrt(self.n_embd))
        x = self.keep("embd", x, start)
        if self.gemma:
            x = self.keep("inp_scaled", x * f32(np.sqrt(self.n_embd)), start)
        for layer in range(self.n_layer):
            x = self.block(x, layer, start, prompt)
        if "embd-overwritten" in self:
            self.table[tokens] = x
        if "head-wrong-row/hidden" in self and start == 0:
            x = np.concatenate([x[:-1], x[:1]])
        y = x if "head-no-final-norm" in self else self.norm(x, "output_norm.weight")
        y = self.keep("result_norm", y, start)
        name = "output.weight" if self.has("output.weight") and "head-tied-forced" not in self else "token_embd.weight"
        logits = self.matvec(name, y, start > 0)
        if "x-logits-clipped" in self:
            logits = np.clip(logits, -0.7 * np.abs(logits).max(), 0.7 * np.abs(logits).max())
        if "head-tied-random" in self:
            logits = y @ np.random.default_rng(5).standard_normal((len(emb), self.n_embd)).astype(f32).T * f32(0.05)
        if "head-wrong-row" in self and start == 0:
            logits[-1] = logits[0]
        if "head-wrong-row/before" in self and start == 0 and len(logits) > 1:
            logits[-1] = logits[-2]
        if "head-wrong-row/middle" in self and start == 0:
            logits[-1] = logits[len(logits) // 2]
        if "head-wrong-row/shifted" in self:
            logits = np.concatenate([logits[:1], logits[:-1]])
        if "head-wrong-row/stale" in self:
            logits, self.previous = (np.concatenate([self.previous, logits[1:]]) if start else logits), logits[-1:]
        if "head-logit-scale" in self:
            logits = logits / f32(8)
        if "head-logit-scale/odd" in self:
            logits = logits * f32(1.37)
        if "embd-scale-in-tied-table" in self:
            logits = logits * f32(np.sqrt(self.n_embd))
        if "head-softcap" in self:
            logits = 30 * np.tanh(logits / 30)
        self.keep("result_output", logits, start)

    def project(self, layer, x, decode):
        nq, nkv = self.n_head * self.hd, self.n_kv * self.hd
        pre = f"blk.{layer}."
        if "qkv-split" in self:
            fused = np.concatenate([self.matrix(pre + f"attn_{n}.weight") for n in "qkv"])
            third = len(fused) // 3
            return x @ fused[:nq].T, x @ fused[third : third + nkv].T, x @ fused[2 * third : 2 * third + nkv].T
        q = self.matvec(pre + "attn_q.weight", x, decode)
        k = self.matvec(pre + "attn_k.weight", x, decode)
        v = self.matvec(pre + "attn_v.weight", x, decode)
        if "kv-swapped" in self:
            k, v = v, k
        return q, k, v

    def block(self, x, layer, start, prompt):
        pre, sfx, decode = f"blk.{layer}.", f"-{layer}", start > 0
        n, hd = len(x), self.hd
        attn_norm_w, ffn_norm_w = pre + "attn_norm.weight", pre + "ffn_norm.weight"
        if "norm-name-swap" in self:
            ffn_norm_w = attn_norm_w
        h = self.keep("attn_norm" + sfx, self.norm(x, attn_norm_w), start)
        q, k, v = self.project(layer, h, decode)
        if self.has(pre + "attn_q.bias"):
            (
                self.keep("Qcur_proj" + sfx, q, start),
                self.keep("Kcur_proj" + sfx, k, start),
                self.keep("Vcur_proj" + sfx, v, start),
            )
            if "qkv-bias-missing" not in self:
                bq, bk = self.weight(pre + "attn_q.bias"), self.weight(pre + "attn_k.bias")
                if "qk-bias-not-permuted" in self:
                    undo = np.concatenate([np.arange(0, hd, 2), np.arange(1, hd, 2)])
                    bq, bk = bq.reshape(-1, hd)[:, undo].reshape(-1), bk.reshape(-1, hd)[:, undo].reshape(-1)
                q, k, v = q + bq, k + bk, v + self.weight(pre + "attn_v.bias")
            names = "Qcur_biased", "Kcur_biased"
        else:
            names = "Qcur_proj", "Kcur_proj"
        hf = np.concatenate([np.arange(0, hd, 2), np.arange(1, hd, 2)])
        if "qk-hf-in-interleaved" in self or self.hf:
            q = q.reshape(n, -1, hd)[..., hf].reshape(n, -1)
            k = k.reshape(n, -1, hd)[..., hf].reshape(n, -1)
        if "k-perm-nhead" in self:
            raw = k.reshape(n, self.n_kv, hd // 2, 2).swapaxes(2, 3).reshape(n, -1)  # back to Hugging Face's rows
            k = raw.reshape(n, self.n_head, 2, -1).swapaxes(2, 3).reshape(n, -1)
        if "v-stale-stride" in self:
            v = np.zeros_like(v)
        if "x-v-quantised" in self:
            v = np.rint(v * 4) / 4
        q, k = self.keep(names[0] + sfx, q, start), self.keep(names[1] + sfx, k, start)
        pos = self.positions(start, n, layer)
        k_plain = k.reshape(n, self.n_kv, hd)
        if self.hf:
            self.bugs.add("rope-type")
        q, k = self.rotate(q.reshape(n, -1, hd), pos, "q"), self.rotate(k_plain, pos, "k")
        if self.hf:
            self.bugs.discard("rope-type")
        if "rope-on-v" in self:
            v = self.rotate(v.reshape(n, self.n_kv, hd), pos, "v").reshape(n, -1)
        v = self.keep("Vcur" + sfx, v, start)
        v = v.reshape(n, self.n_kv, hd)
        q, k = self.keep("Qcur" + sfx, q, start), self.keep("Kcur" + sfx, k, start)
        if self.gemma:
            q = self.keep("Qcur_scaled" + sfx, q * f32(1 / np.sqrt(hd)), start)
        out = self.attention(layer, q, k, k_plain, v, start, prompt)
        out = self.keep("kqv_out" + sfx, out, start)
        if "o-proj-head-order" in self:
            group = self.n_head // self.n_kv
            out = out.reshape(n, self.n_kv, group, hd).swapaxes(1, 2).reshape(n, -1)
        a = self.keep("attn_out" + sfx, self.matvec(pre + "attn_output.weight", out, decode), start)
        if self.gemma:
            a = self.keep("attn_post_norm" + sfx, self.norm(a, pre + "post_attention_norm.weight"), start)
        if "res-from-norm" in self or "norm-inplace-residual" in self:
            y = h + a
        elif "res-missing" in self:
            y = a
        elif "res-multiplier" in self:
            y = x + f32(0.22) * a
        else:
            y = x + a
        if "x-residual-mean" in self:
            y = (x + a) / 2 + f32(0.1) * np.sign(a)
        y = self.keep(("sa_out" if self.gemma else "ffn_inp") + sfx, y, start)
        m = self.keep("ffn_norm" + sfx, self.norm(x if "res-parallel" in self else y, ffn_norm_w), start)
        f = self.ffn(pre, sfx, m, start)
        if self.gemma:
            f = self.keep("ffn_post_norm" + sfx, self.norm(f, pre + "post_ffw_norm.weight"), start)
        z = f if "res-missing/ffn" in self else y + (f32(0.22) * f if "res-multiplier" in self else f)
        return self.keep("l_out" + sfx, z, start)

    def ffn(self, pre, sfx, m, start):
        decode = start > 0
        if self.has(pre + "ffn_gate_inp.weight"):
            return self.experts(pre, sfx, m, start)
        gate, up = self.matvec(pre + "ffn_gate.weight", m, decode), self.matvec(pre + "ffn_up.weight", m, decode)
        if "gateup-split" in self:
            fused = np.concatenate([self.matrix(pre + "ffn_gate.weight"), self.matrix(pre + "ffn_up.weight")])
            both = m @ fused.T
            gate, up = both[:, 0::2], both[:, 1::2]
        if "ffn-gate-up-weights" in self:
            gate, up = up, gate
        up, gate = self.keep("ffn_up" + sfx, up, start), self.keep("ffn_gate" + sfx, gate, start)
        sig = lambda t: 1 / (1 + np.exp(-t.astype(np.float64)))  # noqa: E731
        act = gate * sig(gate) * up
        if self.gemma:
            act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        if "clamp-silent" in self:
            act = np.clip(act, -self.limit, self.limit)
        if "ffn-silu-on-up" in self:
            act = up * sig(up) * gate
        if "ffn-sigmoid" in self:
            act = sig(gate) * up
        if "ffn-alias" in self:
            act = up * sig(up) * up
        if "ffn-act-family" in self:
            act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        if "ffn-act-family/relu" in self:
            act = np.maximum(gate, 0) * up
        if "ffn-gelu-variant" in self:
            from math import erf

            act = 0.5 * gate * (1 + np.vectorize(erf)(gate / np.sqrt(2))) * up
        if "x-gate-cubed" in self:
            act = gate**3 * up
        if "x-act-shifted" in self:
            act = np.roll(act, 1, axis=1)
        act = self.keep(("ffn_geglu" if self.gemma else "ffn_swiglu") + sfx, act.astype(f32), start)
        if "ffn-dim" in self:
            cut = self.n_ff - 32
            f = act[:, :cut] @ self.matrix(pre + "ffn_down.weight")[:, :cut].T
        else:
            f = self.matvec(pre + "ffn_down.weight", act, decode)
        f = self.summed(f, int(sfx[1:]))
        return self.keep("ffn_out" + sfx, f, start)

    def experts(self, pre, sfx, m, start):
        logits = self.keep("ffn_moe_logits" + sfx, m @ self.weight(pre + "ffn_gate_inp.weight").T, start)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        probs = e / e.sum(-1, keepdims=True)
        k = self.n_used
        best = np.argsort(-probs, -1, kind="stable")[:, :k]
        w = np.take_along_axis(logits if "moe-raw-logits" in self else probs, best, -1)
        if "moe-topk-norm" in self:
            w = np.exp(w) / np.exp(w).sum(-1, keepdims=True)
        elif "moe-no-renorm" not in self and "moe-raw-logits" not in self:
            w = w / w.sum(-1, keepdims=True)
        self.keep("ffn_moe_weights_norm" + sfx, w, start)
        out = np.zeros_like(m)

        def times(name, i, v):
            block = BLOCK[self.file.tensors[name][1]][0]
            if "q8" in self.arithmetic and block > 1:
                v = self.quantised(v[None], block)[0]
            if "accumulate-half" in self:
                return self.narrow_sums(v[None], self.weight(name)[i])[0]
            return self.weight(name)[i] @ v

        for t in range(len(m)):
            for j in range(k):
                i = best[t, j]
                g, u = times(pre + "ffn_gate_exps.weight", i, m[t]), times(pre + "ffn_up_exps.weight", i, m[t])
                act = g / (1 + np.exp(-g)) * u
                if "clamp-silent" in self:
                    act = np.clip(act, -self.limit, self.limit)
                out[t] += w[t, j] * times(pre + "ffn_down_exps.weight", i, act.astype(f32))
        return self.keep("ffn_moe_out" + sfx, self.summed(out, int(sfx[1:])), start)

    def attention(self, layer, q, k, k_plain, v, start, prompt):
        n, group = len(q), self.n_head // self.n_kv
        decode = start > 0
        if layer not in self.cache or ("kv-recreated" in self and decode):
            self.cache[layer] = (k[:0], k[:0], v[:0])
        old_k, old_plain, old_v = self.cache[layer]
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        plain = np.concatenate([old_plain, k_plain])
        self.cache[layer] = keys, plain, values
        if "kv-pre-rope" in self and decode:
            keys = np.concatenate([old_plain, k])
        if decode and ("kv-pre-rope/stored" in self or "kv-pre-rope/earlier" in self):
            upto = len(keys) if "kv-pre-rope/stored" in self else start
            keys = np.concatenate([keys[:prompt], plain[prompt:upto], keys[upto:]])
        if "kv-pre-rope/query" in self and decode:  # rotated on reading, all by the angle of the token at hand
            keys = self.rotate(plain, np.full(len(plain), start), "k")
        if "kv-rounded-twice/rope" in self:
            again = self.rotate(plain.astype(np.float16).astype(f32), np.arange(len(plain)), "k")
            keys = again.astype(np.float16).astype(f32)
        if decode and any(b.startswith("kv-seqpos-units/") for b in self.bugs):
            keys = keys if "kv-seqpos-units/values" in self else self.misplaced(keys, start, prompt)
            values = self.misplaced(values, start, prompt)
        if "kv-rounded-twice" in self:
            keys, values = (bf16(t).astype(np.float16).astype(f32) for t in (keys, values))
        if "kv-seqpos-units" in self and decode:
            buffers = []
            for rows in (keys, values):
                flat, width = np.zeros(rows.size, f32), rows[0].size
                flat[: prompt * width] = rows[:prompt].ravel()
                for t in range(prompt, len(rows)):
                    flat[t : t + width] = rows[t].ravel()
                buffers.append(flat.reshape(rows.shape))
            keys, values = buffers
        if "kv16" in self.arithmetic:
            q, keys, values = (t.astype(np.float16).astype(f32) for t in (q, keys, values))
        if "kvq8" in self.arithmetic:
            block = min(32, self.hd)
            q, keys, values = (
                self.quantised(t.reshape(-1, self.hd), block).reshape(t.shape) for t in (q, keys, values)
            )
        past = len(keys) - n
        kq = np.zeros((self.n_head, n, len(keys)), f32)
        kqv = np.zeros((self.n_head, n, self.hd), f32)
        for h in range(self.n_head):
            g = h % self.n_kv if "gqa-modulo" in self else h // group
            if "gqa-tile-cross" in self and decode:
                tile = 4 if group % 4 else 8
                g = (h // tile * tile) // group
            kq[h] = q[:, h] @ keys[:, g].T
        if "kq-swapped" in self and not decode:
            kq = kq.transpose(0, 2, 1).copy()
        flash = "flash" in self.arithmetic
        kq = kq if flash else self.stored(kq)
        scale = f32(1) if self.gemma else f32(1 / np.sqrt(self.hd))
        if "scale-missing" in self:
            scale = f32(1)
        if "scale-twice" in self:
            scale = scale * scale
        if "scale-wrong-dim" in self:
            scale = f32(1 / np.sqrt(self.n_embd))
        if "scale-wrong-dim/odd" in self:
            scale = scale * f32(1.11)
        i, j = np.arange(n)[:, None] + past, np.arange(len(keys))[None, :]
        seen = j <= i
        if self.window:
            wide = self.window + ("swa-off-by-one" in self) - ("swa-off-by-one/short" in self)
            seen &= j > i - wide if "swa-ignored" not in self else True
        if "mask-missing-prefill" in self:
            seen = seen | True
        if "mask-plus1" in self:
            seen = j <= i + 1
        if "mask-cache-offset" in self:
            seen = j <= i - past
        if "kv-capacity" in self:
            seen &= j > i - 4
        if "prefill-chunk/mask" in self and not decode:
            seen &= j // 4 == i // 4
        late = "mask-after-softmax" in self
        scores = (kq * scale).astype(np.float64)
        if "attn-softcap" in self:
            scores = 50 * np.tanh(scores / 50)
        if not late:
            scores = np.where(seen[None], scores, -np.inf)
        axis = 1 if "softmax-axis" in self else 0 if "softmax-axis/heads" in self else 2
        with np.errstate(all="ignore"):
            e = np.exp(scores - scores.max(axis, keepdims=True))
            total = e.sum(axis, keepdims=True)
            if "softmax-unfilled" in self:
                total = total + (64 - len(keys)) * np.exp(-scores.max(axis, keepdims=True))
            soft = np.nan_to_num(e / total)
        if "softmax-online-rescale" in self:
            soft = self.online(scores)
        if "softmax-half" in self:
            s16 = scores.astype(np.float16)
            e16 = np.exp((s16 - s16.max(-1, keepdims=True)).astype(f32)).astype(np.float16)
            sum16 = np.zeros(e16.shape[:2], np.float16)
            for key in range(e16.shape[2]):
                sum16 = sum16 + e16[..., key]
            soft = (e16.astype(f32) / sum16[..., None].astype(f32)).astype(np.float16)
        if "softmax-half/bf16" in self:
            soft = bf16(soft)
        if late:
            soft = soft * seen[None]
        if "x-softmax-squared" in self:
            soft = soft**2 / np.sum(soft**2, -1, keepdims=True) * 0.9
        if "p-cast" in self:
            power = np.clip(np.floor(np.log2(np.maximum(soft, 1e-30))), -6, 8)
            soft = np.rint(soft / 2.0 ** (power - 3)) * 2.0 ** (power - 3)
        soft = soft.astype(f32) if flash else self.stored(soft.astype(f32))
        for h in range(self.n_head):
            g = h % self.n_kv if "gqa-modulo" in self else h // group
            if "gqa-tile-cross" in self and decode:
                tile = 4 if group % 4 else 8
                g = (h // tile * tile) // group
            p = soft[h].astype(np.float16).astype(f32) if "kv16" in self.arithmetic else soft[h]
            kqv[h] = tiled(scores[h], values[:, g]) if flash else p @ values[:, g]
        if "head-one-wrong" in self:
            kqv[-1] = 0
        if "head-one-wrong/neighbour" in self:
            kqv[2] = kqv[1]
        if "x-head-reversed" in self:
            kqv[1] = kqv[1][:, ::-1]
        sfx = f"-{layer}"
        if not flash:
            self.keep("kq" + sfx, kq, start, True), self.keep("kq_soft_max" + sfx, soft, start, True)
        kqv = self.stored(kqv)
        self.parts[-1]["kqv" + sfx] = kqv
        whole = self.trace.setdefault("kqv" + sfx, np.zeros((self.n_head, self.total, self.hd), f32))
        whole[:, start : start + n] = kqv
        return kqv.transpose(1, 0, 2).reshape(n, -1)

    def misplaced(self, rows, start, prompt):
        """The cache as a decode step finds it when offsets are counted in another unit than rows."""
        n, n_kv, hd = rows.shape
        if "kv-seqpos-units/heads" in self:  # [head][row][dim], offset in elements
            out = np.zeros_like(rows)
            for g in range(n_kv):
                memory = np.zeros(n * hd, f32)
                memory[: prompt * hd] = rows[:prompt, g].ravel()
                for t in range(prompt, n):
                    memory[t : t + hd] = rows[t, g]
                out[:, g] = memory.reshape(n, hd)
            return out
        if "kv-seqpos-units/early" in self or "kv-seqpos-units/values" in self:  # n_past - 1 for n_past
            out = rows.copy()
            for t in range(prompt, n):
                out[t - 1] = rows[t]
            out[n - 1] = 0
            return out
        if "kv-seqpos-units/steps" in self:  # the step's number for the row
            out = np.zeros_like(rows)
            out[:prompt] = rows[:prompt]
            for step, t in enumerate(range(prompt, n)):
                out[step + 1] = rows[t]
            return out
        memory = np.zeros(8 * n * n_kv * hd, f32)
        memory[: prompt * n_kv * hd] = rows[:prompt].ravel()
        for t in range(prompt, n):  # one head's width for a row's, or two bytes an element counted twice
            at = t * hd if "kv-seqpos-units/width" in self else t * 2 * n_kv * hd
            memory[at : at + n_kv * hd] = rows[t].ravel()
        out = memory[: n * n_kv * hd].reshape(rows.shape).copy()
        if "kv-seqpos-units/width" in self:
            out[start:] = rows[start:]  # the token at hand is still in registers
        return out

    def online(self, scores, tile=4):
        """Tiles of keys with a running maximum; the sum is not rescaled when it moves."""
        out, total = np.zeros_like(scores), np.zeros(scores.shape[:2])
        top = np.full(scores.shape[:2], -np.inf)
        for a in range(0, scores.shape[2], tile):
            top = np.maximum(top, scores[:, :, a : a + tile].max(-1))
            out[:, :, a : a + tile] = np.exp(scores[:, :, a : a + tile] - top[..., None])
            total += out[:, :, a : a + tile].sum(-1)
        return out / total[..., None]
