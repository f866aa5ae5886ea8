"""Names that tools give to a module's values, brought to the module's path: a table of rewritings, tried in order.

Tools prefix a path with a class or a scope, and add which value of the module it is. `naming` knows the paths
themselves. A name that no row matches stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rewriting:
    """`pattern` in a name is replaced. The example is its test: what is written, and what is meant."""

    pattern: str
    replacement: str
    example: tuple[str, str]


_L = r"(?P<l>(?:.*\.)?(?:layers|h|blocks)\.\d{1,4})"
_MODULES = (
    r"\d{1,4}|mlp|self_attn|attention|feed_forward|\w{1,40}(?:_proj|norm)|lm_head|embed_tokens|gate|\w{0,20}router"
)
REWRITINGS = (
    Rewriting(r"^non_intrusive__", "", ("non_intrusive__model.norm.output", "model.norm.output")),
    Rewriting(
        r"^/(?P<p>[\w./-]{1,200})/(?P<m>\w{1,40}_proj|lm_head|embed_tokens)/(?:MatMul|Gemm|Gather)(?:_\d{1,4})?_output_0$",
        r"\g<p>.\g<m>",
        ("/model/layers.0/mlp/up_proj/MatMul_output_0", "model/layers.0/mlp.up_proj"),
    ),
    Rewriting(r"^/lm_head/(?:MatMul|Gemm)_output_0$", "lm_head", ("/lm_head/MatMul_output_0", "lm_head")),
    Rewriting(r"(?<=\w)/(?=[a-z])", ".", ("model/layers.0/mlp.up_proj", "model.layers.0.mlp.up_proj")),
    Rewriting(
        r"^[A-Z]\w{2,60}(?:ForCausalLM|LMHeadModel|Model)\.(?=\w)",
        "",
        ("LlamaForCausalLM.model.norm", "model.norm"),
    ),
    Rewriting(r"^(?:_orig_mod|module|base_model)\.(?=\w)", "", ("_orig_mod.model.norm", "model.norm")),
    Rewriting(r"^model\.language_model\.(?=\w)", "model.", ("model.language_model.norm", "model.norm")),
    Rewriting(r"[._](?:outputs?|out)\.(?P<i>\d)$", r"[\g<i>]", ("model.layers.0.output.1", "model.layers.0[1]")),
    Rewriting(
        rf"(?<=\.)(?P<m>{_MODULES})[._]outputs?(?P<i>\[\d\])?$",
        r"\g<m>\g<i>",
        ("model.layers.0.mlp_output", "model.layers.0.mlp"),
    ),
    Rewriting(
        r"(?<=\w)[._]inputs?(?:\.args)?(?:\[0\]|\.0|\.hidden_states)?$",
        ".input",
        ("layers.0.mlp.down_proj.inputs.0", "layers.0.mlp.down_proj.input"),
    ),
)  # fmt: skip
_COMPILED = [(re.compile(row.pattern), row.replacement) for row in REWRITINGS]
TOKENS = (
    "tokens",
    "input_ids",
    "prompt_ids",
    "token_ids",
    "prompt_token_ids",
    "inputs.input_ids",
    "prompt_tokens",
    "ids",
)
GENERATED = ("generated", "generated_ids", "generated_tokens", "decode_tokens", "new_tokens", "output_ids")
RESIDUAL = (("[0]", "[1]"), (".hidden_states", ".residual"), ("_hidden_states", "_residual"))
_LAYER = re.compile(rf"^{_L}$|^(?:layer|block)[._ ]?\d{{1,4}}$")
_FIRST = re.compile(r"^(?P<base>.*\w)\[0\]$")
_LISTS = re.compile(r"(?:hidden_states|attentions|past_key_values|logits|layers|blocks|h|values|tensors)$")


def module_name(name: str) -> str:
    """The name with its wrapping taken off."""
    if len(name) > 300:
        return name
    for pattern, replacement in _COMPILED:
        name = pattern.sub(replacement, name, count=0 if replacement == "." else 1)
    return name


def first_of_tuple(name: str) -> str | None:
    """`model.layers.0.self_attn` for `model.layers.0.self_attn[0]`; None for an item of a list of layers."""
    m = _FIRST.match(name)
    return m["base"] if m and not _LISTS.search(m["base"]) else None


def layer_of_half(name: str) -> tuple[str, int] | None:
    """The layer and which half of its output: 0 is what it adds, 1 the residual that is kept apart."""
    for halves in RESIDUAL:
        for i, end in enumerate(halves):
            if name.endswith(end) and _LAYER.match(name.removesuffix(end)):
                return name.removesuffix(end), i
    return None
