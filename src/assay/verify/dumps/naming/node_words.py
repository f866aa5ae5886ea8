"""Which words name which node: one row for each phrase that people use, with an example.

A label is a bag of words. A row applies if one word of each of its groups stands in the bag, and none of `unless`.
Among the rows that apply, the one with the highest `priority` names the node. A row with several nodes leaves the
choice to the values. To teach the reader a new word for a node, extend a group or add a row here.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class NodeWords:
    """`nodes` that `words` name, the likeliest first. `-` after a node: it belongs to a layer.

    `words` are groups of synonyms in one text each. `example` is a phrase for which this row decides.
    """

    priority: int
    example: str
    nodes: tuple[str, ...]
    words: tuple[str, ...]
    unless: str

    @cached_property
    def groups(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(group.split()) for group in self.words)

    @cached_property
    def excluded(self) -> frozenset[str]:
        return frozenset(self.unless.split())

    def applies(self, bag: Set[str]) -> bool:
        """Whether the bag of words names these nodes."""
        return all(bag & group for group in self.groups) and not bag & self.excluded


Q_WORDS = "q qcur wq xq"
K_WORDS = "k kcur wk xk"
V_WORDS = "v vcur wv xv"
ATT_WORDS = "attn attention att selfattn mha sa gqa mhsa"
FFN_WORDS = "ffn mlp ff ffw ffwd feedforward feed fc"
NORM_WORDS = "norm xnorm rmsnorm layernorm ln normed normalized normalised nrm"
_NORMED = "normed normalized normalised"
_LAST_NORM = "outputnorm lnf normf rmsf finalrms rmsfinal rmslast rmsend resultnorm"
_OUT_NORM = "outnorm outrmsnorm lastnorm lastrmsnorm lastlayernorm lastln headnorm"
_NORM1 = "ln1 norm1 rmsnorm1 layernorm1 rms1 rmsatt rmsattn an"
_NORM2 = "ln2 norm2 rmsnorm2 layernorm2 rms2 rmsffn rmsmlp fn"
TURN_WORDS = "rope rotary rotated roped rot turned"
_BEFORE = "before pre prior unrotated unroped without no"
_END = "final last output out model result ln_f f end top"
_SUM_WORDS = "residual resid skip add addition"
_SUMMED = "residual resid skip add plus"
_ADDED = "residual resid skip add added plus residual2 residual3 res2 resid2 add2 stream"
_NOT_QKV = f"return returned values of out output hidden residual stream is {FFN_WORDS} gate up down"
# Words for nodes inside a layer.
_IN_A_LAYER: tuple[NodeWords, ...] = (
    NodeWords(550, "final norm", ("result_norm",), ("final " + _LAST_NORM, f"{NORM_WORDS} {_LAST_NORM}"), ""),
    NodeWords(540, "outnorm", ("result_norm",), (_OUT_NORM,), f"{ATT_WORDS} {FFN_WORDS}"),
    NodeWords(530, "unembed norm", ("result_norm",), ("lmhead unembed unembedding", NORM_WORDS), ""),
    NodeWords(
        520,
        "softmax context",
        ("kqv_out-",),
        ("softmax softmaxed probs soft", "v context ctx concat concatenated weighted"),
        "",
    ),
    NodeWords(
        510, "attended", ("kqv_out-",), ("attend attended attends sdpa hookz ctx concat concatenated weighted",), "norm"
    ),
    NodeWords(500, "attn times v", ("kqv_out-",), (ATT_WORDS + " a p", "times", V_WORDS), ""),
    NodeWords(490, "q k v", ("kqv_out-", "attn_out-"), ("q", "k", "v"), "qkv"),
    NodeWords(480, "before wo", ("kqv_out-",), ("before pre input", "wo oproj outproj outputprojection"), "norm"),
    NodeWords(475, "router probs", ("ffn_moe_probs-",), ("router gating", "softmax probs probabilities"), ""),
    NodeWords(470, "softmax", ("kq_soft_max-",), ("softmax softmaxed probs probabilities soft",), "logits logit top"),
    NodeWords(460, "attention weights", ("kq_soft_max-",), (ATT_WORDS, "weights weight probability"), NORM_WORDS),
    NodeWords(450, "scores", ("kq-",), ("scores score qk kq qkt",), "logits"),
    NodeWords(446, "gate logits", ("ffn_moe_logits-", "ffn_moe_probs-"), ("gate", "logits logit"), "ffn up attn"),
    NodeWords(
        445,
        "router logits",
        ("ffn_moe_logits-", "ffn_moe_probs-"),
        ("router routing gating", "logits logit scores"),
        "",
    ),
    NodeWords(
        440,
        "logits",
        ("result_output",),
        ("logits logit lg lgts lmhead modelinghead unembed unembedding wcls vocab resultoutput",),
        f"{NORM_WORDS} router routing gating gate moe expert experts",
    ),
    NodeWords(
        430, "q before rope", ("Qcur_proj-", "Qcur_biased-"), (Q_WORDS + " query queries", TURN_WORDS, _BEFORE), ""
    ),
    NodeWords(420, "k before rope", ("Kcur_proj-", "Kcur_biased-"), (K_WORDS + " key keys", TURN_WORDS, _BEFORE), ""),
    NodeWords(410, "q after rope", ("Qcur-",), (Q_WORDS + " query queries", TURN_WORDS), ""),
    NodeWords(400, "qr", ("Qcur-",), ("qr",), ""),
    NodeWords(390, "kr", ("Kcur-",), ("kr",), ""),
    NodeWords(380, "k after rope", ("Kcur-",), (K_WORDS + " key keys", TURN_WORDS), ""),
    NodeWords(370, "x plus ffn", ("l_out-",), ("plus", FFN_WORDS + " down w2"), ""),
    NodeWords(360, "x plus attn", ("ffn_inp-",), ("plus", ATT_WORDS + " wo oproj"), ""),
    NodeWords(350, "q norm", ("Qcur_normed-",), (Q_WORDS, NORM_WORDS), ""),
    NodeWords(340, "k norm", ("Kcur_normed-",), (K_WORDS, NORM_WORDS), ""),
    NodeWords(
        330,
        "post attention norm",
        ("ffn_norm-", "attn_post_norm-"),
        ("post normafter", ATT_WORDS, NORM_WORDS),
        "in input pre",
    ),
    NodeWords(
        325, "attn out normed", ("attn_post_norm-", "ffn_norm-"), (ATT_WORDS, "proj out output", _NORMED), "before pre"
    ),
    NodeWords(
        324,
        "ffn out normed",
        ("ffn_post_norm-", "ffn_norm-"),
        (FFN_WORDS, "down out output", _NORMED),
        "before pre",
    ),
    NodeWords(320, "pre ffn norm", ("ffn_norm-",), ("before pre", FFN_WORDS, NORM_WORDS), "after"),
    NodeWords(
        310, "ffn norm", ("ffn_norm-",), (f"{FFN_WORDS} post second {_NORM2}", f"{NORM_WORDS} {_NORM2} xn"), "final"
    ),
    NodeWords(
        300,
        "attn norm",
        ("attn_norm-",),
        (f"{ATT_WORDS} input pre in first inp before {_NORM1}", f"{NORM_WORDS} {_NORM1} xn"),
        "final",
    ),
    NodeWords(295, "attn in", ("attn_norm-",), (ATT_WORDS, "in input"), "out output residual resid after add weights"),
    NodeWords(
        294, "mlp in", ("ffn_norm-", "ffn_inp-"), (FFN_WORDS, "in input"), "out output down gate up w1 w2 w3 proj after"
    ),
    NodeWords(290, "wq", ("Qcur_proj-", "Qcur_biased-", "Qcur-"), (Q_WORDS,), ""),
    NodeWords(280, "wk", ("Kcur_proj-", "Kcur_biased-", "Kcur-"), (K_WORDS,), ""),
    NodeWords(270, "v", ("Vcur-",), (V_WORDS,), "values"),
    NodeWords(260, "merged", ("kqv_out-",), ("context kqv heads merged headoutput headoutputs headout",), ""),
    NodeWords(250, "ffn inp", ("ffn_inp-",), ("inp", FFN_WORDS), ""),
    NodeWords(
        240, "residual after mlp", ("l_out-",), (_ADDED, FFN_WORDS + " residual2 residual3 res2 resid2 add2 down"), ""
    ),
    NodeWords(230, "residual1", ("ffn_inp-",), ("residual1 res1 resid1 add1 residmid midresid midlayer hmid",), ""),
    NodeWords(220, "first residual", ("ffn_inp-",), ("first 1st", _SUM_WORDS), FFN_WORDS),
    NodeWords(210, "second residual", ("l_out-",), ("second 2nd", _SUM_WORDS), ATT_WORDS),
    NodeWords(200, "middle stream", ("ffn_inp-",), ("mid middle", "residual resid stream hidden x h"), ""),
    NodeWords(190, "query", ("Qcur_proj-", "Qcur_biased-", "Qcur-"), ("query queries",), _NOT_QKV),
    NodeWords(180, "key", ("Kcur_proj-", "Kcur_biased-", "Kcur-"), ("key keys",), _NOT_QKV),
    NodeWords(170, "value", ("Vcur-",), ("value",), _NOT_QKV),
    NodeWords(160, "wo", ("attn_out-",), ("oproj wo outproj",), _SUMMED),
    NodeWords(
        150,
        "output projection",
        ("attn_out-",),
        ("o out output", "proj projection projected"),
        _SUMMED + " ffn mlp down up gate lm",
    ),
    NodeWords(
        140,
        "residual after attention",
        ("ffn_inp-", "attn_out-", "kqv_out-"),
        (_SUMMED + " after post mid added stream oproj wo", ATT_WORDS + " oproj wo"),
        "before",
    ),
    NodeWords(130, "attention", ("attn_out-", "kqv_out-", "ffn_inp-"), (ATT_WORDS,), ""),
    NodeWords(
        120,
        "gate before silu",
        ("ffn_gate-",),
        ("gate w1", "before pre no without", "silu swish gelu act activation"),
        "",
    ),
    NodeWords(
        110,
        "swiglu",
        ("ffn_swiglu-", "ffn_geglu-"),
        ("swiglu geglu glu silu swish gelu actfn mlpact ffnact intermediate activated",),
        "",
    ),
    NodeWords(100, "gated", ("ffn_swiglu-", "ffn_geglu-"), ("gated",), "out output down"),
    NodeWords(90, "gate up", ("ffn_swiglu-", "ffn_geglu-"), ("gate w1", "up w3"), ""),
    NodeWords(
        80,
        "ffn hidden",
        ("ffn_swiglu-", "ffn_geglu-"),
        (FFN_WORDS, "hidden inner mid activation"),
        "out output after post down w1 w2 w3 gate up norm",
    ),
    NodeWords(70, "input down", ("ffn_swiglu-", "ffn_geglu-"), ("input inp", "down w2 downproj"), ""),
    NodeWords(60, "gate", ("ffn_gate-",), ("gate w1",), ""),
    NodeWords(50, "up", ("ffn_up-",), ("up w3",), ""),
    NodeWords(40, "after mlp", ("ffn_out-", "l_out-"), ("after post", FFN_WORDS), "down w2 out output"),
    NodeWords(
        37, "shared out", ("ffn_shexp-", "ffn_shexp_gated-"), ("shared shexp sharedexpert",), "weights gate up down moe"
    ),
    NodeWords(
        75,
        "shared gate",
        ("ffn_shexp_gate_sigmoid-", "shared_expert_gate_sigmoid-", "ffn_shexp_gate-", "shared_expert_gate-"),
        ("shared shexp sharedexpert", "gate gating"),
        "up down proj act silu gated mul",
    ),
    NodeWords(
        56,
        "expert weights",
        ("ffn_moe_weights_norm-", "ffn_moe_weights_scaled-", "ffn_moe_weights-"),
        (
            "expert experts router routing moe topk gating mixing mix combine combining selected chosen",
            "weights weight coefficients w",
        ),
        "gate up down matrix w1 w2 w3",
    ),
    NodeWords(
        39,
        "moe in",
        ("ffn_norm-", "attn_post_norm-", "ffn_inp-"),
        ("moe expert experts", "in input inp"),
        "out output down gate up w1 w2 w3 proj after act slot",
    ),
    NodeWords(
        38,
        "experts mixed",
        ("ffn_moe_out-", "ffn_out-"),
        ("moe expert experts", "mixed combined summed"),
        "weights weight gate up down slot",
    ),
    NodeWords(35, "moe out", ("ffn_moe_out-", "ffn_out-"), ("moe experts",), "weights"),
    NodeWords(30, "mlp", ("ffn_out-",), (FFN_WORDS + " down w2",), "slot"),
    NodeWords(25, "mid", ("ffn_inp-",), ("mid middle",), ""),
    NodeWords(20, "norm", ("attn_norm-", "ffn_norm-"), (NORM_WORDS,), "final"),
    NodeWords(10, "residual", ("l_out-", "ffn_inp-"), ("residual resid",), "input pre before incoming post end stream"),
)
_WITHOUT_LAYER: tuple[NodeWords, ...] = (
    NodeWords(
        70, "before final norm", ("l_out-last",), ("before pre", _END, NORM_WORDS), f"{ATT_WORDS} {FFN_WORDS} after"
    ),
    NodeWords(65, "ln0", ("inp_norm-0", "embd"), ("ln0 norm0 embnorm embdnorm embednorm embeddingnorm",), ""),
    NodeWords(60, "output norm", ("result_norm",), (_END + " lnf", NORM_WORDS + " lnf"), ""),
    NodeWords(
        50,
        "final hidden state",
        ("result_norm", "l_out-last"),
        ("final last", "hidden state states layer output"),
        "token row position embedding",
    ),
    NodeWords(
        45,
        "h final",
        ("result_norm", "l_out-last"),
        ("hfinal xfinal finalh finalx residfinal finalresid finalresidual finalstream streamfinal",),
        "",
    ),
    NodeWords(40, "fnorm", ("result_norm",), ("fnorm",), ""),
    NodeWords(
        30,
        "embedding",
        ("embd",),
        ("embd embed embeds embedding embeddings emb wte embedded encoded lookup inpl",),
        "rope positional positionembedding posembedding posembeddings posemb posembed rotary rotated",
    ),
    NodeWords(20, "hidden", ("result_norm", "l_out-last"), ("hidden",), ""),
    NodeWords(10, "norm", ("result_norm",), (NORM_WORDS,), ""),
)
# Rows sorted by priority, the highest first: words inside a layer, and words for the ends of the model.
IN_LAYERS = tuple(sorted(_IN_A_LAYER, key=lambda row: -row.priority))
ENDS = tuple(sorted(_WITHOUT_LAYER, key=lambda row: -row.priority))
LOGITS = next(row for row in IN_LAYERS if row.nodes == ("result_output",))
