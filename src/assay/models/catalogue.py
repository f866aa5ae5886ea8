"""A small example graph of every architecture and of its variants: the names page is made from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from assay.graph import Graph
from assay.models import llama
from assay.models.blocks import Shapes
from assay.models.hparams import HParams, Rope

EXAMPLE = HParams(
    arch="llama",
    n_layer=1,
    n_embd=64,
    n_head=4,
    n_head_kv=2,
    n_embd_head=16,
    n_embd_head_v=16,
    n_ff=128,
    n_vocab=256,
    n_ctx_train=2048,
    eps=1e-5,
    attn_scale=0.25,
    window=0,
    n_expert=0,
    n_expert_used=0,
    rope=Rope(16, 10000.0, "none", 1.0, 2048, 0.0, 1.0, 32.0, 1.0),
)


def tensor_shapes(hp: HParams, *, bias: bool = False, fused: bool = False, tied: bool = True) -> Shapes:
    """The tensors that a file with these hyper-parameters holds."""
    q, kv = hp.n_head * hp.n_embd_head, hp.n_head_kv * hp.n_embd_head
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (hp.n_vocab, hp.n_embd),
        "output_norm.weight": (hp.n_embd,),
    }
    if not tied:
        shapes["output.weight"] = (hp.n_vocab, hp.n_embd)
    for layer in range(hp.n_layer):
        attn = {"attn_qkv": q + 2 * kv} if fused else {"attn_q": q, "attn_k": kv, "attn_v": kv}
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hp.n_embd,),
            "ffn_norm.weight": (hp.n_embd,),
            "attn_output.weight": (hp.n_embd, q),
            **{f"{stem}.weight": (rows, hp.n_embd) for stem, rows in attn.items()},
        }
        if bias:
            block |= {f"{stem}.bias": (rows,) for stem, rows in (*attn.items(), ("attn_output", hp.n_embd))}
            block |= {"ffn_gate.bias": (hp.n_ff,), "ffn_up.bias": (hp.n_ff,), "ffn_down.bias": (hp.n_embd,)}
        wide, narrow = (hp.n_ff, hp.n_embd), (hp.n_embd, hp.n_ff)
        if hp.n_expert:
            block["ffn_gate_inp.weight"] = (hp.n_expert, hp.n_embd)
            for stem, shape in (("ffn_gate_exps", wide), ("ffn_up_exps", wide), ("ffn_down_exps", narrow)):
                block[f"{stem}.weight"] = (hp.n_expert, *shape)
        else:
            block |= {"ffn_gate.weight": wide, "ffn_up.weight": wide, "ffn_down.weight": narrow}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


_MIXTRAL = replace(EXAMPLE, n_expert=8, n_expert_used=2)

VARIANTS: dict[str, Callable[[], Graph]] = {
    "llama": lambda: llama.build(tensor_shapes(EXAMPLE), EXAMPLE),
    "llama with biases": lambda: llama.build(tensor_shapes(EXAMPLE, bias=True), EXAMPLE),
    "llama with a fused attn_qkv": lambda: llama.build(tensor_shapes(EXAMPLE, fused=True), EXAMPLE),
    "llama with experts (Mixtral)": lambda: llama.build(tensor_shapes(_MIXTRAL), _MIXTRAL),
}
