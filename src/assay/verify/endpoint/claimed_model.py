"""Predictions of what a server says if it serves the claimed file, or the file with one thing changed.

The truth is the cpu or the cuda engine in its precision `exact` (float32 activations), whose bits are the same, and the
reference where neither can run. `companion` is the same file as a fast honest engine computes it: activations in 8
bits. The distance of the two is the scale of honest noise at a place.

A change is a `Setting`: other weights (a file), another graph over the same weights, another cache, other ids. Engines
are kept for the settings that are asked about again and closed for the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import engines
from assay.engines.contract import Chunk, Engine, pages_for
from assay.engines.plan.state_layout import KV_TYPES
from assay.engines.reference import Hooks, interpret
from assay.engines.reference.weights import Weights
from assay.gguf import GGUFFile, open_file
from assay.gguf.codecs import decode, encode
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.gguf.types import by_name
from assay.graph import Graph, Node, Trait
from assay.models import Model, load
from assay.verify.dumps.observation import inputs_of
from assay.verify.endpoint.float_weights import BITS, FORMATS, write_rounded
from assay.verify.endpoint.served_text import ServedText, log_softmax_rows
from assay.verify.faults.attention_edits import e4m3
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.rounding import hooks as rounding_hooks
from assay.verify.judge.rounding import roundings

Array = NDArray[Any]
Function = Callable[..., Array]
ALL_OF_IT = 0.7  # share of the weights: a file with as many in a type is in that type
ABOUT_AS_MANY = 0.6  # bits a weight
LEAST_TURNED = 64  # llama.cpp turns keys and values of heads whose width is a multiple of this
LONGEST = 4096  # positions of an engine's cache: a text of an audit is shorter


@dataclass(frozen=True)
class Setting:
    """What is computed. The default is the claim itself."""

    mix: str = ""  # weights quantised again to this mix
    file: str = ""  # another file
    graph: Graph | None = None  # another graph over the claimed weights
    functions: Mapping[str, Function] | None = None  # of its nodes, where the reference must run it
    precision: str = "exact"
    cache: str = ""  # type of the cache; a ggml type that the cpu engine lacks runs on the reference
    rotated: bool = False  # a Hadamard matrix turns keys and values before they are rounded

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            self.mix,
            self.file,
            id(self.graph) if self.graph is not None else 0,
            self.precision,
            self.cache,
            self.rotated,
        )


CLAIM = Setting()
COMPANION = Setting(precision="fast")


class ClaimedModel:
    """The claimed file and the engines that predict a server of it. Use it as a context manager."""

    def __init__(self, model: Model, *, threads: int | None = None, engine: str = "cpu") -> None:
        self.model, self.threads, self.engine = model, threads, engine
        if engine != "cpu":
            engines.engine_class(engine)  # an error if it cannot run here
        self.native = engine in engines.ENGINES and not model.graph.whole
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._engines: dict[tuple[Any, ...], Engine] = {}
        self._models: dict[str, Model] = {"": model}
        self._weights: dict[str, Weights] = {}
        self._known: dict[tuple[Any, ...], Array] = {}
        self.computed = 0  # tokens that were computed so far

    def __enter__(self) -> ClaimedModel:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()
        self._known.clear()
        if self._folder is not None:
            self._folder.cleanup()

    # --- rows

    def rows(self, text: ServedText, setting: Setting = CLAIM, *, keep: bool = True) -> Array:
        """Log-probabilities `[places, n_vocab]` in float32, as this setting predicts them for the text's ids."""
        places = [place.row for place in text.places]
        return self.at(text.ids, places, setting, keep=keep)

    def at(self, ids: Sequence[int], rows: Sequence[int], setting: Setting = CLAIM, *, keep: bool = True) -> Array:
        """Log-probabilities after the first `row` ids, for each of `rows`."""
        key = (setting.key, tuple(ids), tuple(rows))
        found = self._known.get(key)
        if found is None:
            fed = list(ids[: max(rows, default=1)])
            logits = self._logits(fed, min(rows, default=1) - 1, setting)
            first = len(fed) - len(logits)
            with np.errstate(all="ignore"):
                found = log_softmax_rows(logits[[row - 1 - first for row in rows]]).astype(np.float32)
            self.computed += len(fed)
            if keep:
                self._known[key] = found
        return found

    def _logits(self, ids: list[int], first: int, setting: Setting) -> Array:
        """The logits of the ids from `first` on."""
        if not self.native or setting.functions or setting.cache not in ("", *KV_TYPES):
            return self._on_reference(ids, setting)[first:]
        engine = self._engine(setting)
        tokens = np.asarray(ids, np.int32)
        pages = np.arange(pages_for(len(ids)), dtype=np.int32)
        if first and not engine.graph.state.per_sequence:
            engine.forward([Chunk(tokens[:first], 0, pages, "none")])
            return engine.forward([Chunk(tokens[first:], first, pages, "all")])[0].logits
        return engine.forward([Chunk(tokens, 0, pages, "all")])[0].logits[first:]

    def _engine(self, setting: Setting) -> Engine:
        if setting.key not in self._engines:
            model = self._model(setting)
            options: dict[str, Any] = {"precision": setting.precision, "threads": self.threads}
            options |= {"kv_type": setting.cache or None, "graph": setting.graph}
            self._engines[setting.key] = engines.create(self.engine, model, n_pages=pages_for(LONGEST), **options)
        return self._engines[setting.key]

    def close(self, setting: Setting) -> None:
        """Free what a setting holds; the claim and its companion stay."""
        if setting in (CLAIM, COMPANION):
            return
        engine = self._engines.pop(setting.key, None)
        if engine is not None:
            engine.close()
        for key in [key for key in self._known if key[0] == setting.key]:
            del self._known[key]

    def _on_reference(self, ids: list[int], setting: Setting) -> Array:
        model = self._model(setting)
        source = setting.mix or setting.file
        if source not in self._weights:
            self._weights[source] = Weights(model.file, np.float32 if self.native else np.float64)
        hooks = None
        if setting.precision == "fast":
            hooks = rounding_hooks(next(r for r in roundings(ARITHMETICS[-1]) if r.q8), model.file)
        if setting.cache:
            kept = partial(cached_row, kind=setting.cache, rotated=setting.rotated)
            hooks = Hooks(hooks.operand if hooks else None, kept)
        graph = setting.graph or model.graph
        given = inputs_of(ids, range(len(ids)))
        with np.errstate(all="ignore"):
            functions = dict(setting.functions or {})
            weights = self._weights[source]
            return interpret(graph, weights, given, [graph.output], hooks=hooks, functions=functions)[graph.output]

    # --- other files

    def _model(self, setting: Setting) -> Model:
        source = setting.mix or setting.file
        if source not in self._models:
            path = Path(setting.file) if setting.file else self._quantised(setting.mix)
            self._models[source] = load(open_file(path))
        return self._models[source]

    def _quantised(self, mix: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="assay-audit-")
        path = Path(self._folder.name) / f"{mix}.gguf"
        if mix in FORMATS:
            write_rounded(self.model.file, path, mix)
        else:
            quantize(self.model.file, path, mix_by_name(mix), allow_requantize=True, threads=self.threads)
        return path


