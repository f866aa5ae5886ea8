"""The witness `transformers`: Hugging Face's implementation, fed with the GGUF file, seen through module hooks.

Needs `transformers`, `torch` and `gguf` (the extra `transformers`). Its modules give what they return, under
the names of `names`; queries and keys come in its own order of a head (halves) and are brought into GGUF's (pairs).
Scores are not among the modules' results: attention is run in its `eager` form, whose probabilities are returned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.base import Arithmetic, Chunk, Emit, Engine, Output, check_batch, hand_over, pages_for
from assay.errors import AssayError
from assay.models import Model
from assay.system.extras import install
from assay.verify.dumps.names import translate
from assay.verify.dumps.observation import from_hf

Array = NDArray[Any]


class TransformersEngine(Engine):
    """One sequence at a time; a chunk that does not begin at 0 continues the one before. Float32."""

    name = "transformers"
    unseen = ("cache_k", "cache_v", "Qcur", "Kcur", "kq", "kqv")  # roles that no module returns

    def __init__(
        self, model: Model, *, n_pages: int | None = None, threads: int | None = None, precision: str | None = None
    ) -> None:
        try:
            transformers, torch = import_module("transformers"), import_module("torch")
            import_module("gguf")
        except ImportError as error:
            raise AssayError(
                f"engine transformers: {error.name or 'a package'} is not installed; "
                f"install what it needs with {install('transformers')}"
            ) from None
        if precision not in (None, "f32"):
            raise AssayError("engine transformers: computes in f32 only; leave --precision out")
        self.model, self.graph, self._torch = model, model.graph, torch
        self.arithmetic = Arithmetic(self.name, "f32", "f32")
        self.n_pages = n_pages or pages_for(model.hparams.n_ctx_train)
        if threads:
            torch.set_num_threads(threads)
        path = model.file.parts[0].path
        transformers.logging.set_verbosity_error()
        try:
            self._net = transformers.AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
            raise AssayError(f"{path}: transformers cannot load the file ({str(error).splitlines()[0]})") from None
        self._past: Any = None
        self._kept: dict[str, Array] = {}
        self._wanted: set[str] = set()
        for name, module in self._net.named_modules():
            module.register_forward_hook(self._hook(name))
            if name.endswith(("o_proj", "down_proj", "post_attention_layernorm")):
                module.register_forward_pre_hook(self._input_hook(f"{name}.input"))

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        check_batch(self, batch, keep)
        return hand_over([self._chunk(chunk, set(keep)) for chunk in batch], emit)

    def _chunk(self, chunk: Chunk, keep: set[str]) -> Output:
        torch = self._torch
        self._kept, self._wanted = {}, keep
        if not chunk.start:
            self._past = None
        elif self._past is not None and (extra := self._past.get_seq_length() - chunk.start) > 0:
            self._past.crop(-extra)
        end = chunk.start + len(chunk.tokens)
        at = np.arange(chunk.start, end) if chunk.positions is None else chunk.positions
        with torch.no_grad():
            out = self._net(
                input_ids=torch.tensor(chunk.tokens[None].astype(np.int64)),
                position_ids=torch.tensor(np.asarray(at, np.int64)[None]),
                past_key_values=self._past, use_cache=True, output_attentions=True,
            )  # fmt: skip
        self._past = out.past_key_values
        for layer, probabilities in enumerate(out.attentions or ()):
            self._keep(f"kq_soft_max-{layer}", probabilities)
        logits = out.logits[0].float().numpy()
        if "result_output" in keep:
            self._kept["result_output"] = logits
        return Output(logits[-1:] if chunk.outputs == "last" else logits, self._kept)

    def _hook(self, name: str) -> Any:
        def seen(_module: Any, _inputs: Any, output: Any) -> None:
            self._take(name, output[0] if isinstance(output, tuple) else output)

        return seen

    def _input_hook(self, name: str) -> Any:
        def seen(_module: Any, inputs: Any) -> None:
            self._take(name, inputs[0])

        return seen

    def _take(self, name: str, value: Any) -> None:
        found = translate(name, "", self.model.graph)
        if found is not None and isinstance(value, self._torch.Tensor):
            self._keep(found[0], value, hf=found[1] == "hf")

    def _keep(self, node: str, value: Any, hf: bool = False) -> None:
        if node not in self._wanted or node in self._kept:
            return
        array = value.detach()[0].float().numpy()
        rotary = self.model.graph[node].op in ("linear", "bias") and hf
        pairs = any(n.op == "rope" and n.attr("mode") == "norm" for n in self.model.graph)
        self._kept[node] = from_hf(array, self.model.hparams.n_embd_head) if rotary and pairs else array.copy()

    def close(self) -> None:
        self._past = None
