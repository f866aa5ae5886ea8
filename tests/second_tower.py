"""A second engine for vision towers: Gemma 3 and 4, Qwen2, 2.5 and 3-VL, SmolVLM, LFM2-VL, Pixtral, LLaVA.

It shares no code with the package. It reads files with `gguf`, resizes with Pillow, and computes with NumPy, the way a
port would: patches by loops over the grid, one head after the other, windows by a mask. `bugs` is a set of names, each
one mistake, written where a programmer would make it; after a slash stands a variant of the same mistake.

    engine = SecondTower("mmproj.gguf", bugs={"vis-bgr"})
    images = engine.run(picture)          # for each image a dictionary: pixels, nodes by llama.cpp's names, embd

Options: `real` (float32, or float64 to check the formulas), `weights` (f32, bf16, f16: the type that matrices are kept
in), `halves` (the patch convolution and GELU through half precision, as llama.cpp has them).
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGUFReader, dequantize
from PIL import Image

FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS, "nearest": Image.NEAREST}
TOKENS = {"gemma4v": (70, 1120), "lfm2": (64, 256), "pixtral": (8, 1024)}  # Qwen: 8 to 4096
SIDES = {"gemma3": 4, "gemma4v": 3, "pixtral": 1}  # patches a side of a token, where the file does not say
RMS = ("qwen2.5vl_merger", "gemma4v", "pixtral")


def rounded(x, kind):
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(x.dtype)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (near & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x)))


def erf_gelu(x):
    return (0.5 * x * (1 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2)))).astype(x.dtype)


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def silu(x):
    return x / (1 + np.exp(-x))


class SecondTower:
    def __init__(self, path, bugs=(), real=np.float32, weights="f32", halves=False, tokens=None):
        self.bugs, self.real, self.halves = set(bugs), real, halves
        reader = GGUFReader(path)
        self.meta = {}
        for key, value in reader.fields.items():
            part = [value.parts[i] for i in value.data]
            text = value.types[-1].name == "STRING"
            found = [bytes(p).decode() if text else p[0].item() for p in part]
            self.meta[key] = found if value.types[0].name == "ARRAY" else found[0]
        self.w = {}
        for t in reader.tensors:
            x = dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)]).astype(real)
            self.w[t.name] = rounded(x, weights) if x.ndim > 1 and "position" not in t.name else x
        self.kind = self.meta["clip.projector_type"]
        v = {k.removeprefix("clip.vision."): x for k, x in self.meta.items() if k.startswith("clip.vision.")}
        self.side, self.p, self.e = v["image_size"], v["patch_size"], v["embedding_length"]
        self.heads, self.layers = v["attention.head_count"], v["block_count"]
        self.d, self.eps = self.e // self.heads, v["attention.layer_norm_epsilon"]
        self.mean, self.std = (np.array(v[f"image_{k}"], np.float32) for k in ("mean", "std"))
        self.m = v.get("projector.scale_factor", v.get("spatial_merge_size", SIDES.get(self.kind, 2)))
        self.m = 1 if self.kind == "mlp" else self.m
        self.edge, self.pattern = v.get("preproc_image_size", 0), v.get("n_wa_pattern", 0)
        self.act = "gelu" if self.meta.get("clip.use_gelu") else "silu" if self.meta.get("clip.use_silu") else "quick"
        self.tokens = tokens or TOKENS.get(self.kind, (8, 4096))
        if self.bug("vis-eps"):
            self.eps = 1e-6 if self.eps > 5e-6 else 1e-5

    def bug(self, name):
        return name in self.bugs

    def variant(self, name):
        """What stands after the slash of a mistake; None if it is not made."""
        for found in self.bugs:
            if found.split("/")[0] == name:
                return found.partition("/")[2]
        return None

    # -- pixels ----------------------------------------------------------------------------------------------------

    def images(self, picture):
        """Pixels [3, H, W] of every image."""
        if self.variant("vis-bgr") == "":
            picture = picture[:, :, ::-1]
        height, width = picture.shape[:2]
        if self.kind == "idefics3":
            canvases = self.tiles(picture, width, height)
        elif self.kind in ("gemma3", "mlp"):
            canvases = [self.padded(picture, self.side, self.side)]
        else:
            w, h = self.free(width, height)
            stretched = self.kind == "lfm2"
            canvases = [self.resized(picture, w, h) if stretched else self.padded(picture, w, h)]
        return [self.normalised(*c) if isinstance(c, tuple) else self.normalised(c, None) for c in canvases]

    def filter(self):
        name = "lanczos" if self.kind == "idefics3" else "bilinear" if self.kind in ("gemma3", "lfm2") else "bicubic"
        return self.variant("vis-filter") or name

    def resized(self, picture, w, h):
        if self.bug("vis-no-antialias"):
            return self.sampled(self.sampled(picture, w, 1), h, 0)
        if picture.shape[:2] == (h, w):
            return picture
        return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((w, h), FILTERS[self.filter()]))

    def sampled(self, picture, n, axis):
        """A few taps around each centre, whatever the reduction."""
        x = np.moveaxis(picture.astype(np.float64), axis, 0)
        size = len(x)
        if size == n:
            return picture
        reach = {"bilinear": 1, "bicubic": 2, "lanczos": 3}[self.filter()]
        out = np.zeros((n, *x.shape[1:]))
        for k in range(n):
            centre, total = (k + 0.5) * size / n, 0.0
            for at in range(max(0, int(centre - reach + 0.5)), min(size, int(centre + reach + 0.5))):
                t = abs(at + 0.5 - centre)
                if reach == 1:
                    weight = max(0.0, 1 - t)
                elif reach == 2:
                    weight = (
                        1.5 * t**3 - 2.5 * t**2 + 1 if t < 1 else -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2 if t < 2 else 0
                    )
                else:
                    weight = float(np.sinc(t) * np.sinc(t / 3)) if t < 3 else 0.0
                out[k] += weight * x[at]
                total += weight
            out[k] /= total
        return np.moveaxis(np.clip(np.floor(out + 0.5), 0, 255).astype(np.uint8), 0, axis)

    def padded(self, picture, width, height):
        if self.bug("vis-stretch"):
            return self.resized(picture, width, height)
        h, w = picture.shape[:2]
        if (h, w) == (height, width):
            return picture
        scale = min(np.float32(width) / np.float32(w), np.float32(height) / np.float32(h))
        nw, nh = min(width, math.ceil(np.float32(w) * scale)), min(height, math.ceil(np.float32(h) * scale))
        colour = (122, 116, 104) if self.kind == "mlp" else (0, 0, 0)
        which = self.variant("vis-pad-colour")
        if which is not None:
            colour = {"": (127, 127, 127), "white": (255, 255, 255), "zero": colour}[which]
        canvas = np.empty((height, width, 3), np.uint8)
        canvas[:, :] = colour
        x, y = (width - nw) // 2, (height - nh) // 2
        if self.bug("vis-pad-corner"):
            x = y = 0
        canvas[y : y + nh, x : x + nw] = self.resized(picture, nw, nh)
        outside = np.ones((height, width), bool)
        outside[y : y + nh, x : x + nw] = False
        return canvas, outside if which == "zero" else None

    def free(self, width, height):
        f32 = np.float32
        a = self.p * self.m
        lo, hi = (t * a * a for t in self.tokens)

        def near(n):
            if self.bug("vis-align-ceil"):
                return -(-n // a) * a
            return max(a, math.floor(n / a + 0.5) * a)

        w, h = near(width), near(height)
        if w * h > hi:
            beta = np.sqrt(f32(height) * f32(width) / f32(hi))
            w, h = (max(a, math.floor(f32(n) / beta / f32(a)) * a) for n in (width, height))
        elif w * h < lo:
            beta = np.sqrt(f32(lo) / (f32(height) * f32(width)))
            w, h = (math.ceil(f32(n) * beta / f32(a)) * a for n in (width, height))
        return w, h

    def tiles(self, picture, width, height):
        longest = max(width, height)
        w, h = (self.edge if n == longest else int(self.edge * (n / longest)) for n in (width, height))
        w, h = w + w % 2, h + h % 2
        large = self.resized(picture, w, h)
        cols, rows = -(-w // self.side), -(-h // self.side)
        large = self.resized(large, cols * self.side, rows * self.side)
        places = [(y, x) for y in range(rows) for x in range(cols)]
        if self.bug("vis-tile-order"):
            places = [(y, x) for x in range(cols) for y in range(rows)]
        s = self.side
        found = [large[y * s : y * s + s, x * s : x * s + s] for y, x in places]
        overview = self.resized(large, s, s)
        return [overview, *found] if self.bug("vis-overview-first") else [*found, overview]

    def normalised(self, canvas, outside):
        x = canvas.astype(np.float32)
        if not self.bug("vis-no-255"):
            x = x / np.float32(255)
        mean, std = self.mean, self.std
        if self.bug("vis-mean-std-swapped"):
            mean, std = std, mean
        which = self.variant("vis-no-mean-std")
        if which == "half":
            mean = std = np.float32(0.5)
        if which != "":
            x = (x - mean) / std
        if outside is not None:
            x[outside] = 0
        if self.variant("vis-bgr") == "after":
            x = x[:, :, ::-1]
        return np.ascontiguousarray(x.transpose(2, 0, 1))

    # -- small parts -----------------------------------------------------------------------------------------------

    def norm(self, x, stem, rms=None, eps=None):
        weight, bias = self.w.get(f"{stem}.weight"), self.w.get(f"{stem}.bias")
        eps = self.real(self.eps if eps is None else eps)
        if self.kind in RMS if rms is None else rms:
            y = x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=self.real) + eps)
            y = y if weight is None else y * weight
        else:
            x = x - x.mean(-1, keepdims=True, dtype=self.real)
            y = x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=self.real) + eps) * weight
        return y if bias is None else y + bias

    def linear(self, x, stem):
        if f"{stem}.input_min" in self.w and not self.bug("vis-no-clamp"):
            x = np.clip(x, self.w[f"{stem}.input_min"][0], self.w[f"{stem}.input_max"][0])
        y = x @ self.w[f"{stem}.weight"].T
        if f"{stem}.output_min" in self.w and not self.bug("vis-no-clamp"):
            y = np.clip(y, self.w[f"{stem}.output_min"][0], self.w[f"{stem}.output_max"][0])
        return y

    def add(self, x, stem):
        return x + self.w[f"{stem}.bias"] if f"{stem}.bias" in self.w else x

    def activate(self, x, tower=True):
        name = self.act if tower else "gelu"
        if self.bug("vis-activation") and tower:
            name = {"gelu": "quick", "quick": "gelu", "silu": "gelu"}[name]
        if self.bug("vis-activation/projector") and not tower:
            name = "quick"
        if name == "gelu" and self.bug("vis-gelu-erf"):
            return erf_gelu(x)
        function = {"gelu": tanh_gelu, "quick": quick_gelu, "silu": silu}[name]
        if self.halves and name != "silu":
            return rounded(function(rounded(x, "f16")), "f16")
        return function(x).astype(self.real)

    # -- patches and positions -------------------------------------------------------------------------------------

    def order(self, gx, gy):
        """(row, column) of every row of the tower: the raster, or blocks of 2×2."""
        if not self.kind.startswith("qwen"):
            return [(y, x) for y in range(gy) for x in range(gx)]
        return [
            (by + y, bx + x) for by in range(0, gy, 2) for bx in range(0, gx, 2) for y in range(2) for x in range(2)
        ]

    def embedded(self, pixels, places, gx, gy, keep):
        p, rows = self.p, []
        for y, x in places:
            if self.bug("vis-patch-columns"):
                i = y * gx + x
                y, x = i % gy, i // gy
            patch = pixels[:, y * p : y * p + p, x * p : x * p + p].astype(self.real)
            which = self.variant("vis-patch-hwc")
            if which is not None:
                patch = patch.transpose(0, 2, 1) if which == "turned" else patch.transpose(1, 2, 0)
            rows.append(patch.reshape(-1))
        x = np.stack(rows)
        if self.kind == "gemma4v" and not self.bug("vis-no-2x-1"):
            x = 2 * x - 1
        kernels = [self.w["v.patch_embd.weight"].reshape(self.e, -1)]
        if "v.patch_embd.weight.1" in self.w and not self.bug("vis-one-kernel"):
            kernels.append(self.w["v.patch_embd.weight.1"].reshape(self.e, -1))
        if self.halves:
            x, kernels = rounded(x, "f16"), [rounded(k, "f16") for k in kernels]
        y = sum(x @ k.T for k in kernels)
        keep("inp", y)
        if "v.patch_embd.bias" in self.w:
            y = keep("patch_bias", y + self.w["v.patch_embd.bias"])
        return y

    def axis(self, n, g):
        """[g, n] weights that resize an axis of the table of positions."""
        out = np.zeros((g, n))
        antialias = (self.kind == "lfm2") != self.bug("vis-pos-mode")
        for k in range(g):
            if antialias:
                stretch, centre = max(1.0, n / g), (k + 0.5) * n / g
                for i in range(n):
                    out[k, i] = max(0.0, 1 - abs(i + 0.5 - centre) / stretch)
                out[k] /= out[k].sum()
            else:
                at = k * (n - 1) / (g - 1) if g > 1 else 0.0
                i = min(int(at), n - 1)
                out[k, i] += 1 - (at - i)
                out[k, min(i + 1, n - 1)] += at - i
        return out

    def positions(self, places, gx, gy):
        table = self.w["v.position_embd.weight"]
        if self.kind == "gemma4v":
            pairs = [(y, x) if self.bug("vis-pos-xy") else (x, y) for y, x in places]
            return np.stack([table[0, a] + table[1, b] for a, b in pairs])
        side = math.isqrt(len(table))
        if self.kind in ("lfm2", "qwen3vl_merger") and (gx, gy) != (side, side):
            if self.bug("vis-pos-not-resized"):
                return np.stack([table[min(y * gx + x, len(table) - 1)] for y, x in places])
            grid = table.reshape(side, side, -1).astype(np.float64)
            if self.bug("vis-pos-transposed"):
                grid = grid.transpose(1, 0, 2)
            made = np.einsum("yi,xj,ijc->yxc", self.axis(side, gy), self.axis(side, gx), grid)
            return np.stack([made[y, x] for y, x in places]).astype(self.real)
        if self.bug("vis-pos-transposed"):
            return np.stack([table[x * gx + y] for y, x in places])
        return np.stack([table[y * gx + x] for y, x in places])

    def angles(self, places):
        """For each row the angle of each pair; None where nothing turns."""
        d = self.d
        if self.kind in ("gemma3", "idefics3", "lfm2", "mlp"):
            return None
        base = 100.0 if self.kind == "gemma4v" else 10000.0
        width = d if self.bug("vis-rope-frequency") else d // 2
        theta = np.array([base ** (-2 * i / width) for i in range(d // 4)])
        first = second = theta
        if self.kind == "pixtral" and not self.bug("vis-rope-frequency"):
            every = [base ** (-2 * j / d) for j in range(d // 2)]
            first, second = np.array(every[0::2]), np.array(every[1::2])
        elif self.kind == "pixtral":
            first = second = np.array([base ** (-2 * i / (d // 2)) for i in range(d // 4)])
        rows = []
        for y, x in places:
            a, b = (x, y) if (self.kind == "gemma4v") != self.bug("vis-rope-xy") else (y, x)
            rows.append(np.concatenate([a * first, b * second]))
        return np.array(rows)

    def turned(self, x, angles):
        """One head [T, d]."""
        d = self.d
        neighbours = (self.kind == "pixtral") != self.bug("vis-rope-pairs")
        out = x.copy()
        for j in range(d // 2):
            if self.kind == "gemma4v":
                half, i = divmod(j, d // 4)
                a, b = half * d // 2 + i, half * d // 2 + i + d // 4
                if neighbours:
                    a, b = half * d // 2 + 2 * i, half * d // 2 + 2 * i + 1
            else:
                a, b = (2 * j, 2 * j + 1) if neighbours else (j, j + d // 2)
            cos, sin = np.cos(angles[:, j]).astype(self.real), np.sin(angles[:, j]).astype(self.real)
            out[:, a], out[:, b] = x[:, a] * cos - x[:, b] * sin, x[:, a] * sin + x[:, b] * cos
        return out

    # -- the tower -------------------------------------------------------------------------------------------------

    def windows(self, places, layer):
        """[T, T]: which patches see each other."""
        n = len(places)
        if self.kind != "qwen2.5vl_merger":
            return np.ones((n, n), bool)
        full = (layer + 1) % self.pattern == 0 and not self.bug("vis-window-all")
        if full or self.bug("vis-window-none"):
            return np.ones((n, n), bool)
        side = self.window()
        at = np.array([(y // 2 // side, x // 2 // side) for y, x in places])
        return (at[:, None] == at[None]).all(-1)

    def window(self):
        return 112 // self.p if self.bug("vis-window-size") else 112 // self.p // 2

    def attention(self, n, layer, places, angles, keep):
        stem = f"v.blk.{layer}"
        if f"{stem}.attn_qkv.weight" in self.w:
            parts = np.split(self.add(self.linear(n, f"{stem}.attn_qkv"), f"{stem}.attn_qkv"), 3, -1)
        else:
            parts = [self.add(self.linear(n, f"{stem}.attn_{k}"), f"{stem}.attn_{k}") for k in "qkv"]
        q, k, v = (x.reshape(len(n), self.heads, self.d) for x in parts)
        if f"{stem}.attn_q_norm.weight" in self.w:
            q, k = self.norm(q, f"{stem}.attn_q_norm"), self.norm(k, f"{stem}.attn_k_norm")
        for name, x in (("Qcur", q), ("Kcur", k), ("Vcur", v)):
            keep(f"{name}-{layer}", x)
        if angles is not None:
            q, k = (np.stack([self.turned(x[:, h], angles) for h in range(self.heads)], 1) for x in (q, k))
            end = "rope" if self.kind.startswith("qwen") else "pos"
            keep(f"Qcur_{end}-{layer}", q)
            keep(f"Kcur_{end}-{layer}", k)
        if self.kind == "gemma4v":
            v = v if self.bug("vis-no-v-norm") else self.norm(v, "")
            keep(f"Vcur_normed-{layer}", v)
        plain = (self.kind == "gemma4v") != self.bug("vis-attention-scale")
        scale = self.real(1 if plain else 1 / math.sqrt(self.d))
        seen = self.windows(places, layer) if len(places) == len(n) else np.ones((len(n), len(n)), bool)
        if self.bug("vis-tower-causal"):
            seen = seen & np.tri(len(n), dtype=bool)
        heads = []
        for h in range(self.heads):
            scores = np.where(seen, (q[:, h] @ k[:, h].T) * scale, -np.inf)
            weight = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append((weight / weight.sum(-1, keepdims=True, dtype=self.real)) @ v[:, h])
        out = keep(f"kqv_out-{layer}", np.concatenate(heads, -1).astype(self.real))
        return keep(f"attn_out-{layer}", self.add(self.linear(out, f"{stem}.attn_out"), f"{stem}.attn_out"))

    def ffn(self, n, layer, keep):
        stem = f"v.blk.{layer}.ffn"
        up = self.add(self.linear(n, f"{stem}_up"), f"{stem}_up")
        keep(f"ffn_up_b-{layer}" if f"{stem}_up.bias" in self.w else f"ffn_up-{layer}", up)
        if f"{stem}_gate.weight" in self.w:
            x = self.activate(self.add(self.linear(n, f"{stem}_gate"), f"{stem}_gate")) * up
            name = {"silu": "ffn_swiglu", "gelu": "ffn_geglu", "quick": "ffn_geglu_quick"}[self.act]
        else:
            x, name = self.activate(up), {"gelu": "ffn_gelu", "quick": "ffn_gelu_quick", "silu": "ffn_silu"}[self.act]
        keep(f"{name}-{layer}", x)
        return keep(f"ffn_out-{layer}", self.add(self.linear(x, f"{stem}_down"), f"{stem}_down"))

    def layer(self, x, layer, places, angles, keep):
        stem = f"v.blk.{layer}"
        name = "ln1" if self.kind.startswith("qwen") else "layer_inp_normed"
        y = self.attention(keep(f"{name}-{layer}", self.norm(x, f"{stem}.ln1")), layer, places, angles, keep)
        post = not self.bug("vis-no-post-norm")
        if f"{stem}.attn_post_norm.weight" in self.w and post:
            y = keep(f"attn_post_normed-{layer}", self.norm(y, f"{stem}.attn_post_norm"))
        x = keep(f"ffn_inp-{layer}", x + y)
        y = self.ffn(keep(f"ffn_inp_normed-{layer}", self.norm(x, f"{stem}.ln2")), layer, keep)
        if f"{stem}.ffn_post_norm.weight" in self.w and post:
            y = keep(f"ffn_post_normed-{layer}", self.norm(y, f"{stem}.ffn_post_norm"))
        return keep(f"layer_out-{layer}", x + y)

    # -- the projector ---------------------------------------------------------------------------------------------

    def blocks(self, gx, gy, places):
        """For each token the rows of its patches."""
        m, at = self.m, {place: i for i, place in enumerate(places)}
        found = []
        for ty in range(gy // m):
            for tx in range(gx // m):
                inside = [(y, x) for y in range(m) for x in range(m)]
                if self.bug("vis-merge-order"):
                    inside = [(y, x) for x in range(m) for y in range(m)]
                found.append([at[ty * m + y, tx * m + x] for y, x in inside])
        if self.bug("vis-pool-axis") and not self.kind.startswith("qwen"):
            return np.arange(len(found) * m * m).reshape(-1, m * m)
        return np.array(found)

    def joined(self, x, blocks):
        """The patches of a token in one row."""
        apart = (self.kind == "pixtral") != self.bug("vis-merge-channel")
        rows = x[blocks]
        return rows.transpose(0, 2, 1).reshape(len(blocks), -1) if apart else rows.reshape(len(blocks), -1)

    def mlp(self, x, first, second):
        y = self.activate(self.add(self.linear(x, first), first), tower=False)
        return self.add(self.linear(y, second), second)

    def project(self, x, outs, gx, gy, places, keep):
        blocks = self.blocks(gx, gy, places) if self.kind != "mlp" else None
        if self.kind in ("gemma3", "gemma4v"):
            x = x[blocks].max(1) if self.bug("vis-pool-max") else x[blocks].mean(1, dtype=self.real)
            w = self.w["mm.input_projection.weight"]
            if self.kind == "gemma3":
                keep("pooled", x)
                weight = self.w["mm.soft_emb_norm.weight"] + (1 if self.bug("vis-norm-plus-one") else 0)
                x = x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=self.real) + self.real(self.eps)) * weight
                keep("soft_emb_normed", x)
                wrong = w.reshape(w.shape[::-1]).T
                return x @ (wrong if self.bug("vis-projection-transposed") else w)
            x = keep("pooled", x if self.bug("vis-pool-scale") else x * self.real(math.sqrt(self.e)))
            x = keep("std_scaled", (x - self.w["v.std_bias"]) * self.w["v.std_scale"])
            x = self.norm(x, "", rms=True)
            return x @ (w.reshape(w.shape[::-1]) if self.bug("vis-projection-transposed") else w.T)
        if self.kind == "idefics3":
            return keep("pixel_shuffle", self.joined(x, blocks)) @ self.w["mm.model.fc.weight"].T
        if self.kind == "lfm2":
            x = keep("pixel_shuffle", self.joined(x, blocks))
            return self.mlp(self.norm(x, "mm.input_norm", eps=1e-5), "mm.1", "mm.2")
        if self.kind == "mlp":
            return self.mlp(x[1:], "mm.0", "mm.2")
        if self.kind == "pixtral":
            return self.broken(self.mlp(x, "mm.1", "mm.2"), gx, gy)
        parts = [self.mlp(self.joined(x, blocks), "mm.0", "mm.2")]
        for layer in range(self.layers):
            stem = f"v.deepstack.{layer}"
            if f"{stem}.fc1.weight" in self.w:
                y = self.norm(self.joined(outs[layer], blocks), f"{stem}.norm")
                y = self.mlp(y, f"{stem}.fc1", f"{stem}.fc2")
                parts.append(np.zeros_like(y) if self.bug("vis-deepstack-missing") else y)
        if self.bug("vis-deepstack-order"):
            parts = parts[1:] + parts[:1]
        return np.concatenate(parts, -1)

    def broken(self, x, gx, gy):
        """A break row behind each row of tokens but the last."""
        row, out = self.w["v.token_embd.img_break"], []
        for y in range(gy):
            out += list(x[y * gx : (y + 1) * gx])
            if (y + 1 < gy and not self.bug("vis-no-break")) or self.bug("vis-break-last"):
                out.append(row)
        return np.stack(out)

    def encode(self, pixels):
        """Every node of one image, by llama.cpp's names."""
        gy, gx = pixels.shape[1] // self.p, pixels.shape[2] // self.p
        nodes, outs = {}, {}

        def keep(name, value):
            nodes[name] = value
            return value

        places = self.order(gx, gy)
        if self.kind == "qwen2.5vl_merger":  # tokens window by window, as llama.cpp sorts them
            side = self.window()
            tokens = [places[i : i + 4] for i in range(0, len(places), 4)]
            tokens.sort(key=lambda token: (token[0][0] // 2 // side, token[0][1] // 2 // side))
            places = [place for token in tokens for place in token]
        x = self.embedded(pixels, places, gx, gy, keep)
        if self.kind == "mlp":
            table, row = self.w["v.position_embd.weight"], self.w["v.class_embd"][None]
            x = np.concatenate([row, x] if self.bug("vis-class-first") else [x, row]) + table
            keep("pos_embed", x)
        elif "v.position_embd.weight" in self.w:
            name = {"gemma4v": "pos_embd", "qwen3vl_merger": "inp_pos_emb"}.get(self.kind, "pos_embed")
            x = keep(name, x + self.positions(places, gx, gy))
        if "v.pre_ln.weight" in self.w and self.variant("vis-no-post-norm") != "pre":
            x = keep("pre_ln", self.norm(x, "v.pre_ln"))
        angles = self.angles(places)
        count = self.layers - (self.kind == "mlp")
        if self.bug("vis-last-layer"):
            count += 1 if self.kind == "mlp" else -1
        for layer in range(count):
            x = outs[layer] = self.layer(x, layer, places, angles, keep)
        if "v.post_ln.weight" in self.w and not self.bug("vis-no-post-norm"):
            x = keep("post_ln", self.norm(x, "v.post_ln"))
        if self.kind == "qwen2.5vl_merger" and self.bug("vis-window-order"):
            places = self.order(gx, gy)
        rows = self.project(x, outs, gx, gy, places, keep)
        return {**nodes, "result_embd": rows.astype(np.float32)}

    def run(self, picture):
        """For each image its pixels and its nodes."""
        with np.errstate(all="ignore"):
            return [(pixels, self.encode(pixels)) for pixels in self.images(picture)]
