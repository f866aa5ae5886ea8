"""Parses the lexemes of one line into a statement: words, and values (lists, statistics, ids with logits).

Nodes are decided later. Whole numbers that belong to no value stay among the words, in their place: a layer's number,
a token's row and a count look alike until the words around them are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, MAYBE_ROW, ROW
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import STATISTIC_WORDS, statistic
from assay.verify.dumps.printed.bracket_rules import BRACKET_RULES, BracketSite
from assay.verify.dumps.printed.brackets import (
    elements_from,
    is_count,
    layers_beside,
    number_first,
    pairs_from,
    plain,
    ranked,
    vectors,
)
from assay.verify.dumps.printed.lexer import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    Bracket,
    Lexeme,
    Mark,
    Number,
    Word,
)
from assay.verify.dumps.printed.number_runs import TOKENS, add_run, name_open_statistics, run_from
from assay.verify.dumps.printed.rule_rows import Doubts, Rule, RuleTable
from assay.verify.dumps.printed.statements import RECORD, Statement

NOT_SIDES = {
    "first", "last", "values", "value", "data", "tensor", "array", "float", "stats", "shape", "top", "range", "result",
    "results", "differences", "actual", "wrong", "right", "expected", "note", "analysis", "conclusion", "head", "tail",
    "sample", "vals", "samples", "output", "input", "out", "vec", "buf", "debug", "info", "res", "ret", "ans", "tmp",
    "got", "act", "acts", "activations", "probe", "trace", "dump",
}  # fmt: skip
_TOP = {"logit", "logits", "top", "id", "ids", "best", "tokens", "candidates"}
_ARRAY_MAKERS = {"tensor", "array", "vec", "vector", "list", "float32", "ndarray", "parameter", "arr", "slice", "f32"}


def parse_line(
    lexemes: Sequence[Lexeme], sides: set[str], layer_known: bool = False, second: frozenset[str] = frozenset()
) -> Statement:
    """The statement of a line. `layer_known`: the headings give the layer, so that an index counts elements.

    `second` are rules of which the second reading is wanted.
    """
    line = Statement(layer_known=layer_known, doubts=Doubts(second))
    lexemes = plain(lexemes)
    number, skip = number_first(lexemes)
    if number is not None:
        line.label += ["layer", str(number)]
    _walk(list(lexemes[skip:]), line, [])
    line.items = layers_beside(vectors(ranked(lexemes, line.items)))
    name_open_statistics(line)
    if line.label[:1] and line.label[0][:2] == "k_":  # [k_rmsnorm] layer 0 attn_norm: a kernel, no key
        named = meaning([*line.label[1:], "layer", "0"], generic=False).nodes
        line.label[0] = line.label[0][2:] if named and named != ("l_out-",) else line.label[0]
    side = _side(lexemes)
    if side and (side in sides or not meaning([side]).role):
        line.side = side
    return line


@dataclass
class LexemeSite:
    """A lexeme at its place in a line; `key` are the words since the last value or comma."""

    lexemes: list[Lexeme]
    at: int
    key: list[str]
    line: Statement

    @property
    def lexeme(self) -> Lexeme:
        return self.lexemes[self.at]

    @property
    def sign(self) -> str:
        """The text of a mark; empty for another lexeme."""
        return self.lexeme.text if isinstance(self.lexeme, Mark) else ""

    def follows(self, n: int = 1) -> Lexeme | None:
        """The nth lexeme behind it."""
        return self.lexemes[self.at + n] if self.at + n < len(self.lexemes) else None


Step = tuple[list[str], int]  # the words that wait for a value, and the place of the next lexeme


def _walk(lexemes: list[Lexeme], line: Statement, key: list[str]) -> list[str]:
    """Read lexemes one after the other, each by the first rule that applies; skip a lexeme without a rule."""
    at = 0
    while at < len(lexemes):
        key, at = LEXEME_RULES.first(LexemeSite(lexemes, at, key, line)) or (key, at + 1)
    return key


def _key_of_a_record(site: LexemeSite) -> Step | None:
    word = site.lexeme
    if not isinstance(word, Word) or word.text.lower() not in RECORD:
        return None
    if site.follows() is not ASSIGN or not isinstance(site.follows(2), Word):
        return None
    site.line.is_record = True
    return site.key, site.at + 1


def _word(site: LexemeSite) -> Step | None:
    if not isinstance(site.lexeme, Word):
        return None
    site.line.label.append(site.lexeme.text)
    site.key.append(site.lexeme.text)
    return site.key, site.at + 1


def _no_layer(site: LexemeSite) -> Step | None:
    null = isinstance(site.lexeme, Number) and site.lexeme.text in ("null", "None")
    if not null or not site.key or not set(split_words(site.key[-1:])) & (LAYERS | ROW | MAYBE_ROW):
        return None
    site.line.label.pop()
    return site.key[:-1], site.at + 1


def _ids_with_logits(site: LexemeSite) -> Step | None:
    pairs, past = pairs_from(site.lexemes, site.at) if isinstance(site.lexeme, Number) else ((), 0)
    if not pairs:
        return None
    site.line.add("at" if _elements(pairs, site.line) else "top", pairs, site.key)
    return [], past


def _layer_before_values(site: LexemeSite) -> Step | None:
    leads = isinstance(site.lexeme, Number) and _leads(site.lexemes, site.at, site.line)
    return (site.key, site.at + 2) if leads else None


def _numbers(site: LexemeSite) -> Step | None:
    lexemes, key = site.lexemes, site.key
    if not isinstance(site.lexeme, Number):
        return None
    run, past = run_from(lexemes, site.at, key, site.line)
    if len(run) == 1 and is_count(lexemes, past - 1):
        return key, past  # "layer 1 of 3", "1/3"
    at = past - len(run)
    apart = at > 2 and lexemes[at - 3] is ASSIGN  # layer 0 output: norm=1.5
    add_run(run, key, site.line, assigned=at > 0 and lexemes[at - 1] is ASSIGN, apart=apart)
    counts = len(run) == 1 and bool(key) and key[-1].lower() in ("first", "last", "top")  # "first 5 values"
    return ([*key, run[0].text] if counts and isinstance(run[0], Number) else []), past


def _elements_by_index(site: LexemeSite) -> Step | None:
    elements = elements_from(site.lexemes, site.at) if isinstance(site.lexeme, Bracket) and site.line.label else ()
    if not elements:
        return None
    site.line.add("at", elements, site.key)
    return [], site.at + 2 * len(elements)


def _bracket(site: LexemeSite) -> Step | None:
    group, lexemes, line, i = site.lexeme, site.lexemes, site.line, site.at
    if not isinstance(group, Bracket):
        return None
    before = len(line.items)
    key = BRACKET_RULES.first(BracketSite(group, lexemes[i + 1 : i + 5], site.key, line, _walk), line.doubts) or []
    taken = len(line.items) > before and line.items[-1].kind == "at" and len(lexemes) > i + 2
    if taken and line.items[-1].data[0][1] is lexemes[i + 2]:
        i += 2  # x[3] = 0.5: the value is taken
    return key, i + 1


def _separator(site: LexemeSite) -> Step | None:
    if site.lexeme is not COMMA and site.lexeme is not BAR:
        return None
    goes_on = any(w.lower() in ("first", "last", "values", "vals", "head") or statistic([w]) for w in site.key[-8:])
    return (site.key if goes_on else []), site.at + 1  # "first 5 values, last row: [...]", "min, max = …"


def _at_the_last_row(site: LexemeSite) -> Step | None:
    if site.sign != "@" or site.follows() != Word("last"):
        return None
    site.line.row = -1
    return site.key, site.at + 2


def _length_in_a_debugger(site: LexemeSite) -> Step | None:
    number = site.at + 2 == len(site.lexemes) and isinstance(site.follows(), Number)
    return (site.key, site.at + 2) if site.sign == "@" and number and "p" in site.line.label[:1] else None


def _product(site: LexemeSite) -> Step | None:
    if site.sign != "@" or not site.line.label:
        return None
    site.line.label.append("times")
    return site.key, site.at + 1


def _both_ends(site: LexemeSite) -> Step | None:
    line = site.line
    listed = site.lexeme is DOTS and line.items and line.items[-1].kind == "list"
    if not listed or not _list_follows(site.lexemes, site.at):
        return None
    line.from_end = True
    return site.key, site.at + 1


def _sum(site: LexemeSite) -> Step | None:
    if site.sign != "+" or not (site.line.label or isinstance(site.follows(), Word)):
        return None
    site.line.label.append("plus")
    return site.key, site.at + 1


LEXEME_RULES: RuleTable[LexemeSite, Step] = RuleTable(
    "lexeme",
    Rule("key of a record", 140, 'layer=0 name="w1" v=[0.5, 1.5]\n', ("ffn_gate-0 first 0.5 1.5",), _key_of_a_record),
    Rule("word", 130, "layer 0 out: 0.5 1.5\n", ("l_out-0 first 0.5 1.5",), _word),
    Rule("no layer", 120, "embedding layer null 0.5 1.5\n", ("embd first 0.5 1.5",), _no_layer),
    Rule("ids with logits", 110, "top: 2:9.5, 13:8.25\n", ("result_output top 2:9.5 13:8.25",), _ids_with_logits),
    Rule(
        "layer before values",
        100,
        "attn_out,1,0.5,0.25,0.125\n",
        ("attn_out-1|kqv_out-1|ffn_inp-1 first 0.5 0.25 0.125",),
        _layer_before_values,
    ),
    Rule("numbers", 90, "layer 0 out 0.5 1.5\n", ("l_out-0 first 0.5 1.5",), _numbers),
    Rule("elements by index", 80, "layer 0 out [0] 0.5 [1] 1.5\n", ("l_out-0 at 0:0.5 1:1.5",), _elements_by_index),
    Rule("bracket", 70, "layer 0 out [0.5, 1.5]\n", ("l_out-0 first 0.5 1.5",), _bracket),
    Rule("separator", 60, "prompt, shape 3 4\nlayer 0 out: 0.5 1.5\n", ("l_out-0 first 0.5 1.5",), _separator),
    Rule("at the last row", 50, "layer 0 out @last: 0.5 1.5\n", ("l_out-0 first 0.5 1.5 row -1",), _at_the_last_row),
    Rule(
        "length in a debugger",
        40,
        "layer 0:\np *s->v@2\n$1 = {0.5, 1.5}\n",
        ("Vcur-0 first 0.5 1.5",),
        _length_in_a_debugger,
    ),
    Rule("product", 30, "layer 0 attn @ v: 0.5 1.5\n", ("kqv_out-0 first 0.5 1.5",), _product),
    Rule(
        "both ends",
        20,
        "layer 0 out: [0.5, 1.5] ... [2.5, 3.5]\n",
        ("l_out-0 first 0.5 1.5", "l_out-0 last 2.5 3.5"),
        _both_ends,
    ),
    Rule("sum", 10, "layer 0 x + attn(x): 0.5 1.5\n", ("ffn_inp-0 first 0.5 1.5",), _sum),
)


def _elements(pairs: Sequence[tuple[int, Number]], line: Statement) -> bool:
    """Whether `0:1.5 1:2.5` are elements of a row, rather than ids with logits, which are sorted by logit."""
    ordered = [i for i, _ in pairs] == list(range(len(pairs)))
    falls = all(a.value >= b.value for (_, a), (_, b) in pairwise(pairs))
    best = bool(set(split_words(line.label)) & _TOP)
    return (
        ordered
        and not (best and falls)
        and (len(pairs) > 2 or line.layer_known or meaning(line.label).layer is not None)
    )


def _list_follows(lexemes: Sequence[Lexeme], i: int) -> bool:
    rest = [p for p in lexemes[i + 1 : i + 3] if p != Mark("@")]  # @[1.5] ... @[2.5]
    return bool(rest) and isinstance(rest[0], Bracket)


def _leads(lexemes: Sequence[Lexeme], i: int, line: Statement) -> bool:
    """A layer's number between a name and its values: `attn_out,0,0.5,0.25,…`."""
    first, rest = lexemes[i], lexemes[i + 1 : i + 6]
    if not (isinstance(first, Number) and first.whole and first.value >= 0 and len(rest) > 3 and rest[0] is COMMA):
        return False
    numbers = [p for p in rest[1:] if isinstance(p, Number)]
    if len(numbers) < 2 or any(n.whole for n in numbers) or line.items or not line.label:
        return False
    about = meaning(line.label)
    if not about.nodes or not about.nodes[0].endswith("-") or about.layer is not None or about.verbatim:
        return False
    line.label += ["layer", first.text]
    return True


def _side(lexemes: Sequence[Lexeme]) -> str:
    """The engine's name: a single word before a colon and a list."""
    flat = [p for p in lexemes if not (isinstance(p, Mark) and p.text == "*")]
    if len(flat) >= 3 and isinstance(flat[0], Word) and flat[1] is ASSIGN and isinstance(flat[2], Bracket):
        word = flat[0].text
        parts = split_words([word])
        plain = not set(parts) & (NOT_SIDES | TOKENS | LAYER | ROW | MAYBE_ROW | set(STATISTIC_WORDS) | _ARRAY_MAKERS)
        if plain and not flat[0].quoted and len(word) > 2:
            return word
    return ""
