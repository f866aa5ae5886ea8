"""Attention and the cache: rows written to pools, scores over blocks of keys, and their fold.

Touch this module together with `shaders/attention.wgsl`.
"""

from __future__ import annotations

from dataclasses import replace

from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Attention
from assay.engines.plan.state_layout import CachePool
from assay.engines.plan.values import attention_mask, row_width
from assay.engines.wgpu.dispatches import NOTHING, SPARE, KeptScores, View
from assay.engines.wgpu.program_builder import NO_TURN, ProgramBuilder, bits, cache_words
from assay.errors import AssayError
from assay.graph import Node

KEY_BLOCK = 256  # keys of a block of attention
MAX_HEAD = 256  # widest head that the kernels take


def cache(build: ProgramBuilder, node: Node) -> None:
    """Rows to be written to a pool before the next attention, keys and values together."""
    build.writes.append((node.inputs[0], build.pools[node.name]))
    if node.name in build.keep:
        buffer = f"pool {build.pools[node.name].index}"
        build.results.append((External(node.name, "keys", row_width(build.graph, node.name)), buffer))


def _pool(build: ProgramBuilder, name: str) -> CachePool:
    """The pool of keys or values. Rows that the graph does not cache are written to it first."""
    pool = build.pools[name]
    if pool.passing:
        build.writes.append((name, pool))
    return pool


def write_pools(build: ProgramBuilder) -> None:
    """Write all rows that wait, each key with the value that follows it where their shapes are the same."""
    waiting, build.writes = build.writes, []
    while waiting:
        name, pool = waiting.pop(0)
        pair = next((w for w in waiting if pool.keys and w[1] == replace(pool, index=w[1].index, keys=False)), None)
        if pair:
            waiting.remove(pair)
        key = (name, pool) if pool.keys else None
        _write(build, key, pair or (None if key else (name, pool)))


def _write(build: ProgramBuilder, key: tuple[str, CachePool] | None, value: tuple[str, CachePool] | None) -> None:
    pool = key[1] if key else value[1] if value else None
    assert pool
    kind = pool.type(build.shape.kv_type)
    words = cache_words(pool.dim, kind)
    x, v = (build.get(part[0], "tokens") if part else View(NOTHING, 0, 0) for part in (key, value))
    turn = build.turns.get(key[0]) if key else None
    numbers = {
        "heads": pool.heads, "dim": pool.dim, "words": words, **x.numbers("x"), **v.numbers("v"),
        "only_values": int(key is None), **(turn or NO_TURN),
    }  # fmt: skip
    jobs = pool.heads * (pool.dim // 32 if kind == "q8_0" else words)
    variant = {kind, "turned" if turn else "still"} | ({"floats"} if kind != "q8_0" else set())
    build.emit(
        "cache_write", (-(-jobs // 64), "T", 2 if key and value else 1), numbers, variant, step="step", x=x.buffer,
        v=v.buffer, keys=f"pool {key[1].index}" if key else SPARE,
        values=f"pool {value[1].index}" if value else SPARE,
    )  # fmt: skip


def attention(build: ProgramBuilder, group: Attention) -> None:
    kq, softmax, kqv = group.kq, group.softmax, group.kqv
    mask = attention_mask(build.graph, softmax, group.capped, "the wgpu engine masks by inp_pos and inp_kpos only")
    domain = build.domains[kqv.name]
    k, v = _pool(build, group.keys), _pool(build, group.values)
    write_pools(build)
    if mask.slopes or group.keys == group.values or max(k.dim, v.dim) > MAX_HEAD:
        raise AssayError(
            f"node {kqv.name}: the wgpu engine has no attention with slopes, with keys that are values, or with "
            f"heads wider than {MAX_HEAD} (found {max(k.dim, v.dim)}); use --engine cpu"
        )
    q, out, turn = build.get(kq.inputs[0], domain), build.new(kqv), build.turns.get(kq.inputs[0])
    acts = build.blocks_beside(kqv, out, v.dim) if not v.dim % 32 else None
    heads, rows, by_output = int(build.graph.shapes[kq.name][0]), build.rows_of(domain), int(domain == "outputs")
    most = -(-build.shape.keys // KEY_BLOCK)
    kind = k.type(build.shape.kv_type)
    traced = {i: n for i, n in enumerate((kq, group.capped, softmax)) if n and n.name in build.keep}
    if traced:
        acts = None
    scores = build.memory(f"{kq.name} scores", domain, heads * build.shape.keys * 3).buffer if traced else NOTHING
    finished = most == 1 and not traced and not mask.sinks  # one block, which attention divides by its sum itself
    blocks = NOTHING
    if not finished:
        blocks = build.memory(f"{kqv.name} blocks", domain, heads * most * (v.dim + 2)).buffer
    result = {"out_stride": out.stride, "acts_stride": acts.stride if acts else 0, "width": out.width}
    numbers = {
        "heads": heads, "kv_heads": k.heads, "dim": k.dim, "v_dim": v.dim, "k_words": cache_words(k.dim, kind),
        "v_words": cache_words(v.dim, kind), "scale": bits(mask.scale), "cap": bits(mask.cap),
        "window": mask.window, "causal": int(mask.causal), "chunk": mask.chunk, "by_output": by_output,
        **q.numbers("q"), "most_blocks": most, "most_keys": build.shape.keys, **(turn or NO_TURN), **result,
    }  # fmt: skip
    words = {kind, "traced" if traced else "untraced", "turned" if turn else "still"}
    words.add("by_slot" if len(softmax.inputs) > 3 else "by_position")
    words |= ({"capped"} if mask.cap else set()) | (set() if kind == "f16" else {"not_f16"})
    words.add(f"columns{next(n for n in (64, 128, MAX_HEAD) if v.dim <= n)}")
    quantised = {"quantised"} if acts else set()
    words |= {"finished"} | quantised if finished else {"parts"}
    build.emit(
        "attention", ("B", heads, rows), numbers, words, step="step", q=q.buffer,
        keys=f"pool {k.index}", values=f"pool {v.index}", positions="positions",
        out=out.buffer if finished else blocks, scores=scores, acts=acts.buffer if acts else NOTHING,
    )  # fmt: skip
    if finished:
        return
    ends = build.memory(f"{kqv.name} ends", domain, heads * 2).buffer if traced else NOTHING
    words = {"sinks" if mask.sinks else "plain"} | quantised
    numbers = {"heads": heads, "dim": v.dim, "by_output": by_output, "most_blocks": most, **result}
    build.emit(
        "attention_fold", (heads, rows, 1), numbers, words | ({"traced"} if traced else set()), step="step",
        blocks=blocks, sinks=build.weights.vector(mask.sinks) if mask.sinks else NOTHING, out=out.buffer,
        acts=acts.buffer if acts else NOTHING, ends=ends,
    )  # fmt: skip
    if traced:
        build.emit(
            "attention_weights", (-(-build.shape.keys // 256), heads, rows),
            {"heads": heads, "most_keys": build.shape.keys}, ends=ends, scores=scores,
        )  # fmt: skip
    for which, node in traced.items():
        external = External(node.name, "scores", row_width(build.graph, node.name))
        build.results.append((external, KeptScores(scores, heads, build.shape.keys, which)))
