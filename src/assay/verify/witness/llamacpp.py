"""The witness `llamacpp`: llama.cpp itself as an engine, every node seen through its evaluation callback.

Needs `llama-cpp-python` (the extra `llamacpp`). Flash attention is switched off, so that the scores exist, and logits
are asked for all tokens, so that no rows are cut. ggml uses some names twice; name and operation together identify a
value (`names`). The callback copies the wanted values out of ggml's buffers while it runs, by their strides.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import (
    PAGE,
    Arithmetic,
    Chunk,
    Emit,
    Engine,
    Output,
    check_batch,
    check_state_lengths,
    hand_over,
    pages_for,
)
from assay.errors import AssayError
from assay.graph import Trait, join, split
from assay.models import Model
from assay.verify.dumps.naming.foreign_names import translate
from assay.verify.witness.follower import packages

Array = NDArray[Any]
KV_TYPES = {"f32": 0, "f16": 1}  # ggml's numbers
_SCALARS: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 26: np.dtype("<i4")}
_STATE = re.compile(r"cache_[rs]_l\d+")
# Operations of the graph that are identified by the one weight that they read: by ggml's operation, and its operand.
_BY_WEIGHT: dict[str, tuple[int, tuple[str, ...]]] = {
    "MUL_MAT": (0, ("linear",)),
    "MUL": (1, ("rms_norm", "layer_norm")),
    "ADD": (1, ("bias",)),
    "SSM_CONV": (1, ("causal_conv",)),
    "SSM_SCAN": (3, ("ssm_scan",)),
}
# Operations on one value: those of the graph that ggml's may be, and the kind of activation.
_UNARY: dict[str, tuple[tuple[str, str], ...]] = {
    "SILU": (("act", "silu"),), "TANH": (("act", "tanh"),), "SIGMOID": (("sigmoid", ""),),
    "SOFTPLUS": (("softplus", ""),), "EXP": (("exp", ""),),
}  # fmt: skip
_VIEWS = ("RESHAPE", "VIEW", "CONT", "PERMUTE", "TRANSPOSE")
MAX_CTX = 4096


class TensorHead(ctypes.Structure):
    """The head of `struct ggml_tensor`, as far as it has not moved since 2023."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
    )


