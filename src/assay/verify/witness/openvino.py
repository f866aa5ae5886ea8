"""The witness `openvino`: OpenVINO GenAI, which makes its own graph of the GGUF file; layers and logits are seen.

Needs `openvino-genai`. Its pipeline saves the graph that it builds, and the runtime then runs this graph with more
outputs. The plugin chooses the arithmetic for the machine (often bf16 or int8 sums), unless `--precision f32` is given.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.models import Model
from assay.verify.witness.follower import Array, Follower, packages

# OpenVINO's names of the few operations that it names.
NODES = {
    "model.layers.self_attn.add0.layer{n}": "ffn_inp-{n}",
    "model.layers.self_attn.mlp.mul.layer{n}": "ffn_swiglu-{n}",
    "model.layers.self_attn.add1.layer{n}": "l_out-{n}",
}
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


class OpenVinoEngine(Follower):
    """One stateful request, which holds the cache."""

    def __init__(
        self,
        model: Model,
        *,
        n_pages: int | None = None,
        threads: int | None = None,
        precision: str | None = None,
        kv_type: str | None = None,
    ) -> None:
        openvino, genai = packages("openvino", "openvino", "openvino_genai")
        if precision not in (None, "f32"):
            raise AssayError("engine openvino: the plugin chooses the arithmetic, or --precision f32")
        settings: dict[str, Any] = dict(EXACT) if precision else {}
        settings |= {"KV_CACHE_PRECISION": kv_type} if kv_type else {}
        settings |= {"INFERENCE_NUM_THREADS": threads} if threads else {}
        path = model.file.parts[0].path.resolve()
        with tempfile.TemporaryDirectory(prefix="assay-openvino-") as folder:
            link = Path(folder) / path.name
            link.symlink_to(path)
            saved = Path(folder) / "openvino_model.xml"
            try:
                try:
                    genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
                except RuntimeError:  # compiled in the plugin's own precision; on Arm there may be no kernel for that
                    if not saved.exists():
                        raise
                net = openvino.Core().read_model(saved)
                by_name = {op.get_friendly_name(): op for op in net.get_ordered_ops()}
                named = {
                    node.replace("{n}", str(n)): by_name[own.replace("{n}", str(n))]
                    for n in range(model.hparams.n_layer)
                    for own, node in NODES.items()
                    if own.replace("{n}", str(n)) in by_name
                }
                net.add_outputs([op.output(0) for op in named.values()])
                self._request = openvino.Core().compile_model(net, "CPU", settings).create_infer_request()
            except (RuntimeError, IndexError, ValueError) as error:  # from Python, and from the C++ below
                said = " ".join(str(error).split())[:300]
                raise AssayError(f"{path}: OpenVINO GenAI cannot load the file ({said})") from None
        self._named = list(named)
        arithmetic = Arithmetic("openvino", precision or "auto", kv_type or "auto")
        super().__init__(model, named, arithmetic, n_pages=n_pages, threads=threads or 0)

    def _run(self, tokens: NDArray[np.int32], start: int) -> Array:
        if not start:
            self._request.reset_state()
        end = start + len(tokens)
        out = self._request.infer({
            "input_ids": tokens[None].astype(np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        })  # fmt: skip
        values = list(out.values())
        for name, value in zip(self._named, values[1:], strict=True):
            self._see(name, value)
        return self._array(values[0])

    def _array(self, value: Any) -> Array:
        array: Array = np.asarray(value, np.float32)[0]
        return array
