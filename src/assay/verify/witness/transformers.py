"""The witness `transformers`: Hugging Face's implementation, fed with the GGUF file, seen through module hooks.

Needs `transformers`, `torch`, `gguf` and `accelerate`. Hooks keep the results of its modules, under the names of
`names`. No module returns scores, so attention is run in its `eager` form, which returns the probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.models import Model
from assay.verify.witness.follower import Array, Follower, packages

INPUTS = ("o_proj", "down_proj", "post_attention_layernorm")  # modules whose argument is a node too


class TransformersEngine(Follower):
    """Float32, or bfloat16 with `--precision bf16`: the arithmetic in which most models are trained and served."""

    def __init__(
        self, model: Model, *, n_pages: int | None = None, threads: int | None = None, precision: str | None = None
    ) -> None:
        transformers, self._torch, *_ = packages("transformers", "transformers", "torch", "gguf", "accelerate")
        types = {"f32": self._torch.float32, "bf16": self._torch.bfloat16}
        precision = precision or "f32"
        if precision not in types:
            raise AssayError(f"engine transformers: computes in {' or '.join(types)} (found --precision {precision})")
        if threads:
            self._torch.set_num_threads(threads)
        path = model.file.parts[0].path
        transformers.logging.set_verbosity_error()
        try:
            self._net = transformers.AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=types[precision], attn_implementation="eager"
            ).eval()
        except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
            raise AssayError(f"{path}: transformers cannot load the file ({str(error).splitlines()[0]})") from None
        modules = {name: module for name, module in self._net.named_modules() if name}
        inputs = {f"{name}.input": module for name, module in modules.items() if name.endswith(INPUTS)}
        seen = [*modules, *inputs, "kq_soft_max-0"]
        super().__init__(model, seen, Arithmetic("transformers", precision, precision), n_pages=n_pages)
        self._past: Any = None
        for name, module in modules.items():
            module.register_forward_hook(lambda _m, _x, y, name=name: self._see(name, y))
        for name, module in inputs.items():
            module.register_forward_pre_hook(lambda _m, x, name=name: self._see(name, x[0]))

    def _run(self, tokens: NDArray[np.int32], start: int) -> Array:
        if not start:
            self._past = None
        at = np.arange(start, start + len(tokens))
        with self._torch.no_grad():
            out = self._net(
                input_ids=self._torch.tensor(tokens[None].astype(np.int64)),
                position_ids=self._torch.tensor(at[None]),
                past_key_values=self._past, use_cache=True, output_attentions=True,
            )  # fmt: skip
        self._past = out.past_key_values
        for layer, probabilities in enumerate(out.attentions or ()):
            self._see(f"kq_soft_max-{layer}", probabilities)
        return self._array(out.logits)

    def _array(self, value: Any) -> Array:
        array: Array = (value[0] if isinstance(value, tuple) else value).detach()[0].float().numpy()
        return array

    def close(self) -> None:
        super().close()
        self._past = None