class LlamaCppEngine(Engine):
    """One sequence at a time; a chunk that does not begin at 0 continues the one before."""

    name = "llamacpp"
    cannot_keep = ("cache_k", "cache_v")  # views of its buffers, not values of the graph
    state_slots = 1

    def __init__(
        self,
        model: Model,
        *,
        threads: int = 2,
        kv_type: str = "f16",
        n_pages: int | None = None,
        precision: str | None = None,
    ) -> None:
        (llama_cpp,) = packages("llamacpp", "llama_cpp")
        if kv_type not in KV_TYPES or precision not in (None, "f32"):
            raise AssayError("engine llamacpp: keys and values are f32 or f16, arithmetic is its own (--precision f32)")
        self.model, self.graph, self.threads, self._lib = model, model.graph, threads, llama_cpp
        self.arithmetic = Arithmetic(self.name, "f32", kv_type)
        n_ctx = min(model.hparams.n_ctx_train, MAX_CTX, n_pages * PAGE if n_pages else MAX_CTX)
        self.n_pages = pages_for(n_ctx)
        own = Path(llama_cpp.__file__ or "").parent / "lib"
        self._ggml = _ggml(Path(os.environ.get("LLAMA_CPP_LIB_PATH") or own))  # as llama-cpp-python itself looks
        weighed = {op for _, ops in _BY_WEIGHT.values() for op in ops}
        self._by_weight = {(n.op, n.weights[0]): n.name for n in model.graph if n.op in weighed and len(n.weights) == 1}
        self._unary = {(n.op, str(n.all_attrs().get("act", "")), n.inputs[0]): n.name
                       for n in model.graph if len(n.inputs) == 1 and not n.weights}  # fmt: skip
        self._node_at: dict[int, str] = {}  # the node of each value of this chunk, by its address
        # The operation `scale`, but for rwkv7's decay: llama.cpp writes that constant with six digits.
        self._scaled = {n.inputs[0]: n.name for n in model.graph if "factor" in n.attrs and split(n.name)[0] != "w_log"}
        self._wanted: set[str] = set()
        self._kept: dict[str, Array] = {}
        self._views: set[str] = set()  # kept views; the whole value of the same name comes later
        self._length = 0  # tokens in its state
        self._caches: dict[str, int] = {}  # its tensors of recurrent state, as the callback saw them
        self._states: dict[str, Array] = {}  # their values after the last chunk
        self._seen = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(self._callback)
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(quiet, None)
        self._quiet = quiet
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        if hasattr(params, "use_extra_bufts"):
            params.use_extra_bufts = False  # repacked weights use other kernels than most people run, some of them AMX
        path = model.file.parts[0].path
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise AssayError(f"{path}: llama.cpp cannot load the file")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = n_ctx
        context.n_threads = context.n_threads_batch = threads
        context.type_k = context.type_v = KV_TYPES[kv_type]
        context.flash_attn_type = 0
        context.cb_eval = ctypes.cast(self._seen, llama_cpp.ggml_backend_sched_eval_callback)
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise AssayError(f"{path}: llama.cpp cannot make a context of {n_ctx} tokens")

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        check_batch(self, batch, keep)
        check_state_lengths(self, batch, {0: self._length})
        return hand_over([self._chunk(chunk, set(keep)) for chunk in batch], emit)

    def _chunk(self, chunk: Chunk, keep: set[str]) -> Output:
        lib, n = self._lib, len(chunk.tokens)
        lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), 0, chunk.start, -1)
        positions = chunk.positions if chunk.positions is not None else np.arange(chunk.start, chunk.start + n)
        request = lib.llama_batch_init(n, 0, 1)
        try:
            request.n_tokens = n
            for i in range(n):
                request.token[i], request.pos[i] = int(chunk.tokens[i]), int(positions[i])
                request.n_seq_id[i], request.seq_id[i][0], request.logits[i] = 1, 0, 1
            self._wanted, self._kept, self._views, self._node_at = keep, {}, set(), {}
            status = lib.llama_decode(self._context, request)
        finally:
            lib.llama_batch_free(request)
        if status:
            raise AssayError(f"engine llamacpp: llama_decode gave {status} for {n} tokens at {chunk.start}")
        self._length = chunk.start + n
        n_vocab = self.model.hparams.n_vocab
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self._context), (n, n_vocab)).copy()
        shaped = {name: self._shaped(name, value, n, chunk.start + n) for name, value in self._kept.items()}
        nodes = {name: value for name, value in shaped.items() if value is not None}
        nodes |= self._shown_states(keep, chunk.start)
        return Output(logits[-1:] if chunk.outputs == "last" else logits, nodes)

    def _shown_states(self, keep: set[str], start: int) -> dict[str, Array]:
        """The kept nodes that show state: its tensors after this chunk, and as the chunk before left them."""
        found, now = {}, {name: self._copy(pointer).reshape(-1) for name, pointer in self._caches.items()}
        for node in (self.graph[name] for name in keep if self.graph[name].has(Trait.SHOWS_STATE)):
            shape, (role, layer) = node.attr("state"), split(node.name)
            source = now if node.op == "state_after" else self._states if start else {}
            value = source.get(join(role.removesuffix("_before"), layer), np.zeros(0, np.float32))
            size = math.prod(shape)
            if node.op == "state_before" and not start:
                value = np.zeros(size, np.float32)
            if value.size >= size:  # one sequence: its cell is the first
                found[node.name] = value[:size].reshape(shape)
        self._states = now
        return found

    def _callback(self, pointer: int, ask: bool, _data: int | None) -> bool:
        if ask and self.state_slots:
            self._note_caches(pointer)
        name = self._ggml.ggml_get_name(pointer).decode("utf-8", "replace")
        op = self._ggml.ggml_op_desc(pointer).decode()
        found = translate(name, op, self.model.graph)
        again = found is not None and found[0] in self._kept and found[0] not in self._views
        node = self._nameless(pointer, op) if found is None or again else found[0]
        if node is not None:
            self._node_at.setdefault(pointer, node)
        if node is None or node not in self._wanted:
            return not ask
        if not ask and (node not in self._kept or node in self._views):
            self._kept[node] = self._copy(pointer)
            self._views = self._views | {node} if op == "VIEW" else self._views - {node}
        return True

    def _note_caches(self, pointer: int) -> None:
        """Remember the tensors of state that an operation reads or writes."""
        for source in TensorHead.from_address(pointer).src:
            if source and _STATE.fullmatch(name := self._ggml.ggml_get_name(source).decode("utf-8", "replace")):
                self._caches[name] = source

    def _nameless(self, pointer: int, op: str) -> str | None:
        """The node of a value without a name.

        A product, a norm, a bias or a convolution by its weight; a scaled or activated value by its source.
        """
        sources = TensorHead.from_address(pointer).src
        if op in _BY_WEIGHT:
            at, kinds = _BY_WEIGHT[op]
            weight = self._name_of(sources[at]) if sources[at] else ""
            return next((node for kind in kinds if (node := self._by_weight.get((kind, weight)))), None)
        if not sources[0] or (op != "SCALE" and op not in _UNARY):
            return None
        source = self._source(sources[0])
        if op == "SCALE":
            return self._scaled.get(source) if source else None
        found = (self._unary.get((kind, act, source)) for kind, act in _UNARY[op]) if source else iter(())
        return next((node for node in found if node), None)

    def _name_of(self, pointer: int) -> str:
        """The name of a tensor; of a view, that of the tensor that it shows."""
        return str(self._ggml.ggml_get_name(pointer).decode("utf-8", "replace")).split(" (")[0]

    def _source(self, pointer: int) -> str | None:
        """The node of an operand: by its address, through views of all of it, or by its name."""
        for _ in range(len(_VIEWS)):
            if pointer in self._node_at:
                return self._node_at[pointer]
            tensor = TensorHead.from_address(pointer)
            inner = tensor.src[0]
            if self._ggml.ggml_op_desc(pointer).decode() not in _VIEWS or not inner:
                break
            if math.prod(tensor.ne) != math.prod(TensorHead.from_address(inner).ne):
                return None  # a part of the value
            pointer = inner
        name = self._ggml.ggml_get_name(pointer).decode("utf-8", "replace")
        found = translate(name, self._ggml.ggml_op_desc(pointer).decode(), self.model.graph)
        return found[0] if found else None

    def _copy(self, pointer: int) -> Array:
        tensor = TensorHead.from_address(pointer)
        size = self._ggml.ggml_nbytes(pointer)
        raw = np.empty(size, np.uint8)
        self._ggml.ggml_backend_tensor_get(pointer, raw.ctypes.data, 0, size)
        kind = _SCALARS[tensor.type]
        shape, strides = tuple(reversed(list(tensor.ne))), tuple(reversed(list(tensor.nb)))
        view = np.lib.stride_tricks.as_strided(raw.view(kind), shape, strides)
        return np.array(view, np.float32 if kind.kind == "f" else np.int32)

    def _shaped(self, name: str, value: Array, n_tokens: int, n_keys: int) -> Array | None:
        """ggml has four axes and pads the keys. None: another value under a name that is used twice."""
        symbolic = self.model.graph.shapes[name]
        if symbolic[-1] == "S":
            value = value[..., :n_keys]
        shape = [n_tokens if d == "T" else n_keys if d == "S" else int(d) for d in symbolic]
        if self.graph[name].op == "ssm_scan":  # ggml appends the new states to the result
            value = value.reshape(-1)[: math.prod(shape)]
        return value.reshape(shape) if value.size == math.prod(shape) else None

    # -- for a prompt that another library feeds (`llamacpp_pictures.py`) --

    @property
    def library(self) -> Any:
        return self._lib

    @property
    def handle(self) -> Any:
        """llama.cpp's model."""
        return self._model

    @property
    def context(self) -> Any:
        return self._context

    @property
    def quiet(self) -> Any:
        """A callback that drops llama.cpp's log."""
        return self._quiet

    @property
    def n_batch(self) -> int:
        return int(self._lib.llama_n_batch(self._context))

    def forget(self) -> None:
        """Empty the cache."""
        self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(self._context), 0, 0, -1)
        self._length = 0

    @contextmanager
    def keeping(self, keep: Collection[str]) -> Iterator[Mapping[str, Array]]:
        """While it is open, every decode leaves the values of these nodes here, as ggml has them."""
        self._wanted, self._kept, self._views, self._node_at = set(keep), {}, set(), {}
        yield self._kept
        self._wanted = set()

    def shaped(self, name: str, value: Array, n_tokens: int) -> Array | None:
        """A node without keys in the graph's layout; None if it has other rows."""
        return self._shaped(name, value, n_tokens, n_tokens)

    def last_logits(self) -> Array:
        """The logits of the last token."""
        found = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(found, (self.model.hparams.n_vocab,)).copy()

    def copied(self, pointer: int) -> Array:
        """The values of a tensor."""
        return self._copy(pointer)

    def name_of(self, pointer: int) -> str:
        return str(self._ggml.ggml_get_name(pointer).decode("utf-8", "replace"))

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None


def _ggml(folder: Path) -> ctypes.CDLL:
    """ggml's own functions, from the library that llama-cpp-python has loaded."""
    found = sorted(folder.glob("*ggml-base*"), key=lambda p: len(p.name))
    if not found:
        raise AssayError(f"engine llamacpp: no ggml library in {folder}; install llama-cpp-python 0.3.16 or newer")
    lib = ctypes.CDLL(str(found[0]))
    pointer = ctypes.c_void_p
    for name, arguments, result in (
        ("ggml_get_name", [pointer], ctypes.c_char_p),
        ("ggml_op_desc", [pointer], ctypes.c_char_p),
        ("ggml_nbytes", [pointer], ctypes.c_size_t),
        ("ggml_backend_tensor_get", [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t], None),
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib
