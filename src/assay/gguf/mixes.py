"""Which type each tensor gets in a `Q4_K_M` file: llama.cpp's rules for its quantisation mixes.

A mix is a base type with exceptions by the role and the layer of a tensor: coarse output and value matrices cost the
most quality, and some layers cost more than others. The rules are those of llama.cpp's `llama-quant.cpp`, so a file has
the types that its name promises. Some rules depend on an importance matrix.
(Missing: MXFP4_MOE, whose blocks can be read but not written, and llama.cpp's name lists for `glm5-next`.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from assay.errors import AssayError
from assay.gguf.types import GGMLType, by_name


@dataclass(frozen=True)
class Mix:
    """A quantisation mix: the type of most tensors, and its number in `general.file_type`."""

    name: str
    base: str
    file_type: int


MIXES: dict[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("F32", "F32", 0),
        Mix("F16", "F16", 1),
        Mix("BF16", "BF16", 32),
        Mix("Q8_0", "Q8_0", 7),
        Mix("Q6_K", "Q6_K", 18),
        Mix("Q5_K_M", "Q5_K", 17),
        Mix("Q5_K_S", "Q5_K", 16),
        Mix("Q5_1", "Q5_1", 9),
        Mix("Q5_0", "Q5_0", 8),
        Mix("Q4_K_M", "Q4_K", 15),
        Mix("Q4_K_S", "Q4_K", 14),
        Mix("Q4_1", "Q4_1", 3),
        Mix("Q4_0", "Q4_0", 2),
        Mix("Q3_K_L", "Q3_K", 13),
        Mix("Q3_K_M", "Q3_K", 12),
        Mix("Q3_K_S", "Q3_K", 11),
        Mix("Q2_K", "Q2_K", 10),
        Mix("Q2_K_S", "Q2_K", 21),
        Mix("IQ4_NL", "IQ4_NL", 25),
        Mix("IQ4_XS", "IQ4_XS", 30),
        Mix("IQ3_M", "IQ3_S", 27),
        Mix("IQ3_S", "IQ3_S", 26),
        Mix("IQ3_XS", "IQ3_S", 22),
        Mix("IQ3_XXS", "IQ3_XXS", 23),
        Mix("IQ2_M", "IQ2_S", 29),
        Mix("IQ2_S", "IQ2_XS", 28),
        Mix("IQ2_XS", "IQ2_XS", 20),
        Mix("IQ2_XXS", "IQ2_XXS", 19),
        Mix("IQ1_M", "IQ1_M", 31),
        Mix("IQ1_S", "IQ1_S", 24),
        Mix("NVFP4", "NVFP4", 39),
        Mix("Q2_0", "Q2_0", 41),
        Mix("Q1_0", "Q1_0", 40),
    )
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
FLOATS = ("F32", "F16", "BF16")

QUANTIZATION_VERSION = 2  # version of ggml's block formats, for `general.quantization_version`


def mix_by_name(name: str) -> Mix:
    """The mix called `name`, in any letter case."""
    key = ALIASES.get(name.upper(), name.upper())
    if key not in MIXES:
        raise AssayError(f"{name}: no such quantisation; known are {', '.join(MIXES)}")
    return MIXES[key]


@dataclass(frozen=True)
class Facts:
    """Facts about a model that the rules use."""

    arch: str
    n_layer: int
    n_head: int
    n_head_kv: int
    n_expert: int
    tied: bool  # no output.weight: the embedding is also the output matrix
    n_value: int  # number of value matrices

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """llama.cpp's size class 70B, recognised by the number of layers."""
        if self.arch == "llama":
            return self.n_layer == 80 and self.n_head != self.n_head_kv and self.n_expert != 8
        return (self.arch, self.n_layer) in {("qwen2", 80), ("olmo", 80), ("deci", 80), ("jais2", 68)}


# The role of a tensor: the first pattern that its name contains.
ROLES: tuple[tuple[str, str], ...] = (
    (r"^output\.weight$", "output"),
    (r"^(per_layer_)?token_embd\.weight$", "embedding"),
    (r"attn_(qkv|kv_b|v)\.weight", "value"),
    (r"attn_k\.weight", "key"),
    (r"attn_q\.weight", "query"),
    (r"attn_output\.weight", "attention output"),
    (r"ffn_up", "up"),
    (r"ffn_gate", "gate"),
    (r"ffn_down", "down"),
)

# Tensors that are not quantised: small ones, or those not used in a matrix product.
KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^position_embd\.weight$|^token_types\.weight$|ssm_conv1d|shortconv\.conv\.weight"
    r"|indexer\.[kq]_proj\.weight|attn_rel_b\.weight"
    r"|time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|\.position_embd|sam\.pos_embd|sam\.neck\.|sam\.net_|\.rel_pos|\.patch_embd|\.patch_merger"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)

FALLBACK = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "Q1_0": "Q4_0",
    "Q2_0": "Q4_0",
    "NVFP4": "Q4_0",
} | dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL")
LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")  # mixes with special rules
FINE = ("IQ2_S", "IQ2_M")  # those whose exceptions are IQ3_S
NEEDY = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"))  # unusable without an importance matrix


def role_of(name: str) -> str:
    return next((role for pattern, role in ROLES if re.search(pattern, name)), "other")


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Matrices and stacks of matrices called `…weight`; a leading dimension of 1 does not count."""
    first = next((i for i, n in enumerate(shape) if n > 1), len(shape))
    return len(shape) - first >= 2 and name.endswith("weight") and not KEPT.search(name)


def fits(name: str, row: int) -> str:
    """The type, or its fallback if the row length is not a multiple of its block size."""
    if row % by_name(name).block_size == 0:
        return name
    smaller = FALLBACK.get(name, name)
    return smaller if row % by_name(smaller).block_size == 0 else "F16"


def more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


# A rule maps layer i of n to a type, or to None for the base type of the mix.
Rule = Callable[[int, int, Facts], str | None]

VALUE_RULES: dict[str, Rule] = {
    "Q2_K": lambda i, n, facts: "Q4_K" if facts.group >= 4 else "Q3_K",
    "Q3_K_M": lambda i, n, facts: "Q5_K" if i < 2 else "Q4_K",
    "Q3_K_L": lambda i, n, facts: "Q5_K",
    "Q4_K_S": lambda i, n, facts: "Q5_K" if i < 4 else None,
    "Q4_K_M": lambda i, n, facts: "Q6_K" if more_bits(i, n) else None,
    "Q5_K_M": lambda i, n, facts: "Q6_K" if more_bits(i, n) else None,
    "IQ3_XXS": lambda i, n, facts: "Q4_K" if facts.group >= 4 else None,
    "IQ3_M": lambda i, n, facts: "Q4_K",
    **dict.fromkeys(("Q2_K_S", "IQ3_XS", "IQ3_S"), lambda i, n, facts: "Q4_K" if facts.group >= 4 else None),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), lambda i, n, facts: "Q5_K" if facts.group >= 4 else None),
}
DOWN_RULES: dict[str, Rule] = {
    "Q2_K": lambda i, n, facts: "Q3_K",
    "Q3_K_M": lambda i, n, facts: "Q5_K" if i < n // 16 else "Q4_K",
    "Q3_K_L": lambda i, n, facts: "Q5_K",
    "Q4_K_S": lambda i, n, facts: "Q5_K" if i < n // 8 else None,
    "Q4_K_M": lambda i, n, facts: "Q6_K" if more_bits(i, n) else None,
    "Q5_K_M": lambda i, n, facts: "Q6_K" if more_bits(i, n) else None,
    "Q2_K_S": lambda i, n, facts: "Q4_K" if i < n // 8 else None,
    "IQ3_M": lambda i, n, facts: "Q4_K" if i < n // 8 or (facts.n_expert == 8 and more_bits(i, n)) else None,
}
# With an importance matrix, and without one.
DOWN_WEIGHTED: dict[str, Rule] = {
    "Q4_0": lambda i, n, facts: "Q4_1" if i < n // 8 else None,
    "Q5_0": lambda i, n, facts: "Q5_1" if i < n // 8 else None,
}
DOWN_UNWEIGHTED: dict[str, Rule] = {
    "IQ3_XXS": lambda i, n, facts: "Q4_K" if i < n // 8 else "Q3_K",
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), lambda i, n, facts: "Q5_K" if i < n // 8 else None),
}
FALCON_DOWN_RULES: dict[str, Rule] = {
    **{name: DOWN_RULES[name] for name in ("Q2_K", "Q2_K_S", "IQ3_M")},
    "Q3_K_M": lambda i, n, facts: "Q5_K" if i < n // 16 else "Q4_K" if more_bits(i, n) else "Q3_K",
    "Q3_K_L": lambda i, n, facts: "Q4_K",
    "Q4_K_M": lambda i, n, facts: "Q6_K" if i < n // 16 else "Q5_K" if more_bits(i, n) else "Q4_K",
    "Q5_K_M": DOWN_RULES["Q5_K_M"],
}
ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_XXS": "IQ3_S", "IQ3_M": "Q4_K"}
ATTENTION_OUTPUT_8_EXPERTS = dict.fromkeys(
    ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS"), "Q5_K"
)
QUERY_AND_KEY = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}
EMBEDDING = {"Q2_0": "Q4_K", "NVFP4": "Q6_K"}  # a row of NVFP4 has no place for its scale
ATTENTION_OUTPUT_FALCON = {"Q3_K_L": "Q4_K"}


def _output(mix: Mix, row: int, facts: Facts) -> str:
    if facts.arch == "falcon" or row % by_name(mix.base).block_size:
        return "Q8_0"
    if mix.name in (*LOWEST, "IQ3_XXS"):
        return "Q5_K"
    return "Q8_0" if mix.base == "Q8_0" else "Q6_K"


def _embedding(mix: Mix) -> str:
    """Rules of the embedding, if the output is a separate matrix."""
    if mix.name in (*FINE, "IQ3_XXS"):
        return "IQ3_S"
    return "Q2_K" if mix.name in LOWEST else EMBEDDING.get(mix.name, mix.base)


def _lowest(mix: Mix, role: str, i: int, facts: Facts) -> str:
    """The rules of the mixes below three bits."""
    finer = "IQ3_S" if mix.name in FINE else "Q2_K"
    if role == "value":
        return "Q4_K" if facts.group >= 4 or facts.n_expert >= 4 else finer
    if role == "key" and facts.n_expert == 8:
        return "Q4_K"
    if role == "down" and i < facts.n_layer // 8:
        return finer
    if role == "attention output":
        if facts.n_expert == 8:
            return "Q5_K"
        return "IQ3_S" if mix.name in FINE else "IQ2_XXS" if mix.name in ("IQ1_S", "IQ1_M") else mix.base
    return mix.base


def _value(mix: Mix, i: int, facts: Facts, weighted: bool) -> str:
    rule = VALUE_RULES.get(mix.name)
    base = "IQ3_S" if mix.name == "IQ3_XXS" and not weighted else mix.base
    chosen = (rule(i, facts.n_value, facts) if rule else None) or base
    if facts.n_expert == 8:
        return "Q8_0"
    return "Q5_K" if facts.is_70b and chosen in ("Q3_K", "Q4_K") else chosen


def _down(mix: Mix, i: int, facts: Facts, weighted: bool) -> str:
    asked = DOWN_WEIGHTED if weighted else DOWN_UNWEIGHTED
    rule = ((FALCON_DOWN_RULES if facts.arch == "falcon" else DOWN_RULES) | asked).get(mix.name)
    return (rule(i, facts.n_layer, facts) if rule else None) or mix.base


def _attention_output(mix: Mix, facts: Facts) -> str:
    if facts.arch == "falcon":
        table = ATTENTION_OUTPUT_FALCON
    else:
        table = ATTENTION_OUTPUT_8_EXPERTS if facts.n_expert == 8 else ATTENTION_OUTPUT
    return table.get(mix.name, mix.base)


def layer_of(name: str) -> int:
    found = re.match(r"blk\.([0-9]{1,9})\.", name)
    return int(found[1]) if found else -1


def choose(
    mix: Mix, facts: Facts, tensors: Iterable[tuple[str, tuple[int, ...], GGMLType]], weighted: bool = False
) -> Mapping[str, GGMLType]:
    """The type of every tensor `(name, shape, present type)` under `mix`. `weighted`: there is an importance matrix.

    Value and down matrices are counted in layer order, as in llama.cpp. With experts a layer may have several down
    matrices, so the layer is taken from the name.
    """
    types: dict[str, GGMLType] = {}
    counts = dict.fromkeys(("value", "down", "gate", "up"), 0)
    for name, shape, present in sorted(tensors, key=lambda t: (layer_of(t[0]), t[0])):
        if not is_quantizable(name, shape):
            types[name] = present
            continue
        role, row = role_of(name), shape[-1]
        i = counts.get(role, 0)
        if role in counts:
            counts[role] += 1
        chosen = _chosen(mix, facts, role, row, i, layer_of(name) if facts.n_expert > 1 else i, weighted)
        types[name] = by_name(fits(chosen, row))
    return types


def _chosen(mix: Mix, facts: Facts, role: str, row: int, i: int, layer: int, weighted: bool) -> str:
    """The type of a tensor by its role: the i-th of its role, in a layer."""
    n = facts.n_layer
    if mix.name in FLOATS:
        return mix.base
    if role == "output" or (role == "embedding" and facts.tied):
        return _output(mix, row, facts)
    if role == "embedding":
        return _embedding(mix)
    if mix.name in LOWEST:
        return _lowest(mix, role, i, facts)
    if role == "value":
        return _value(mix, i, facts, weighted)
    if role in ("key", "query"):
        return "Q8_0" if role == "key" and facts.n_expert == 8 else QUERY_AND_KEY.get(mix.name, mix.base)
    if role == "down":
        return _down(mix, layer, facts, weighted)
    if role == "attention output":
        return _attention_output(mix, facts)
    if role in ("gate", "up") and mix.name == "IQ3_XS" and n // 8 <= layer < 7 * n // 8:
        return "IQ3_XXS"
    return mix.base
