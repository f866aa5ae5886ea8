"""Two files of one model against each other: weights tensor by tensor, activations node by node, logits on a text.

The result says whether two quantisations may differ that much. Both files are read once, tensor by tensor. The logits
are compared window by window and not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, pages_for
from assay.engines.reference import evaluate
from assay.errors import AssayError
from assay.graph import Trait
from assay.models import Model
from assay.system.stages import each
from assay.verify.dumps.observation import inputs_of
from assay.verify.judge.shared_pass import Last, Streamed

Array = NDArray[Any]
ROWS = 4096  # weight rows compared at a time
SAMPLED = 64  # rows of a tensor on which the rounding of its types is measured
MAY = 4.0  # times that rounding: the allowed distance, because encoders differ and some use an importance matrix
_EXACT = 1e-12  # nmse of a tensor that is the same but for float32


@dataclass(frozen=True)
class Distance:
    """How far B's tensor or node lies from A's."""

    name: str
    nmse: float
    cosine: float
    types: tuple[str, str] = ("", "")
    rounding: float | None = None  # nmse that the two types lose on such a tensor; None where it is unknown

    @property
    def explained(self) -> bool | None:
        """Does the rounding of the two types explain the distance? None where a type has no encoder here."""
        if self.nmse <= _EXACT:
            return True
        return None if self.rounding is None else self.nmse <= MAY * self.rounding


@dataclass(frozen=True)
class Logits:
    """How B's predictions differ from A's over a text."""

    n_tokens: int
    kl_mean: float
    kl_top: float  # the largest of one token
    kl_99: float
    same_best: float  # share of tokens with the same best prediction
    perplexity: tuple[float, float]


def check_pair(a: Model, b: Model) -> None:
    """Refuse two files that are not one model."""
    names = {n.name for n in a.graph}, {n.name for n in b.graph}
    if a.hparams.arch != b.hparams.arch or names[0] != names[1]:
        raise AssayError(
            f"{a.file.path.name} and {b.file.path.name}: not two files of one model (found {a.hparams.arch} with "
            f"{len(names[0])} nodes and {b.hparams.arch} with {len(names[1])})"
        )
    for name, shape in a.graph.weights.items():
        other = b.graph.weights.get(name)
        if other is not None and other != shape:
            raise AssayError(
                f"{name}: not two files of one model (found shape {list(shape)} in {a.file.path.name}, "
                f"{list(other)} in {b.file.path.name})"
            )


def weights(a: Model, b: Model) -> list[Distance]:
    """Every tensor that both files have, decoded and compared."""
    from assay.gguf import codecs

    found = []
    common = [name for name in a.file.tensors if name in b.file.tensors]
    for name in each(common, "comparing weights", "tensors"):
        one, other = a.file.tensors[name], b.file.tensors[name]
        raw = [f.raw(name).reshape(-1, f.raw(name).shape[-1]) for f in (a.file, b.file)]
        sums = np.zeros(4)
        for start in range(0, len(raw[0]), ROWS):
            part = slice(start, start + ROWS)
            sums += _sums(codecs.decode(one.type, raw[0][part]), codecs.decode(other.type, raw[1][part]))
        types = one.type.name, other.type.name
        sample = codecs.decode(one.type, raw[0][:: max(1, len(raw[0]) // SAMPLED)][:SAMPLED])
        found.append(replace(_distance(name, sums, types), rounding=_rounding(sample, types)))
    return found


def _rounding(rows: Array, types: tuple[str, str]) -> float | None:
    """The nmse that both types lose on such rows, measured with the encoders of this package.

    The rows come from a file that is rounded already, and encoding them in their own type would lose nothing. So sums
    of two rows are encoded, which do not lie on the grid of the type.
    """
    from assay.gguf import codecs

    mixed = ((rows + np.roll(rows, 1, axis=0)) / np.sqrt(2)).astype(np.float32)
    if len(rows) == 1:
        mixed = rows.astype(np.float32)
    lost = 0.0
    for name in types:
        if name not in codecs.ENCODERS and name not in codecs.FLOATS:
            return None
        lost += _distance("", _sums(mixed, codecs.decode(name, codecs.encode(name, mixed)))).nmse
    return lost


def activations(a: Model, b: Model, tokens: Sequence[int]) -> tuple[list[Distance], tuple[Array, Array]]:
    """Every node for the same tokens, each file in its own run, and the last token's logits of both."""
    stores = Streamed(a.file), Streamed(b.file)
    given = inputs_of(tokens, range(len(tokens)))
    values: tuple[dict[str, Array], dict[str, Array]] = (dict(given), dict(given))
    last = Last(a.graph)
    found = []
    logits: tuple[Array, Array] = (np.empty(0), np.empty(0))
    nodes = [node for node in a.graph if not node.has(Trait.SHOWS_STATE)]  # a state follows from no single node
    for node in each(nodes, "comparing activations", "nodes"):
        pair = []
        for model, store, env in zip((a, b), stores, values, strict=True):
            mine = model.graph[node.name]
            inputs = [_wide(env[name]) for name in mine.inputs]
            env[node.name] = evaluate(mine, inputs, store)
            pair.append(env[node.name])
        if node.has(Trait.KEYS) and a.graph.causal:  # scores that the mask hides are not compared
            pair = [np.tril(x) for x in pair]
        found.append(_distance(node.name, _sums(pair[0], pair[1])))
        if node.name == a.graph.output:
            logits = pair[0][-1], pair[1][-1]
        last.forget(node, *values)
    return found, logits


def logits(a: Engine, b: Engine, tokens: Sequence[int], window: int) -> Logits:
    """KL(A ‖ B) at every token of a text, window by window."""
    kl: list[Array] = []
    same = 0
    nll = np.zeros(2)
    scored = 0
    ids = np.asarray(tokens, np.int32)
    for start in each(range(0, len(ids), window), "comparing logits", "windows"):
        part = ids[start : start + window]
        if len(part) < 2:
            break
        pages = np.arange(pages_for(len(part)), dtype=np.int32)
        both = [_log_softmax(e.forward([Chunk(part, 0, pages, "all")])[0].logits) for e in (a, b)]
        kl.append(np.sum(np.exp(both[0]) * (both[0] - both[1]), axis=-1))
        same += int((both[0].argmax(-1) == both[1].argmax(-1)).sum())
        for i, log_p in enumerate(both):
            nll[i] -= float(log_p[np.arange(len(part) - 1), part[1:]].sum())
        scored += len(part) - 1
    if not kl:
        raise AssayError("the text has fewer than two tokens; give a longer one with --text FILE")
    every = np.concatenate(kl)
    perplexity = np.exp(nll / scored)
    return Logits(
        n_tokens=len(every),
        kl_mean=float(every.mean()),
        kl_top=float(every.max()),
        kl_99=float(np.quantile(every, 0.99)),
        same_best=same / len(every),
        perplexity=(float(perplexity[0]), float(perplexity[1])),
    )


def _wide(x: Array) -> Array:
    return x.astype(np.float32, copy=False) if x.dtype.kind == "f" else x


def _log_softmax(x: Array) -> Array:
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True)))


def _sums(x: Array, y: Array) -> Array:
    x, y = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    d = y - x
    return np.array([d @ d, x @ x, y @ y, x @ y])


def _distance(name: str, sums: Array, types: tuple[str, str] = ("", "")) -> Distance:
    error, xx, yy, xy = map(float, sums)
    return Distance(name, error / (xx + 1e-30), xy / (np.sqrt(xx * yy) + 1e-30), types)
