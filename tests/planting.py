"""Planting faults and grading the diagnosis: shared by the tests and by the score table.

A case is a fault in an engine; a style is how its author dumps. A style writes a file. `dump` gives whole tensors to
the real reader's second half without a file: names, layouts and steps are resolved as for any dump.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import GGUFFile
from assay.models import Model
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.definition_values import Truth
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of, token_axis
from assay.verify.dumps.resolve import resolve
from assay.verify.faults import FAULTS, Context, known_as, planted
from tests.second_engine import Engine

Array = np.ndarray[Any, Any]
STEPS = (6, 1, 1)
TOKENS = (1, 270, 280, 17, 300, 281, 290, 33)
SMOL_TOKENS = (504, 3575, 282, 4649, 314, 7042, 30, 198)

# The second engine's bugs; after the slash a variant of the same fault.
_BUGS = """
gguf-dims-order gguf-first-block-only q4_0-interleave q4_0-zero-point q4_0-zero-point/twos q4_0-dot-sum
q4_1-min/dropped q4_1-min/subtracted q4_1-min/zero f16-as-bf16 q4_k-scale-high q4_k-scale-high/sequential
q4_k-subscale-ignored q4_k-nibble-group q4_k-min-sign q4_k-min-sign/exchanged q5_k-qh q6_k-order q6_k-partial-write
q6_k-offset q6_k-offset/unsigned q2_k-lane-map q3_k-scales dequant-tile-alias w-transposed w-square-only-transposed
embd-strided head-transposed head-gemm-ld qk-hf-in-interleaved qk-gguf-in-halfsplit k-perm-nhead qkv-split
gateup-split o-proj-head-order norm-name-swap head-dim-axes embd-scale-missing embd-scale-in-tied-table eps-value
eps-value/odd eps-place eps-floor-half norm-layernorm norm-no-weight norm-weight-twice norm-plus1-double
norm-final-offset norm-inplace-residual kv-swapped v-stale-stride q-tail-stale rope-type rope-overlap-pairs
rope-inplace-alias rope-base rope-base/odd rope-freq-factors rope-linear rope-scheme-confused rope-yarn-factor
rope-partial rope-global-index rope-one-side/q rope-one-side/k rope-missing rope-twice rope-on-v rope-axis
pos-all-same pos-reset-decode pos-off-by-one-decode pos-off-by-one-decode/early pos-padding prefill-chunk
prefill-chunk/mask scale-missing scale-twice scale-wrong-dim scale-wrong-dim/odd attn-softcap mask-missing-prefill
mask-plus1 mask-cache-offset mask-after-softmax softmax-axis softmax-axis/heads softmax-unfilled
softmax-online-rescale gqa-modulo gqa-tile-cross kq-swapped kv-seqpos-units kv-recreated kv-pre-rope kv-capacity
kv-seqpos-units/heads kv-seqpos-units/width kv-seqpos-units/steps kv-seqpos-units/bytes kv-pre-rope/stored
kv-pre-rope/earlier kv-pre-rope/query head-wrong-row/hidden head-wrong-row/middle head-wrong-row/shifted
head-wrong-row/stale
ffn-gate-up-weights ffn-silu-on-up ffn-act-family ffn-act-family/relu ffn-gelu-variant ffn-sigmoid ffn-dim ffn-alias
res-from-norm res-missing res-missing/ffn res-parallel res-multiplier head-tied-forced head-no-final-norm
head-wrong-row head-wrong-row/before head-softcap head-logit-scale head-logit-scale/odd p-cast
"""
BUGS = tuple(_BUGS.split())

# Loading bugs give NaN when they hit every tensor: limited to these, as where one of two loading paths is wrong.
LIMITED = {
    "gguf-type-enum": ("blk.1.ffn_up.weight",),
    "gguf-block-bytes": ("blk.1.attn_q.weight",),
    "gguf-data-align": ("blk.1.ffn_gate.weight",),
    "gguf-offset-base/omitted": ("blk.0.attn_v.weight",),
    "gguf-offset-base/twice": ("blk.2.attn_k.weight",),
    "gguf-endian": ("blk.2.attn_norm.weight",),
    "gguf-missing-tensor": ("blk.1.ffn_down.weight",),
    "kquant-d-location": ("blk.0.ffn_down.weight",),
}

# Faults that no row of the table describes, and the role of the node at fault.
UNKNOWN = {
    "x-logits-clipped": "result_output",
    "x-residual-mean": "ffn_inp",
    "x-gate-cubed": "ffn_swiglu",
    "x-act-shifted": "ffn_swiglu",
    "x-head-reversed": "kqv",
    "x-norm-abs": "attn_norm",
    "x-norm-clipped": "attn_norm",
    "x-rope-last-pair": "Qcur",
    "x-rope-degrees": "Qcur",
    "x-softmax-squared": "kq_soft_max",
    "x-v-quantised": "Vcur",
}

# Pairs that touch different nodes, as found together in real ports.
PAIRS = [
    ("rope-type", "eps-floor-half"), ("norm-weight-twice", "scale-missing"), ("q4_0-interleave", "rope-base"),
    ("ffn-silu-on-up", "mask-missing-prefill"), ("kv-swapped", "res-from-norm"), ("gqa-modulo", "head-logit-scale"),
    ("q6_k-order", "norm-layernorm"), ("rope-missing", "ffn-gate-up-weights"), ("pos-reset-decode", "eps-place"),
    ("norm-no-weight", "softmax-unfilled"), ("q4_k-scale-high", "kq-swapped"), ("o-proj-head-order", "rope-linear"),
    ("embd-scale-missing", "scale-twice"), ("w-transposed", "mask-plus1"), ("ffn-alias", "rope-one-side/k"),
    ("norm-plus1-double", "rope-partial"), ("res-parallel", "scale-wrong-dim"), ("q2_k-lane-map", "rope-type"),
    ("head-no-final-norm", "k-perm-nhead"), ("kv-pre-rope", "ffn-sigmoid"),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The run of an engine, and the faults planted in it; a healthy run has none."""

    name: str
    faults: tuple[str, ...]
    parts: tuple[dict[str, Array], ...]  # what each step gave

    @property
    def finite(self) -> bool:
        return all(np.isfinite(v).all() for part in self.parts for v in part.values())


