"""Tells the kind of a table's column from its head: a table of rules, one kind of column a row.

    kind                           example of a head     a cell of the column is
    rms, mean, norm …              rms                   that statistic of the row's subject
    layer, row, name, index, id    block, pos, stage     a part of the row's subject
    logit, value                   score, val            one number
    first, last                    sample, tail          a list of values at that end
    #3                             h[3]                  element 3
    ~2                             h[-2], vlast2         the element before the last one
    =                              attn_out, layer 2     a number of the subject that the head names
    =rms                           attn_out rms          that statistic of the node that the head names
    rms@3                          rms_pos3              that statistic of the subject's row 3
    first@-1                       last token [0:5]      a list of first values of that row
    -                              dtype                 ignored

Touch this module when the head of a column is not known or is misread: add a row to `COLUMN_RULES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, ROW, layer_of, row_of
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.lexer import Word, lex, statistic_sign
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable

BARS = re.compile(r"\|{1,2}\w{1,12}\|{1,2}|‖\w{1,12}‖")
FUNCTION = re.compile(r"\b([A-Za-z]\w{1,11})\(([\w. ]{1,40})\)")  # norm(attn_out)
_NUMBERED = re.compile(r"(?:\w{0,12}?[\[_(]|[a-z]{1,5}|\[)?(\d{1,5})[\])]?", re.IGNORECASE)
_LENGTH = re.compile(r"‖(.{1,40})‖(?:₂|_?2)?")
_ELEMENT = re.compile(r"([a-z]\w{0,11})\[(\d{1,5})\]")
_NODE_ELEMENT = re.compile(r"([a-z]\w{0,30}_\w{1,30})\[(\d{1,5})\]")
_FROM_THE_END = re.compile(r"[a-z]\w{0,11}\[-(\d)\]|[a-z]{1,6}_?last_?(\d)?|last_?(\d)")
_OF_A_ROW = re.compile(r"([a-z]\w{0,11}?)[ _.@\[]{1,2}(?:p|pos|position|t|tok|token|row)[ _=]?(\d{1,5})\]?")
_RANGE = re.compile(r"\[\s?(?:0\s?)?(?::|\.\.\.?|-)\s?\d{0,4}\s?\]")  # [0:5], [:5], [0..5]
_OUTPUTS = {"o", "out", "output", "mid", "post", "residual", "resid"}
_NAME_COLUMN = {"name", "node", "tensor", "op", "stage", "what", "label", "activation", "tag", "site", "point", "step",
                "key", "module", "file", "filename", "dump",
                 "where", "hook", "probe", "stat", "metric", "kind", "variable", "buffer"}  # fmt: skip
_INDEX_COLUMN = {"i", "idx", "index", "(index)", "dim", "channel", "ch", "element", "elem", "#", "j", "k", "component"}
_DULL = {"shape", "dim", "dims", "n", "numel", "size", "dtype", "type", "count", "elems", "len", "..."}
_ROW_COLUMN = ROW | {"token", "tok"}
_VECTORS = {"x", "h", "y", "v", "z"}
_VALUES = {"first", "values", "sample", "head", "vals", "data", "slice", "preview"}


@dataclass
class ColumnHead:
    """The head of a column as it was printed."""

    cell: str

    @cached_property
    def word(self) -> str:
        return self.cell.strip(" *`'\"").lower()

    @cached_property
    def parts(self) -> list[str]:
        """Its words as they stand, for the name of a statistic."""
        if "|" in self.cell:  # Max |v|
            return [p.text for p in lex(self.cell) if isinstance(p, Word)]
        return re.split(r"\s+", self.cell.strip(" *`'\"()."))

    @cached_property
    def words(self) -> list[str]:
        return split_words(self.parts if "|" in self.cell else [self.cell])


def column_kind(cell: str) -> str:
    """The kind of the column; empty if its head is unknown."""
    return COLUMN_RULES.first(ColumnHead(cell)) or ""


def without_statistics(words: list[str]) -> list[str]:
    """The words that name no statistic."""
    parts = {i + k for i in range(len(words) - 1) if words[i : i + 2] == ["l", "2"] for k in (0, 1)}
    dull = ("abs", "x", "h", "dev", "norm")
    return [w for i, w in enumerate(words) if not statistic([w]) and w not in dull and i not in parts]


def _is_node(words: list[str]) -> bool:
    return bool(meaning([*words, "layer", "0"], generic=False).nodes)


def _statistic_in_signs(head: ColumnHead) -> str | None:
    """|x|, ‖·‖₂, max|.|, √⟨x²⟩"""
    sign = statistic_sign(head.cell.strip(" *`'\""))
    return statistic([sign]) if sign else None


def _function_of_a_node(head: ColumnHead) -> str | None:
    m = FUNCTION.fullmatch(head.cell.strip(" *`'\""))
    kind = statistic([m[1]]) if m is not None else None
    return f"={kind}" if m is not None and kind and _is_node([m[2]]) else None


def _length_of_a_node(head: ColumnHead) -> str | None:
    m = _LENGTH.fullmatch(head.cell)
    inside = head.word.strip("|‖")
    if BARS.fullmatch(head.word) and inside not in _VECTORS and _is_node([inside]):
        return "=norm"
    return None if m is None else "=norm" if m[1] not in _VECTORS and _is_node([m[1]]) else "norm"


def _values_of_a_row(head: ColumnHead) -> str | None:
    """last token [0:5], pos 3 x[:4], first row vals: the first values of one token's row."""
    ranged = _RANGE.search(head.word)
    words = split_words([_RANGE.sub(" ", head.word)])
    row = {"last": -1, "final": -1, "first": 0}.get(words[0]) if words[1:2] and words[1] in _ROW_COLUMN else None
    rest = words[2:]
    if row is None and len(words) > 1 and words[0] in _ROW_COLUMN and words[1].isdecimal():
        row = int(words[1])
    if row is None or not (ranged or set(rest) & _VALUES) or not set(rest) <= _VALUES | _VECTORS | {"of", "row"}:
        return None
    return f"first@{row}"


