"""mamba, mamba2, falcon-h1, jamba: layers with a scan over time, alone, beside attention or among layers with it.

S = exp(dt A) S + dt x B;  y = S C + D x;  x = x + Wout (y * silu(z))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from assay.graph import Graph
from assay.models import recurrent
from assay.models.blocks import Builder
from assay.models.recurrent import StateSizes, convolve_silu, mark_without_keys, scan


def mamba2(b: Builder) -> Graph:
    """Mamba-2 alone: no attention, no feed-forward."""
    b.read(least_heads=0)
    z = StateSizes.read(b)
    return _alone(b, lambda x: recurrent.mamba2(b, x, z))


def mamba(b: Builder) -> Graph:
    """Mamba-1 alone. Falcon-Mamba norms dt, B and C without weights."""
    b.read(least_heads=0)
    z, norms = StateSizes.read(b, groups=1), b.meta.flag("ssm.dt_b_c_rms", False)
    return _alone(b, lambda x: _mamba1(b, x, z, norms))


def _alone(b: Builder, mixer: Callable[[str], str]) -> Graph:
    b.hp = b.hp.each(lambda i, row: replace(row, recurrent=True))
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("l_out", mixer(b.norm("attn_norm", x)), x)
    return b.head(x)


def falcon_h1(b: Builder) -> Graph:
    """Attention and Mamba-2 side by side on the same input. The second norm is stored without `.weight`."""
    b.read(mode="neox")
    z = StateSizes.read(b)
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        both = b.add("layer_out", b.attention(norm), recurrent.mamba2(b, norm, z))
        x = b.add("ffn_inp", both, x)
        norm = b.node("ffn_norm", "rms_norm", x, weights=(b.bare("ffn_norm"),), eps=b.hp.eps)
        x = b.add("l_out", b.ffn(norm), x)
    return b.head(x)


def jamba(b: Builder) -> Graph:
    """Mamba-1 with weighted norms of dt, B and C, or attention without rotation; experts where the file has them."""
    b.read(least_heads=0)
    b.hp = b.hp.each(lambda i, row: replace(row, rope=None))
    mark_without_keys(b)
    b.routing(normalise=False)
    z = StateSizes.read(b, groups=1)
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        mixed = _mamba1(b, norm, z, norms=True) if b.here.recurrent else b.attention(norm)
        x = b.add("ffn_inp", mixed, x)
        norm = b.norm("ffn_norm", x)
        x = b.add("l_out", b.experts(norm) if b.has("ffn_gate_inp") else b.ffn(norm), x)
    return b.head(x)


def _mamba1(b: Builder, x: str, z: StateSizes, norms: bool) -> str:
    """Mamba-1: dt, B and C come from the convolved x; every channel is a head with a decay for each state element."""
    p, rank, n = z.inner, z.heads, z.state
    both = b.linear("xz", x, "ssm_in")
    gate = b.node("z", "slice", both, start=p, stop=2 * p)
    x = convolve_silu(b, b.node("x_ssm", "slice", both, start=0, stop=p), p, z.taps)
    low = b.linear("x_db", x, "ssm_x")

    def part(role: str, stem: str, start: int, width: int) -> str:
        y = b.node(role, "slice", low, start=start, stop=start + width)
        weights = (b.weight(stem),) if b.has(stem) else ()
        return (
            b.node(f"{role.removesuffix('_low')}_normed", "rms_norm", y, weights=weights, eps=b.hp.eps) if norms else y
        )

    dt = b.linear("dt_proj", part("dt_low", "ssm_dt_norm", 0, rank), "ssm_dt")
    dt = b.node("dt", "bias", dt, weights=(b.weight("ssm_dt", "bias"),))
    in_, out = part("B", "ssm_b_norm", rank, n), part("C", "ssm_c_norm", rank + n, n)
    y = scan(b, x, dt, in_, out, p, 1, (p, n))
    return b.linear("mamba_out", b.node("y_gated", "glu", gate, y, act="silu"), "ssm_out")