def fault_id(bug: str) -> str:
    return bug.split("/")[0]


def second(
    path: Path, *bugs: str, tokens: Sequence[int] = TOKENS, steps: Sequence[int] = STEPS, **options: Any
) -> Case:
    """The second engine with these bugs."""
    hf = options.pop("hf", False)
    limits = [LIMITED[b] for b in bugs if b in LIMITED]
    engine = Engine(path, bugs, **{"only": limits[0] if limits else None, **options})
    with np.errstate(all="ignore"):
        engine.run(list(tokens), tuple(steps), hf=hf)
    return Case("+".join(bugs) or "healthy", tuple(map(fault_id, bugs)), tuple(engine.parts))


@lru_cache(maxsize=4)
def weights_of(file: GGUFFile) -> Weights:
    """The decoded weights of an open file, one object for all diagnoses: runs of the same tokens are kept with it."""
    return Weights(file)


_RIGHT: dict[tuple[Path, tuple[int, ...]], dict[str, Array]] = {}


def _right(model: Model, weights: Weights, tokens: tuple[int, ...]) -> dict[str, Array]:
    """The definition's values, computed once for the last model asked for."""
    key = (model.file.path, tokens)
    if key not in _RIGHT:
        _RIGHT.clear()
        names = [n.name for n in model.graph if n.op != "cache"]
        _RIGHT[key] = interpret(model.graph, weights, inputs_of(tokens, range(len(tokens))), names)
    return _RIGHT[key]


def reference(
    model: Model, weights: Weights, fault: str, index: int, tokens: Sequence[int] = TOKENS, steps: Sequence[int] = STEPS
) -> Case | None:
    """The reference with a variant planted, or None where it does not apply or does not show."""
    context, variant = Context(model, tuple(steps)), FAULTS[fault].variants[index]
    p = 0.0
    if variant.search is not None:
        p = next((v for v in (*variant.search.common, 4.0) if planted(context, variant, v).touched), 0.0)
    made = planted(context, variant, p)
    if not made.touched:
        return None
    names = [n.name for n in model.graph if n.op != "cache"]
    env = inputs_of(tokens, range(len(tokens)))
    with np.errstate(all="ignore"):
        values = interpret(made.graph, weights, env, names, functions=made.functions)
    right = _right(model, weights, tuple(tokens))
    if all(values[n].shape == right[n].shape and np.allclose(values[n], right[n], rtol=1e-4, atol=0) for n in names):
        return None
    parts, start = [], 0
    for n in steps:
        part = {}
        for name in names:
            with np.errstate(over="ignore"):
                value = values[name].astype(np.float32)
            axis = token_axis(model.graph, name)
            cut = np.take(value, range(start, start + n), axis=axis)
            part[name] = cut[..., : start + n] if model.graph[name].op in ("kq", "attn_softmax") else cut
        parts.append(part)
        start += n
    return Case(f"{fault}/{variant.label}", (fault,), tuple(parts))


# -- styles ----------------------------------------------------------------------------------------------------------


def _header(tokens: Sequence[int], phase: str) -> str:
    return json.dumps({"assay_dump": 1, "engine": "planted", "tokens": [int(t) for t in tokens], "phase": phase})


