"""The witness `tinygrad`: its `llm` package, which reads GGUF files itself, seen through its blocks' modules.

Needs `tinygrad` (0.14.0 was published without a part of that package). The parts of a block are called one after
another, as the block calls them, but outside its compiled function, inside which values cannot be read.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, Arithmetic, pages_for
from assay.errors import AssayError
from assay.models import Model
from assay.verify.witness.follower import Array, Follower, RecordedModule, packages

# Its modules carry the names of the file's tensors; values are known by Hugging Face's.
MODULES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
MAX_CTX = 4096


class TinygradEngine(Follower):
    """Weights in float32 (its switch HALF=0), or with `--precision f16` in halves as it has them by default; sums in
    float32, the cache as its version has it."""

    def __init__(
        self, model: Model, *, n_pages: int | None = None, threads: int | None = None, precision: str | None = None
    ) -> None:
        self._tiny, helpers, llm = packages("tinygrad", "tinygrad", "tinygrad.helpers", "tinygrad.llm.model")
        if precision not in (None, "f32", "f16"):
            raise AssayError(f"engine tinygrad: weights are f32 or f16 (found --precision {precision})")
        path = model.file.parts[0].path
        n_ctx = min(model.hparams.n_ctx_train, MAX_CTX, n_pages * PAGE if n_pages else MAX_CTX)
        helpers.getenv.cache_clear()  # tinygrad caches the environment variables that it has read
        os.environ["HALF"] = str(int(precision == "f16"))
        try:
            self._net, _ = llm.Transformer.from_gguf(path, max_context=n_ctx)
        except (KeyError, ValueError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
            raise AssayError(f"{path}: tinygrad cannot load the file ({type(error).__name__}: {error})") from None
        sees = ["model.embed_tokens", "model.norm"]
        for i, block in enumerate(self._net.blk):
            if not hasattr(block, "attn_q"):
                raise AssayError(f"{path}: blk.{i} is no plain attention block to tinygrad; no values can be seen")
            sees.append(f"model.layers.{i}")
            for own, said in MODULES.items():
                if hasattr(block, own):
                    name = f"model.layers.{i}.{said}"
                    setattr(block, own, RecordedModule(getattr(block, own), name, self._see))
                    sees += [name, f"{name}.input"]
        super().__init__(model, sees, Arithmetic("tinygrad", precision or "f32", "f32"), n_pages=pages_for(n_ctx))

    def _run(self, tokens: NDArray[np.int32], start: int) -> Array:
        x = self._net.token_embd(self._tiny.Tensor([list(map(int, tokens))])).float()
        self._see("model.embed_tokens", x)
        for i, block in enumerate(self._net.blk):
            block._init_state(x)
            h = x + block._attention(block.attn_norm(x), start)
            x = (h + block._feed_forward(block.ffn_norm(h))).realize()
            self._see(f"model.layers.{i}", x)
        x = self._net.output_norm(x)
        self._see("model.norm", x)
        return self._array(self._net.output(x))

    def _array(self, value: Any) -> Array:
        array: Array = value.realize().float().numpy()[0]
        return array
