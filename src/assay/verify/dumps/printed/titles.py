"""Values whose kind stands in a line above: "rms of every layer" as a title, "top 5 logits" as a heading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from assay.verify.dumps.naming.phrases import split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.bracket_rules import TOP_WORDS
from assay.verify.dumps.printed.brackets import Quantity
from assay.verify.dumps.printed.headings import HeadingStack
from assay.verify.dumps.printed.lexer import NumberList, Word, lex


def with_title(items: list[Quantity], context: HeadingStack, titles: Sequence[str]) -> list[Quantity]:
    """Give open numbers the statistic that a title names; drop them if none does."""
    if len(items) == 1 and items[0].kind == "list" and isinstance(items[0].data, NumberList):
        return _named_together(items[0], items[0].data, [*titles, " ".join(context.words)][-2:])
    if all(i.kind != "?" for i in items):
        return items
    kind = title_statistic([*titles, " ".join(context.words)])
    return [replace(i, kind=kind) if i.kind == "?" else i for i in items if i.kind != "?" or kind]


_CALLED = re.compile(r"\.(\w{1,12})\(")
_TOGETHER = re.compile(r"[\w.]{1,12}(?:\s?[/,|]\s?[\w.]{1,12}){1,7}")


def _named_together(item: Quantity, values: NumberList, titles: Sequence[str]) -> list[Quantity]:
    """One statistic a number, if a title names as many: "layer outputs, mean / std" above "layer 0: 0.1 / 1.2"."""
    for title in reversed(titles):
        calls = [k for name in _CALLED.findall(title[:400]) if (k := statistic([name]))]
        if len(calls) == len(values.all) > 1 and not values.elided:  # logits[-1].max(), logits[-1].min()
            return [replace(item, kind=k, data=n) for k, n in zip(calls, values.all, strict=True)]
        for m in _TOGETHER.finditer(title[:400]):
            kinds = [statistic([part]) for part in re.split(r"\s?[/,|]\s?", m[0])]
            while kinds and kinds[0] is None:
                kinds = kinds[1:]
            if len(kinds) > 1 and None not in kinds and len(kinds) == len(values.all) and not values.elided:
                return [replace(item, kind=str(k), data=n) for k, n in zip(kinds, values.all, strict=True)]
    return [item]


def with_ids(items: list[Quantity], context: HeadingStack) -> list[Quantity]:
    """Below "top 5 logits", two numbers are an id and its logit; three begin with a rank."""
    if (
        len(items) != 1
        or context.subject.nodes != ("result_output",)
        or not set(split_words(context.words)) & TOP_WORDS
    ):
        return items
    values = items[0].data
    if items[0].kind != "list" or not isinstance(values, NumberList) or values.last or not 1 < len(values.first) < 4:
        return items
    *whole, value = values.first
    if value.whole or not all(n.whole and n.value >= 0 for n in whole):
        return items
    return [replace(items[0], kind="top", data=((int(whole[-1].value), value),))]


def title_statistic(titles: Sequence[str]) -> str:
    """The statistic named by the latest of these lines."""
    for title in reversed(titles):
        words = [p.text for p in lex(title) if isinstance(p, Word)]
        named = (k for i in range(len(words)) for n in (2, 1) if (k := statistic(words[i : i + n])))
        if kind := next(named, ""):
            return kind
    return ""