def _whole(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int], keep: Callable[[str], bool]) -> Path:
    """JSON lines that point to raw float32 beside them."""
    lines, start = [], 0
    for i, (n, part) in enumerate(zip(steps, case.parts, strict=True)):
        lines.append(_header(tokens[start : start + n], "decode" if i else "prefill"))
        for name, value in part.items():
            if keep(name):
                raw = f"{i}-{name}.bin"
                (path / raw).write_bytes(np.ascontiguousarray(value, "<f4").tobytes())
                lines.append(json.dumps({"name": name, "shape": list(value.shape), "file": raw, "dtype": "f32"}))
        start += n
    out = path / "dump.jsonl"
    out.write_text("\n".join(lines) + "\n")
    return out


def _every_node(name: str) -> bool:
    return True


def _is_layer_output(name: str) -> bool:
    return name.split("-")[0] in ("l_out", "result_norm", "result_output")


def _is_logits(name: str) -> bool:
    return name == "result_output"


def full(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """Every node, whole."""
    return _whole(case, path, tokens, steps, _every_node)


def layers(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """Layer outputs, result_norm and logits only."""
    return _whole(case, path, tokens, steps, _is_layer_output)


def logits(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    return _whole(case, path, tokens, steps, _is_logits)


def last(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """Of every node the last row's first ten values and rms."""
    lines, start = [], 0
    for i, (n, part) in enumerate(zip(steps, case.parts, strict=True)):
        lines.append(_header(tokens[start : start + n], "decode" if i else "prefill"))
        if i + 1 == len(steps):
            for name, value in part.items():
                row = (value[:, -1] if name.split("-")[0] in ("kq", "kq_soft_max", "kqv") else value[-1]).reshape(-1)
                rms = float(np.sqrt(np.mean(row.astype(np.float64) ** 2)))
                line = {"name": name, "row": n - 1, "first": [float(x) for x in row[:10]], "rms": rms}
                lines.append(json.dumps(line))
        start += n
    out = path / "dump.jsonl"
    out.write_text("\n".join(lines) + "\n")
    return out


STYLES: dict[str, Callable[[Case, Path, Sequence[int], Sequence[int]], Path]] = {
    "full": full,
    "last": last,
    "layers": layers,
    "logits": logits,
}


_WHOLE = {"full": _every_node, "layers": _is_layer_output, "logits": _is_logits}


def _in_memory(case: Case, keep: Callable[[str], bool], tokens: Sequence[int], steps: Sequence[int]) -> Dump:
    """The dump as the reader of JSON lines makes it from a file of `_whole`."""
    found, start = [], 0
    for n, part in zip(steps, case.parts, strict=True):
        rows = None if len(steps) == 1 else (start, start + n)
        for name, value in part.items():
            if keep(name):
                data = np.ascontiguousarray(value, "<f4")
                found.append(Observation(name, "values", data, rows=rows, shape=data.shape, foreign=name, where=name))
        start += n
    ids = tuple(int(t) for t in tokens)
    return Dump("planted", ids, tuple(range(len(ids))), tuple(steps), tuple(found), "dump.jsonl")


_TRUTH: dict[str, tuple[Model, tuple[int, ...], Truth]] = {}


def _truth(model: Model, tokens: Sequence[int]) -> Truth:
    """The definition's values by which layouts are told apart, computed once for the last model asked for."""
    known = _TRUTH.get("last")
    if known is None or known[0] is not model or known[1] != tuple(tokens):
        known = _TRUTH["last"] = model, tuple(tokens), Truth(model, tokens, range(len(tokens)))
    return known[2]


def dump(
    case: Case, style: str, model: Model, path: Path, tokens: Sequence[int] = TOKENS, steps: Sequence[int] = STEPS
) -> Dump:
    if style in _WHOLE:
        return resolve(_in_memory(case, _WHOLE[style], tokens, steps), model, truth=_truth(model, tokens))
    path.mkdir(parents=True, exist_ok=True)
    return load_dump(STYLES[style](case, path, tokens, steps), model)


# -- grades ------------------------------------------------------------------------------------------------------------


def grade(found: Diagnosis, faults: Sequence[str]) -> str:
    """`right`, `tied` (in the class of the first cause), `missed` (called healthy), `undecided`, `unexplained`, or
    `wrong`; all faults must be named, by their own name or by a row that has it as an alias. Without a fault whatever
    is no alarm is right."""
    named = {c.fault for c in found.causes}
    classes = {f for c in found.causes for f in (c.fault, *c.equivalent)}
    if not faults:
        return "right" if found else "wrong"
    if all(named & {f, *known_as(f)} for f in faults):
        return "right"
    if all(classes & {f, *known_as(f)} for f in faults):
        return "tied"
    if found.verdict == "healthy":
        return "missed"
    if found.verdict == "undecided":
        return "undecided"
    return "wrong" if found.causes else "unexplained"


def stage_right(found: Diagnosis, fault: str) -> bool:
    return any(FAULTS[f].stage == FAULTS[fault].stage for c in found.causes[:1] for f in (c.fault, *c.equivalent))