def cached_row(node: Node, y: Array, kind: str, rotated: bool) -> Array:
    """A cached row in E4M3 without a scale, or in blocks of a ggml type; narrower heads than a block stay as they are.

    Servers with an FP8 cache use a scale of 1 unless the checkpoint has one.
    """
    if not node.has(Trait.CACHES) or y.dtype.kind != "f":
        return y
    if kind == "fp8":
        return np.asarray(e4m3(y), y.dtype)
    found, width = by_name(kind.upper()), y.shape[-1] if y.ndim > 2 else y.shape[-1] // int(node.attr("n_head"))
    if width % found.block_size:
        return y
    turn = hadamard(_turned_width(node, width) if rotated else 1)
    flat = y.reshape(-1, len(turn)).astype(np.float64) @ turn
    rows = flat.reshape(-1, width).astype(np.float32)
    back = decode(found, encode(found, rows)).reshape(flat.shape) @ turn.T
    return np.asarray(back, y.dtype).reshape(y.shape)


def turns(model: Model) -> bool:
    """Does llama.cpp turn the keys and values of this model before it rounds them to few bits?"""
    return any(layer.n_embd_head % LEAST_TURNED == 0 for layer in model.hparams.layers)


def _turned_width(node: Node, width: int) -> int:
    """The width of llama.cpp's Hadamard matrix: for keys the largest that divides the head, for values 64."""
    if width % LEAST_TURNED:
        return 1
    return LEAST_TURNED if node.name.startswith("cache_v") else width & -width


def hadamard(n: int) -> Array:
    """The orthogonal matrix of +-1 / sqrt(n), for a power of two."""
    made = np.ones((1, 1))
    while len(made) < n:
        made = np.block([[made, made], [made, -made]])
    return np.asarray(made / np.sqrt(n))


def coarser_mixes(file: GGUFFile, mixes: Sequence[str]) -> list[str]:
    """Those mixes that have fewer bits a weight than the file, or about as many in another type."""
    matrices = [t for t in file.tensors.values() if len(t.shape) > 1]
    total = sum(t.n_elements for t in matrices)
    bits = 8 * sum(t.nbytes for t in matrices) / max(1, total)
    found = []
    for name in mixes:
        if name in BITS:
            if BITS[name] <= bits + ABOUT_AS_MANY:
                found.append(name)
            continue
        base = by_name(mix_by_name(name).base)
        share = sum(t.n_elements for t in matrices if t.type == base) / max(1, total)
        if share < ALL_OF_IT and 8 * base.type_size / base.block_size <= bits + ABOUT_AS_MANY:
            found.append(name)
    return found


Rewrite = Callable[[Node], Node | None]


def rewritten(model: Model, change: Rewrite) -> Graph:
    """The model's graph with other nodes in the place of some."""
    return model.graph.rewrite(change)


def coarse_companion(model: Model) -> Setting | None:
    """A second companion for files in floats, which the fast engine does not round: as coarse as bfloat16."""
    types = {t.type for t in model.file.tensors.values() if len(t.shape) > 1}
    return Setting(mix="Q8_0", precision="fast") if all(t.block_size == 1 for t in types) else None
