"""llama.cpp's eyes: a prompt with pictures through libmtmd, with nodes of the tower and of the language model.

libmtmd comes with llama-cpp-python. The tower's callback copies its nodes under llama.cpp's names, and the pixels that
its first operation reads. The chunks of the prompt go through libmtmd's own helper, so that markers, positions and
masks are llama.cpp's. The language model is the engine of `llamacpp.py`. Touch this when libmtmd's functions change.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.observation import token_axis
from assay.verify.witness.llamacpp import LlamaCppEngine, TensorHead

Array = NDArray[Any]
PIXELS = "inp_raw"
_IMAGE = 1  # MTMD_INPUT_CHUNK_TYPE_IMAGE


@dataclass(frozen=True)
class SeenPrompt:
    """Values that an engine computed for a prompt with pictures."""

    images: tuple[Mapping[str, Array], ...]  # of each image chunk: `pixels` and nodes of the tower
    rows: Array  # of all images, one after the other
    nodes: Mapping[str, Array]  # of the language model, for the whole prompt
    logits: Array  # of the last token
    tokens: tuple[int, ...]  # -1 at the rows of pictures


class LlamaCppEyes:
    """libmtmd on the language model of an engine."""

    def __init__(self, engine: LlamaCppEngine, mmproj: Path) -> None:
        self._engine, self._lib = engine, _libmtmd()
        self._wanted: set[str] = set()
        self._kept: dict[str, Array] = {}
        lib = engine.library
        self._seen = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(self._callback)
        self._lib.mtmd_log_set(engine.quiet, None)
        self._lib.mtmd_helper_log_set(engine.quiet, None)
        params = self._lib.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads, params.flash_attn_type = engine.threads, 0
        params.cb_eval = ctypes.cast(self._seen, lib.ggml_backend_sched_eval_callback)
        self._context = self._lib.mtmd_init_from_file(str(mmproj).encode(), engine.handle, params)
        if not self._context:
            raise AssayError(f"{mmproj}: llama.cpp cannot load the mmproj file for this model")

    def run(self, text: str, pictures: Sequence[Array], tower: Collection[str], keep: Collection[str]) -> SeenPrompt:
        """The run of a text with `<__media__>` where each picture [row, column, RGB] goes."""
        lib, raw = self._lib, text.encode()
        bitmaps = [self._bitmap(picture) for picture in pictures]
        chunks = lib.mtmd_input_chunks_init()
        try:
            given = lib.mtmd_input_text(text=raw, text_len=len(raw), add_special=True, parse_special=True)
            array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
            status = lib.mtmd_tokenize(self._context, chunks, ctypes.byref(given), array, len(bitmaps))
            if status:
                raise AssayError(f"engine llamacpp: mtmd_tokenize gave {status} for {len(bitmaps)} pictures")
            return self._chunks(chunks, set(tower), set(keep))
        finally:
            lib.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                lib.mtmd_bitmap_free(bitmap)

    def _bitmap(self, picture: Array) -> Any:
        data = np.ascontiguousarray(picture, np.uint8)
        found = self._lib.mtmd_bitmap_init(
            data.shape[1], data.shape[0], data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        )
        if not found:
            raise AssayError("engine llamacpp: mtmd_bitmap_init refuses the picture")
        return found

    def _chunks(self, chunks: Any, tower: set[str], keep: set[str]) -> SeenPrompt:
        lib, engine, past = self._lib, self._engine, ctypes.c_int32(0)
        count = lib.mtmd_input_chunks_size(chunks)
        engine.forget()
        images, rows, tokens, parts = [], [], list[int](), list[tuple[int, dict[str, Array]]]()
        for i in range(count):
            chunk = lib.mtmd_input_chunks_get(chunks, i)
            n, image = lib.mtmd_input_chunk_get_n_tokens(chunk), lib.mtmd_input_chunk_get_type(chunk) == _IMAGE
            if image:
                self._wanted, self._kept = tower, {}
                embd = self._encoded(chunk)
                rows.append(np.ctypeslib.as_array(embd, (n * self._width(),)).reshape(n, -1).copy())
                images.append(self._kept)
                tokens += [-1] * n
            else:
                ids = lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))
                tokens += ids[:n]
            with engine.keeping(keep) as kept:
                if image:
                    none = lib.mtmd_helper_post_decode_callback()
                    status = lib.mtmd_helper_decode_image_chunk(
                        self._context,
                        engine.context,
                        chunk,
                        embd,
                        past,
                        0,
                        engine.n_batch,
                        ctypes.byref(past),
                        none,
                        None,
                    )
                else:
                    status = lib.mtmd_helper_eval_chunk_single(
                        self._context,
                        engine.context,
                        chunk,
                        past,
                        0,
                        engine.n_batch,
                        i == count - 1,
                        ctypes.byref(past),
                    )
            if status:
                raise AssayError(f"engine llamacpp: chunk {i} of the prompt gave {status}; use a larger --ctx-size")
            parts.append((n, dict(kept)))
        logits = engine.last_logits()
        return SeenPrompt(
            tuple(images),
            np.concatenate(rows) if rows else np.zeros((0, 0)),
            self._joined(parts),
            logits,
            tuple(tokens),
        )

    def _encoded(self, chunk: Any) -> Any:
        if status := self._lib.mtmd_encode_chunk(self._context, chunk):
            raise AssayError(f"engine llamacpp: mtmd_encode_chunk gave {status}")
        return self._lib.mtmd_get_output_embd(self._context)

    def _width(self) -> int:
        hparams = self._engine.model.hparams
        return (1 + hparams.n_deepstack) * hparams.n_embd

    def _joined(self, parts: Sequence[tuple[int, Mapping[str, Array]]]) -> dict[str, Array]:
        """The nodes that every chunk has for all of its rows; rows without logits have no last layer."""
        graph, found = self._engine.graph, {}
        for name in set.intersection(*(set(kept) for _, kept in parts)):
            shaped = [self._engine.shaped(name, kept[name], n) for n, kept in parts]
            if all(value is not None for value in shaped):
                found[name] = np.concatenate([v for v in shaped if v is not None], axis=token_axis(graph, name))
        return found

    def _callback(self, pointer: int, ask: bool, _data: int | None) -> bool:
        if ask and "pixels" not in self._kept:
            for source in TensorHead.from_address(pointer).src:
                if source and self._engine.name_of(source) == PIXELS:
                    value = self._engine.copied(source)
                    self._kept["pixels"] = value.reshape(value.shape[-3:])
        name = self._engine.name_of(pointer)
        if name not in self._wanted or name in self._kept:
            return not ask
        if not ask:
            value = self._engine.copied(pointer)
            self._kept[name] = value.reshape([n for n in value.shape if n != 1] or [1])
        return True

    def close(self) -> None:
        if self._context:
            self._lib.mtmd_free(self._context)
            self._context = None


def _libmtmd() -> Any:
    try:
        return import_module("llama_cpp.mtmd_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        where = os.environ.get("MTMD_CPP_LIB") or "the package"
        raise AssayError(
            f"engine llamacpp: no libmtmd in {where} ({str(error)[:120]}); pictures need a llama-cpp-python that was "
            "built with it, or its folder in MTMD_CPP_LIB"
        ) from None
