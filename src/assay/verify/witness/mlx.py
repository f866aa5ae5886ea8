"""The witness `mlx`: the model definitions of mlx-lm, with the file's decoded weights, seen through their modules.

Needs `mlx-lm`, which reads Hugging Face's folders and no GGUF. The configuration and the names of the weights are
translated here, and the tensors are the file's own values in float32. Rotary factors become its `longrope`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.models import Model
from assay.verify.dumps.observation import to_hf
from assay.verify.witness.follower import Array, Follower, RecordedModule, packages

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # those whose GGUF form differs from mlx-lm's by names and order alone
WEIGHTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "token_embd": "model.embed_tokens",
    "output_norm": "model.norm", "output": "lm_head",
}  # fmt: skip


class MlxEngine(Follower):
    """Float32 throughout."""

    def __init__(
        self, model: Model, *, n_pages: int | None = None, threads: int | None = None, precision: str | None = None
    ) -> None:
        self._mx, definitions, self._cache = packages("mlx", "mlx.core", "mlx_lm.models", "mlx_lm.models.cache")
        if precision not in (None, "f32"):
            raise AssayError("engine mlx: computes in f32 only; leave --precision out")
        arch, file = model.hparams.arch, model.file
        rope = model.hparams.rope
        if arch not in ARCHITECTURES or model.hparams.n_expert or (rope.factor, rope.magnitude) != (1.0, 1.0):
            raise AssayError(
                f"{file.path}: the adapter for mlx knows {', '.join(ARCHITECTURES)} without experts and scaled "
                f"positions (found {arch}); trace the engine yourself and use `assay diagnose`"
            )
        (definition,) = packages("mlx", f"{definitions.__name__}.{arch}")
        self._net = definition.Model(definition.ModelArgs.from_dict(configuration(model)))
        width = model.hparams.n_embd_head if rope.mode == "norm" else 0
        self._net.load_weights([(name, self._mx.array(a)) for name, a in weights(file, width).items()])
        sees = [name for name, _ in self._net.named_modules() if name.count(".") > 1 or name == "model.norm"]
        for name in sorted(sees, key=lambda name: -name.count(".")):  # wrap children before their parents
            *path, last = name.split(".")
            parent: Any = self._net
            for part in path:
                parent = parent[int(part)] if part.isdigit() else getattr(parent, part)
            _wrap(parent, last, name, self._see)
        _wrap(self._net.model, "embed_tokens", "model.embed_tokens", self._see)
        sees += ["model.embed_tokens", *(f"{name}.input" for name in sees)]
        super().__init__(model, sees, Arithmetic("mlx", "f32", "f32"), n_pages=n_pages)
        self._past: Any = None

    def _run(self, tokens: NDArray[np.int32], start: int) -> Array:
        if not start:
            self._past = self._cache.make_prompt_cache(self._net)
        return self._array(self._net(self._mx.array(tokens[None]), cache=self._past))

    def _array(self, value: Any) -> Array:
        array: Array = np.array(value.astype(self._mx.float32))[0]
        return array


def _wrap(parent: Any, last: str, name: str, see: Any) -> None:
    """Replace a child in its parent's list or attributes by one that records its values."""
    if last.isdigit():
        parent[int(last)] = RecordedModule(parent[int(last)], name, see)
    else:
        setattr(parent, last, RecordedModule(getattr(parent, last), name, see))


def configuration(model: Model) -> dict[str, Any]:
    """The keys of a `config.json` that describes the same model as the file."""
    hp = model.hparams
    found: dict[str, Any] = {
        "model_type": hp.arch, "hidden_size": hp.n_embd, "num_hidden_layers": hp.n_layer, "intermediate_size": hp.n_ff,
        "num_attention_heads": hp.n_head, "num_key_value_heads": hp.n_head_kv, "head_dim": hp.n_embd_head,
        "rms_norm_eps": hp.eps, "vocab_size": hp.n_vocab, "max_position_embeddings": hp.n_ctx_train,
        "rope_theta": hp.rope.base, "tie_word_embeddings": "output.weight" not in model.file.tensors,
    }  # fmt: skip
    if "rope_freqs.weight" in model.file.tensors:
        factors = model.file.decode("rope_freqs.weight").tolist()
        found["rope_scaling"] = {
            "rope_type": "longrope", "long_factor": factors, "short_factor": factors,
            "original_max_position_embeddings": hp.n_ctx_train,
        }  # fmt: skip
    return found


def weights(file: GGUFFile, width: int) -> dict[str, Array]:
    """The tensors under Hugging Face's names; with a head's `width`, its pairs of rows brought into halves."""
    found = {}
    for name in file.tensors:
        *layer, stem, kind = name.split(".")
        if stem not in WEIGHTS:
            continue
        array = file.decode(name)
        if width and stem in ("attn_q", "attn_k"):
            array = to_hf(array.T, width).T
        prefix = f"model.layers.{layer[1]}." if layer else ""
        found[f"{prefix}{WEIGHTS[stem]}.{kind}"] = np.ascontiguousarray(array, np.float32)
    return found
