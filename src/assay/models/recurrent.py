"""The parts that recurrent and hybrid architectures share: which layers recur, convolution, delta rule, Mamba's mixers.

A layer's window and matrices are nodes `cache_r_lN` and `cache_s_lN` (after a step) and `cache_r_before-N`,
`cache_s_before-N` (before it). Widths: K taps, P inner width, N state width, G groups or key heads, D heads of the
state. Touch this when several recurrent architectures need the same new part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from assay.models.blocks import Builder


@dataclass(frozen=True)
class StateSizes:
    """The keys `ssm.…` of a file."""

    taps: int
    inner: int
    state: int
    heads: int  # time_step_rank: heads of the state; in Mamba-1 the rank of the time step
    groups: int

    @staticmethod
    def read(b: Builder, *, groups: int | None = None) -> StateSizes:
        key = b.meta.count
        sizes = StateSizes(
            key("ssm.conv_kernel", least=2),
            key("ssm.inner_size"),
            key("ssm.state_size"),
            key("ssm.time_step_rank"),
            key("ssm.group_count", groups),
        )
        if groups is None:
            if sizes.inner % sizes.heads:
                raise b.meta.error("ssm.time_step_rank", sizes.heads, f"a divisor of ssm.inner_size {sizes.inner}")
            if sizes.heads % sizes.groups:
                raise b.meta.error("ssm.group_count", sizes.groups, f"a divisor of ssm.time_step_rank {sizes.heads}")
        return sizes

    @property
    def width(self) -> int:
        """The width of a head."""
        return self.inner // self.heads


def mark_without_keys(b: Builder) -> None:
    """Layers whose head_count_kv is 0 recur."""
    b.hp = b.hp.each(lambda i, row: replace(row, recurrent=row.n_head_kv == 0))


def show_state(b: Builder, letter: str, shape: tuple[int, ...], *nodes: str) -> None:
    """Nodes for the state that `nodes` keep: before this step, and after it."""
    b.node(f"cache_{letter}_before", "state_before", *nodes, state=shape)
    b.node(f"cache_{letter}", "state_after", *nodes, state=shape)


def convolve(b: Builder, role: str, x: str, stem: str, channels: int, taps: int) -> str:
    """A causal convolution over the channels of `x`; `stem` is the kernel."""
    return b.node(role, "causal_conv", x, weights=(b.weight(stem),), state=(channels, taps - 1))


def convolve_silu(b: Builder, x: str, channels: int, taps: int) -> str:
    """Convolution, bias if the file has one, SiLU; the window is shown as `cache_r`."""
    y = convolve(b, "conv_output_raw", x, "ssm_conv1d", channels, taps)
    show_state(b, "r", (channels, taps - 1), y)
    if b.has("ssm_conv1d", "bias"):
        y = b.node("conv_output_biased", "bias", y, weights=(b.weight("ssm_conv1d", "bias"),))
    return b.node("conv_output_silu", "act", y, act="silu")


def delta_rule(b: Builder, q: str, k: str, v: str, g: str, beta: str, heads: int, groups: int, width: int) -> str:
    """The gated delta rule; queries are scaled by 1 / sqrt(width)."""
    shape = (heads, width, width)
    y = b.node(
        "attn_output", "delta_rule", q, k, v, g, beta, n_head=heads, n_head_k=groups, scale=width**-0.5, state=shape
    )
    show_state(b, "s", shape, y)
    return y


def mamba2(b: Builder, x: str, z: StateSizes) -> str:
    """Mamba-2: x and B, C convolved together, a scan with one decay for each head, gate, then norm by groups."""
    p, gn = z.inner, z.groups * z.state
    both = b.linear("zxBCdt", x, "ssm_in")
    gate = b.node("z", "slice", both, start=0, stop=p)
    mixed = b.node("xBC", "slice", both, start=p, stop=2 * p + 2 * gn)
    dt = b.node("dt_proj", "slice", both, start=2 * p + 2 * gn, stop=2 * p + 2 * gn + z.heads)
    mixed = convolve_silu(b, mixed, p + 2 * gn, z.taps)
    x = b.node("x_ssm", "slice", mixed, start=0, stop=p)
    dt = b.node("dt", "bias", dt, weights=(b.weight("ssm_dt", "bias"),))
    in_ = b.node("B", "slice", mixed, start=p, stop=p + gn)
    out = b.node("C", "slice", mixed, start=p + gn, stop=p + 2 * gn)
    y = scan(b, x, dt, in_, out, z.heads, z.groups, (z.heads, z.width, z.state))
    y = b.node("y_gated", "glu", gate, y, act="silu")
    if b.has("ssm_norm"):
        y = b.node("y_normed", "rms_norm", y, weights=(b.weight("ssm_norm"),), eps=b.hp.eps, n_head=z.groups)
    return b.linear("mamba_out", y, "ssm_out")


def scan(b: Builder, x: str, dt: str, in_: str, out: str, heads: int, groups: int, shape: tuple[int, ...]) -> str:
    """The scan, and the skip D·x added to its result."""
    delta = b.node("dt_softplus", "softplus", dt)
    a = (b.bare("ssm_a"),)
    y = b.node("y_ssm", "ssm_scan", x, delta, in_, out, weights=a, n_head=heads, n_group=groups, state=shape)
    show_state(b, "s", shape, y)
    return b.node("mamba2_y_add_d", "add_gain", y, x, weights=(b.bare("ssm_d"),), n_head=heads)