def _statistic(head: ColumnHead) -> str | None:
    kind = statistic(head.parts if head.word else [])
    rest = without_statistics(head.words) if kind else []
    return f"={kind}" if kind and rest and len(rest) < 6 and _is_node(rest) else kind


def _statistic_before(head: ColumnHead) -> str | None:
    """norm_att_o, mean_resid_out: a statistic of an output. `norm_attn` may be the norm before attention."""
    words = head.words
    kind = statistic(words[:1]) if len(words) > 2 and "(" not in head.cell else None
    return f"={kind}" if kind and set(words[1:]) & _OUTPUTS and _is_node(words[1:]) else None


def _statistic_of_a_row(head: ColumnHead) -> str | None:
    """norm_p0, l2_pos3, rms_t2: a statistic of one token's row."""
    m = _OF_A_ROW.fullmatch(head.word)
    kind = statistic([m[1]]) if m is not None else None
    return f"{kind}@{int(m[2])}" if m is not None and kind else None


def _element_of_a_node(head: ColumnHead) -> str | None:
    m = _NODE_ELEMENT.fullmatch(head.word)
    return f"=#{int(m[2])}" if m and m[1] not in LAYERS and _is_node([m[1]]) else None


def _element(head: ColumnHead) -> str | None:
    m = _ELEMENT.fullmatch(head.word)
    return f"#{int(m[2])}" if m and m[1] not in LAYERS else None


def _element_from_the_end(head: ColumnHead) -> str | None:
    m = _FROM_THE_END.fullmatch(head.word)
    return f"~{int(m[1] or m[2] or m[3] or 1)}" if m else None


def _token_id(head: ColumnHead) -> str | None:
    return "id" if "".join(head.words) in ("id", "tokenid", "tokid", "vocabid") else None


def _logit(head: ColumnHead) -> str | None:
    return "logit" if head.word in ("logit", "logits", "score", "logprob") else None


def _value(head: ColumnHead) -> str | None:
    return "value" if head.word in ("value", "val") else None


def _ending(head: ColumnHead) -> str | None:
    return "last" if head.word in ("last", "tail", "end") else None


def _dull(head: ColumnHead) -> str | None:
    return "-" if head.word in _DULL else None


def _layer(head: ColumnHead) -> str | None:
    words = set(head.words)
    counted = words & LAYER and head.words[-1] in ("idx", "index", "no", "id", "num", "nr")
    alone = words & LAYERS and words <= LAYERS | {"after", "of"}
    return "layer" if head.word in LAYER - {"h"} or counted or alone else None


def _row(head: ColumnHead) -> str | None:
    several = len(head.words) > 1 and set(head.words) <= _ROW_COLUMN | {"idx", "index", "seq"}
    return "row" if several or head.word in _ROW_COLUMN else None


def _name(head: ColumnHead) -> str | None:
    return "name" if head.word in _NAME_COLUMN else None


def _index(head: ColumnHead) -> str | None:
    return "index" if head.word in _INDEX_COLUMN else None


def _first_values(head: ColumnHead) -> str | None:
    return "first" if set(head.words) & _VALUES and not layer_of(head.words)[1] else None


def _one_row(head: ColumnHead) -> str | None:
    words = head.words
    return "=" if len(words) == 2 and words[1].isdecimal() and row_of(words, set()) is not None else None


def _one_layer(head: ColumnHead) -> str | None:
    words = head.words
    if len(words) > 5 or layer_of(words)[0] is None or not any(w in LAYER for w in words):
        return None
    return "=" if len(head.word) < 40 else ""


def _numbered(head: ColumnHead) -> str | None:
    m = _NUMBERED.fullmatch(head.word)
    return f"#{int(m[1])}" if m else None


def _node(head: ColumnHead) -> str | None:
    return "=" if 0 < len(head.words) < 8 and _is_node(head.words) else None


