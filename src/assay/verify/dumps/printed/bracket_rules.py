"""Reads a bracket from the words before it and the lexemes after it: a table of rules, one habit a row.

A rule may add values to the statement, or words to its label. It returns the words that still wait for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.brackets import assigned_pairs, axes_of, lone_of, quoted_pairs
from assay.verify.dumps.printed.lexer import (
    ASSIGN,
    COMMA,
    DOTS,
    Bracket,
    Lexeme,
    Number,
    NumberList,
    NumberRows,
    Word,
    listed,
    matrices,
)
from assay.verify.dumps.printed.number_runs import EXPERTS, TOKENS, zipped
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.statements import Statement

TOP_WORDS = {"top", "best", "highest", "largest", "candidates", "argmax", "predictions"}
_SHAPE = {"shape", "dims", "dim", "ne", "size", "strides", "stride", "nb", "torch", "heads"}
_NO_LAYER = (("embd",), ("result_norm",), ("result_output",))
_CUTS = {"prefix": False, "take": False, "head": False, "suffix": True, "tail": True}  # True: counts from the end
_OPTIONS = {"correction", "dim", "axis", "p", "ord", "keepdim", "keepdims", "ddof", "unbiased"}


@dataclass
class BracketSite:
    """A bracket in its line: the lexemes after it, the words since the last value, the statement so far."""

    group: Bracket
    after: Sequence[Lexeme]
    key: list[str]
    line: Statement
    walk: Callable[[list[Lexeme], Statement, list[str]], list[str]]  # reads the lexemes inside the bracket

    @cached_property
    def words(self) -> list[str]:
        return split_words(self.key)

    @cached_property
    def values(self) -> NumberList | NumberRows | None:
        return listed(self.group.items)

    @cached_property
    def numbers(self) -> list[Number]:
        return self.group.numbers()

    @cached_property
    def index(self) -> int | None:
        """The number, where the bracket holds one whole number and nothing else."""
        alone = isinstance(self.values, NumberList) and len(self.group.items) == 1 and bool(self.numbers)
        return int(self.numbers[0].value) if alone and self.numbers[0].whole and self.numbers[0].value >= 0 else None

    @cached_property
    def assigned(self) -> Lexeme | None:
        """The lexeme assigned to the bracket: `[3] = 0.5`."""
        return self.after[1] if len(self.after) > 1 and self.after[0] is ASSIGN else None

    @cached_property
    def list_follows(self) -> bool:
        return isinstance(self.assigned, Bracket) or sum(isinstance(p, Number) for p in self.after[1:4]) > 1

    @cached_property
    def layer_leads(self) -> bool:
        """`2.layer_out (16)`: the line began with the number of its layer."""
        return len(self.line.label) == 2 and self.line.label[0].isdecimal()

    @cached_property
    def placed(self) -> bool:
        """Whether the layer is known already, or the node belongs to no layer."""
        about = meaning(self.line.label)
        return self.line.layer_known or self.layer_leads or about.layer is not None or about.nodes in _NO_LAYER

    @cached_property
    def repeats(self) -> bool:
        """Whether the next value has an index too: `out[0]=1.5 out[1]=2.5`, `[0]=1.5 [1]=2.5`."""
        after, key = self.after, self.key
        last = self.line.items[-1] if self.line.items else None
        same = len(after) > 3 and after[2] == Word(key[-1] if key else "") and isinstance(after[3], Bracket)
        bare = len(after) > 3 and isinstance(after[2], Bracket) and after[3] is ASSIGN
        return same or bare or (last is not None and last.kind == "at" and key[-1:] == list(last.words[-1:]))

    @cached_property
    def counts_layers(self) -> bool:
        """Whether the index is the number of a layer rather than of an element."""
        key, words, line, value = self.key, self.words, self.line, self.assigned
        named = bool(key) and not self.placed
        named = named and ("_" in key[-1] or bool(words[-1:] and words[-1] in LAYER | {"hidden", "states"}))
        if self.list_follows and not named and key and not set(words) & (_SHAPE | TOKENS):  # q(0) = [...]
            named = bool(meaning([key[-1], "layer", "0"], generic=False).nodes) and not self.placed
        element = isinstance(value, Number) and not value.whole
        if named and not (self.repeats and element):  # v_out[0]=1.5 v_out[1]=2.5
            return True
        statement = bool(set(words) & LAYERS) and not (line.outer_words and isinstance(value, Number))
        taken = self.repeats or self.layer_leads or (line.layer_known and value is not None)
        return statement and not taken and meaning(line.label).layer is None  # "layer output [0]: ..."

    def takes_tokens(self, *more: str) -> bool:
        told = set(self.words)
        return bool(told & (TOKENS | set(more))) and not (told | set(split_words(self.line.label))) & EXPERTS


Keys = list[str]


def _options_of_a_call(site: BracketSite) -> Keys | None:
    named = {p.text.lower() for p in site.group.items if isinstance(p, Word)}
    call = site.group.bracket == "(" and site.key and statistic(site.key)
    return site.key if call and named and named <= _OPTIONS else None


def _number_at_the_start(site: BracketSite) -> Keys | None:
    if site.index is None or site.line.label or isinstance(site.assigned, Number):
        return None
    site.line.label.append(site.numbers[0].text)
    follows = site.after[0] if len(site.after) == 1 else site.assigned if len(site.after) == 2 else None
    if isinstance(follows, Bracket):
        site.line.possible_row = site.index  # [0] [1.5, 2.5]
    return site.key


def _length_of_an_array(site: BracketSite) -> Keys | None:
    typed = site.group.bracket == "(" and site.key and site.key[-1].lower().endswith("array")
    return site.key if site.index is not None and typed else None


def _length_of_a_slice(site: BracketSite) -> Keys | None:
    if site.index is None or site.group.bracket != "(" or not site.words or site.words[-1] not in _CUTS:
        return None
    site.line.from_end = site.line.from_end or _CUTS[site.words[-1]]
    return site.key


def _list_of_hidden_states(site: BracketSite) -> Keys | None:
    key, label = site.key, site.line.label
    if site.index is None or not key or not key[-1].lower().endswith("hidden_states") or label[-1:] != key[-1:]:
        return None
    label[-1] = f"hidden_states.{site.numbers[0].text}"
    return key


def _one_element(site: BracketSite) -> Keys | None:
    value = site.assigned
    if site.index is None or not isinstance(value, Number) or value.whole or set(site.words[-2:]) & _SHAPE:
        return None
    if site.list_follows or site.counts_layers:
        return None
    site.line.add("at", ((site.index, value),), site.key)
    return site.key


def _number_of_a_layer(site: BracketSite) -> Keys | None:
    if site.index is None or not site.counts_layers or set(site.words) & _SHAPE:
        return None
    if meaning(site.line.label).layer is None:
        site.line.label += ["layer", site.numbers[0].text]
    return site.key


def _row_in_place_of_a_layer(site: BracketSite) -> Keys | None:
    """`ffn_out[3] = [...]` may be the row of token 3, where only one layer is printed."""
    if site.index is None or not site.counts_layers or set(site.words) & _SHAPE:
        return None
    site.line.row = site.index
    return site.key


def _number_of_a_token(site: BracketSite) -> Keys | None:
    if site.index is None or site.words[-1:] not in (["token"], ["tok"]) or "bos" in site.words:
        return None
    site.line.label.append(site.numbers[0].text)
    return site.key


def _one_token_id(site: BracketSite) -> Keys | None:
    if site.index is None or not site.takes_tokens("token", "bos"):
        return None
    site.line.tokens = site.line.tokens or (site.index,)
    return site.key


def _element_named_before_its_value(site: BracketSite) -> Keys | None:
    if site.index is None or site.assigned is not None or not set(site.words[-1:]) & {"x", "h", "y", "v"}:
        return None
    site.line.element = site.index
    return site.key


def _unexplained_index(site: BracketSite) -> Keys | None:
    if site.index is None:
        return None
    if site.list_follows and not site.layer_leads:
        site.line.label.append(site.numbers[0].text)  # other lines will tell what it counts
    return site.key


def _range(site: BracketSite) -> Keys | None:
    dotted = site.key and site.group.bracket == "[" and DOTS in site.group.items
    return site.key if dotted and 0 < len(site.numbers) < 3 and all(n.whole for n in site.numbers) else None


def _slice(site: BracketSite) -> Keys | None:
    axes = axes_of(site.group) if site.key else None
    if axes is None:
        return None
    line, lone = site.line, [lone_of(axis) for axis in axes]
    named = split_words(site.key[-1:])[-1:]
    first = axes[-1][0] if axes[-1] else None
    if lone[-1] is None and isinstance(first, Number) and first.value < 0:
        line.from_end = True
    at = [n for n in lone if n is not None]
    if at and not (len(axes) == 1 and named and named[0] in LAYERS | {"states"}):
        if min(at) < 0 or len(axes) > 2:
            line.slice_row = line.row = min(at) if min(at) < 0 else at[-1]
        elif lone[-1] is None:
            line.possible_row = at[0]
    return site.key


def _list_of(site: BracketSite) -> NumberList | None:
    """The numbers, where the bracket is one list; a single real number in round brackets is a remark."""
    values = site.values
    if not isinstance(values, NumberList) or (site.group.bracket == "(" and len(values.all) == 1 and not values.whole):
        return None
    return values


def _whole_numbers(site: BracketSite) -> Keys | None:
    values = _list_of(site)
    if values is None or not values.whole:
        return None
    lookup = site.group.bracket == "(" and meaning(site.key).nodes == ("embd",)  # wte[ids] (8, 16)
    if site.takes_tokens("token", "input") and not set(site.words) & _SHAPE and not lookup:
        site.line.tokens = site.line.tokens or tuple(int(n.value) for n in values.all)
    return site.key


def _smallest_and_largest(site: BracketSite) -> Keys | None:
    values = _list_of(site)
    if values is None or "range" not in site.words[-2:] or len(values.all) != 2:
        return None
    site.line.add("min", values.all[0])
    site.line.add("max", values.all[1])
    return []


def _id_and_logit(site: BracketSite) -> Keys | None:
    values = _list_of(site)
    if values is None or len(values.first) != 2 or values.last or not values.first[0].whole or values.first[1].whole:
        return None
    if not set(split_words(site.line.label)) & TOP_WORDS:
        return None
    site.line.add("top", ((int(values.first[0].value), values.first[1]),), site.key)
    return []


def _statistics_in_order(site: BracketSite) -> Keys | None:
    values = _list_of(site)
    return [] if values is not None and zipped(values.all, site.key, site.line) else None


def _list(site: BracketSite) -> Keys | None:
    values = _list_of(site)
    if values is None:
        return None
    site.line.add("list", values, site.key)
    return []


def _rows(site: BracketSite) -> Keys | None:
    if not isinstance(site.values, NumberRows):
        return None
    every = site.values.first + site.values.last
    if all(len(r.all) == 2 and r.all[0].whole for r in every) and not all(r.whole for r in every):
        site.line.add("top", tuple((int(r.all[0].value), r.all[1]) for r in every), site.key)
    elif not all(r.whole for r in every):
        site.line.add("list", site.values, site.key)
    elif site.takes_tokens("token", "input") and len(every) == 1:
        site.line.tokens = site.line.tokens or tuple(int(n.value) for n in every[0].all)
    return []


def _matrices(site: BracketSite) -> Keys | None:
    """Three axes: heads of all tokens, or tokens with their heads. The sizes decide later which is which."""
    found = matrices([site.group])
    if not found or any(row.whole for _, rows in found for row in rows.first):
        return None
    for place, rows in found:
        site.line.add("list", rows, site.key, outer=place)
    return []


def _pairs(site: BracketSite) -> Keys | None:
    pairs = quoted_pairs(site.group) or assigned_pairs(site.group.items)
    if not pairs:
        return None
    site.line.add("top", pairs, site.key)
    return []


def _last_in_brackets(site: BracketSite) -> Keys | None:
    inner = site.group.items
    if len(inner) != 1 or not isinstance(inner[0], Word) or inner[0].text.lower() not in ("last", "final"):
        return None
    if site.words[-1:] == ["norm"] and inner[0] != Word("last"):
        site.line.label.append("final")  # norm (final)
    else:
        site.line.row = -1
    return site.key


def _remark(site: BracketSite) -> Keys | None:
    texts = [p.text for p in site.group.items if isinstance(p, Word)]
    if site.group.bracket != "(" or len(texts) < len(site.group.items):
        return None
    site.line.label += texts
    alone = len(texts) == 1 and statistic([*site.key[-1:], texts[0]])  # attn_out (rms): 1.5
    return [*site.key, texts[0]] if alone else site.key


def _id_of_the_first_token(site: BracketSite) -> Keys | None:
    inner = site.group.items
    if len(inner) != 2 or not any(isinstance(p, Word) and p.text.lower() in ("id", "token") for p in inner):
        return None
    number = inner[1]
    if not isinstance(number, Number) or not number.whole or "bos" not in site.words:
        return None
    site.line.tokens = site.line.tokens or (int(number.value),)
    return site.key


def _name_and_layer(site: BracketSite) -> Keys | None:
    inner = site.group.items
    if len(inner) != 3 or inner[1] is not COMMA:
        return None
    texts = [p.text for p in inner if isinstance(p, Word)]
    whole = [p.text for p in inner if isinstance(p, Number) and p.whole]
    if len(texts) != 1 or len(whole) != 1 or not meaning([*texts, "layer", "0"], generic=False).nodes:
        return None
    called = site.group.bracket == "("
    count = called and not any(isinstance(p, Word) and p.quoted for p in inner)  # head(x, 5)
    known = called and (site.line.layer_known or meaning(site.line.label).layer is not None)
    site.line.label += texts if known or count else [*texts, "layer", *whole]
    return site.key


def _anything_else(site: BracketSite) -> Keys:
    line, inner = site.line, list(site.group.items)
    around, row = line.outer_words, line.slice_row
    line.outer_words = (*around, *line.label[line.value_start :][-8:]) if len(around) < 24 else around
    line.value_start = len(line.label) if sum(1 for p in inner if p is ASSIGN) > 1 else line.value_start
    rest = site.walk(inner, line, list(site.key))
    line.outer_words, line.slice_row = around, row
    labelled = site.after and isinstance(site.after[0], Number) and statistic(site.key)  # rms{layer="0"} 1.5
    return list(site.key) if labelled else rest


BRACKET_RULES: RuleTable[BracketSite, Keys] = RuleTable(
    "bracket",
    Rule("options of a call", 260, "layer 0 h.norm(p=2) 1.25\n", ("l_out-0 norm 1.25",), _options_of_a_call),
    Rule(
        "number at the start", 250, "[1] attn_norm: [0.5, 1.5]\n", ("attn_norm-1 first 0.5 1.5",), _number_at_the_start
    ),
    Rule(
        "length of an array",
        240,
        "block output Float32Array(2): [0.5, 1.5]\n",
        ("l_out-0 first 0.5 1.5",),
        _length_of_an_array,
    ),
    Rule("length of a slice", 230, "layer 0 x.suffix(2) = [0.5, 1.5]\n", ("l_out-0 last 0.5 1.5",), _length_of_a_slice),
    Rule(
        "list of hidden states",
        220,
        "out.hidden_states[0]: [0.5, 1.5]\n",
        ("hidden_states.0 first 0.5 1.5",),
        _list_of_hidden_states,
    ),
    Rule("one element", 210, "layer 0 out[3] = 0.5\n", ("l_out-0 at 3:0.5",), _one_element),
    Rule(
        "number of a layer",
        200,
        "attn_out[1] = [0.5, 1.5]\n",
        ("attn_out-1|kqv_out-1|ffn_inp-1 first 0.5 1.5",),
        _number_of_a_layer,
        also=_row_in_place_of_a_layer,
    ),
    Rule(
        "number of a token",
        190,
        "layer 0 out token[2] = 0.5, 1.5\n",
        ("l_out-0 first 0.5 1.5 row? 2",),
        _number_of_a_token,
    ),
    Rule("one token id", 180, "bos (1)\nlayer 0: [0.5, 1.5]\n", ("tokens 1", "l_out-0 first 0.5 1.5"), _one_token_id),
    Rule(
        "element named before its value",
        170,
        "layer 0 x[3] after attention = 0.5\n",
        ("ffn_inp-0|attn_out-0|kqv_out-0 at 3:0.5",),
        _element_named_before_its_value,
    ),
    Rule("unexplained index", 160, "frob(1) = 0.5, 1.5\n", ("? first 0.5 1.5 numbers 1",), _unexplained_index),
    Rule("range", 150, "ids[0..2] of layer 0: 0.5 1.5\n", ("l_out-0 at 0:0.5 2:1.5",), _range),
    Rule("slice", 140, "layer 0 out[-1, :2]: 0.5 1.5\n", ("l_out-0 first 0.5 1.5 row -1",), _slice),
    Rule(
        "whole numbers",
        130,
        "tokens: [1, 300]\nlayer 0: [0.5, 1.5]\n",
        ("tokens 1 300", "l_out-0 first 0.5 1.5"),
        _whole_numbers,
    ),
    Rule(
        "smallest and largest",
        120,
        "layer 0 out range [-1.5, 2.5]\n",
        ("l_out-0 min -1.5", "l_out-0 max 2.5"),
        _smallest_and_largest,
    ),
    Rule(
        "id and logit",
        110,
        "candidates [2, 9.5] [13, 8.25]\n",
        ("result_output top 2:9.5", "result_output top 13:8.25"),
        _id_and_logit,
    ),
    Rule(
        "statistics in order",
        100,
        "layer 0 out min/max: [-1.5, 2.5]\n",
        ("l_out-0 min -1.5", "l_out-0 max 2.5"),
        _statistics_in_order,
    ),
    Rule("list", 90, "layer 0 out: [0.5]\n", ("l_out-0 first 0.5",), _list),
    Rule(
        "rows",
        80,
        "layer 0 out: [[0.5, 1.5], [2.5, 3.5]]\n",
        ("l_out-0 first 0.5 1.5 row 0", "l_out-0 first 2.5 3.5 row 1"),
        _rows,
    ),
    Rule(
        "matrices",
        75,
        "layer 0 v: [[[0.5, 1.5], [2.5, 3.5]], [[4.5, 5.5], [6.5, 7.5]]]\n",
        (
            "Vcur-0 first 0.5 1.5 row 0 of 0",
            "Vcur-0 first 2.5 3.5 row 1 of 0",
            "Vcur-0 first 4.5 5.5 row 0 of 1",
            "Vcur-0 first 6.5 7.5 row 1 of 1",
        ),
        _matrices,
    ),
    Rule("pairs", 70, "logits: [(2, 'the', 9.5), (13, 'of', 8.25)]\n", ("result_output top 2:9.5 13:8.25",), _pairs),
    Rule("last in brackets", 60, "layer 0 out (last): 0.5 1.5\n", ("l_out-0 first 0.5 1.5 row -1",), _last_in_brackets),
    Rule("remark", 50, "shape (tokens) 8 64\nlayer 0 out: 0.5 1.5\n", ("l_out-0 first 0.5 1.5",), _remark),
    Rule(
        "id of the first token",
        40,
        "bos (id 1)\nlayer 0: [0.5, 1.5]\n",
        ("tokens 1", "l_out-0 first 0.5 1.5"),
        _id_of_the_first_token,
    ),
    Rule("name and layer", 30, 'cache["ffn_out", 1] = [0.5, 1.5]\n', ("ffn_out-1 first 0.5 1.5",), _name_and_layer),
    Rule("anything else", 0, "layer 0 {out: 0.5 1.5}\n", ("l_out-0 first 0.5 1.5",), _anything_else),
)