COLUMN_RULES: RuleTable[ColumnHead, str] = RuleTable(
    "column",
    Rule(
        "statistic in signs",
        157,
        "layer,|x|,√⟨x²⟩\n0,2.5,1.5\n",
        ("l_out-0 norm 2.5", "l_out-0 rms 1.5"),
        _statistic_in_signs,
    ),
    Rule(
        "length of a node",
        160,
        "| layer | ‖attn_out‖ |\n| 0 | 1.5 |\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 norm 1.5",),
        _length_of_a_node,
    ),
    Rule(
        "function of a node",
        155,
        "| layer | norm(attn_out) | rms(ffn_out) |\n| 0 | 1.5 | 2.5 |\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 norm 1.5", "ffn_out-0 rms 2.5"),
        _function_of_a_node,
    ),
    Rule(
        "statistic before a node",
        152,
        "layer,norm_att_o,mean_resid_out\n0,1.5,2.5\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 norm 1.5", "l_out-0|ffn_inp-0 mean 2.5"),
        _statistic_before,
    ),
    Rule(
        "element of a node",
        145,
        "layer,norm_att_o,resid_out[0],resid_out[1]\n0,1.5,2.5,3.5\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 norm 1.5", "l_out-0|ffn_inp-0 at 0:2.5 1:3.5"),
        _element_of_a_node,
    ),
    Rule(
        "statistic of a row",
        158,
        "layer,norm_p0,norm_p1\n0,1.5,2.5\n",
        ("l_out-0 norm 1.5 row 0", "l_out-0 norm 2.5 row 1"),
        _statistic_of_a_row,
    ),
    Rule(
        "values of a row",
        156,
        "| layer | rms | last token [0:2] |\n| 0 | 1.5 | 0.5 0.25 |\n",
        ("l_out-0 rms 1.5", "l_out-0 first 0.5 0.25 row -1"),
        _values_of_a_row,
    ),
    Rule("statistic", 150, "| layer | rms |\n| 0 | 1.5 |\n", ("l_out-0 rms 1.5",), _statistic),
    Rule("element", 140, "| layer | h[0] | h[3] |\n| 0 | 1.5 | 2.5 |\n", ("l_out-0 at 0:1.5 3:2.5",), _element),
    Rule(
        "element from the end",
        135,
        "layer,v0,v1,vlast2,vlast\n0,1.5,2.5,3.5,4.5\n",
        ("l_out-0 first 1.5 2.5", "l_out-0 last 3.5 4.5"),
        _element_from_the_end,
    ),
    Rule("token id", 130, "| token id | logit |\n| 5 | 1.5 |\n", ("result_output at 5:1.5",), _token_id),
    Rule("logit", 120, "| id | score |\n| 5 | 1.5 |\n", ("result_output at 5:1.5",), _logit),
    Rule("value", 110, "layer 0 out\n| index | value |\n| 0 | 1.5 |\n", ("l_out-0 at 0:1.5",), _value),
    Rule(
        "dull",
        100,
        "rms\n| layer | dim | attn_out |\n| 0 | 64 | 1.5 |\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 rms 1.5",),
        _dull,
    ),
    Rule("layer", 90, "| block | rms |\n| 1 | 1.5 |\n", ("l_out-1 rms 1.5",), _layer),
    Rule("row", 80, "layer 0 out\n| pos | rms |\n| 2 | 1.5 |\n", ("l_out-0 rms 1.5 row 2",), _row),
    Rule("name", 70, "| stage | rms |\n| embedding | 1.5 |\n", ("embd rms 1.5",), _name),
    Rule("index", 60, "layer 0 out\n| channel | value |\n| 3 | 1.5 |\n", ("l_out-0 at 3:1.5",), _index),
    Rule(
        "first values",
        50,
        "| layer | rms | sample |\n| 0 | 1.5 | 0.5 0.25 |\n",
        ("l_out-0 rms 1.5", "l_out-0 first 0.5 0.25"),
        _first_values,
    ),
    Rule(
        "last values",
        45,
        "layer,first,last\n0,1.5,2.5\n",
        ("l_out-0 first 1.5", "l_out-0 last 2.5"),
        _ending,
    ),
    Rule(
        "one row",
        40,
        "layer 0 out\n| i | pos 0 | pos 1 |\n| 0 | 1.5 | 2.5 |\n",
        ("l_out-0 at 0:1.5 row 0", "l_out-0 at 0:2.5 row 1"),
        _one_row,
    ),
    Rule(
        "one layer",
        30,
        "| i | layer 0 | layer 1 |\n| 0 | 1.5 | 2.5 |\n",
        ("l_out-0 at 0:1.5", "l_out-1 at 0:2.5"),
        _one_layer,
    ),
    Rule("numbered", 20, "| layer | d0 | d1 |\n| 0 | 1.5 | 2.5 |\n", ("l_out-0 first 1.5 2.5",), _numbered),
    Rule(
        "node",
        10,
        "rms\n| layer | attn_out | ffn_out |\n| 0 | 1.5 | 2.5 |\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 rms 1.5", "ffn_out-0 rms 2.5"),
        _node,
    ),
)
