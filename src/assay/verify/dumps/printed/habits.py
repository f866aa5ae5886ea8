"""Habits of printing from outside: the caller's `--pattern`, and rules that other packages register.

They are tried before the reader's own rules. The first that gives an observation of a node takes the line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from assay.verify.dumps.observation import STATISTICS, Observation
from assay.verify.dumps.printed.brackets import quoted_pairs
from assay.verify.dumps.printed.headings import HeadingStack
from assay.verify.dumps.printed.lexer import Bracket, NumberList, Word, lex, listed
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.statement_observations import observations_of
from assay.verify.dumps.printed.statements import Statement

log = logging.getLogger("assay.plugins")


@dataclass(frozen=True)
class LineSite:
    """A line without its logger's prefix, and the headings above it."""

    line: str
    context: HeadingStack


HABITS: RuleTable[LineSite, Sequence[Statement]] = RuleTable("habit")


def register_rule(rule: Rule[LineSite, Sequence[Statement]]) -> None:
    """Teach the reader a habit of printing. A taken name or priority raises a ValueError."""
    HABITS.add(rule)


def pattern_rule(
    name: str, pattern: str, *, example: str, yields: Sequence[str], priority: int = 0
) -> Rule[LineSite, Sequence[Statement]]:
    """A rule from the text of a `--pattern`: `L{layer} {name} rms={rms}`."""
    compiled = Pattern(pattern)

    def read(site: LineSite) -> Sequence[Statement] | None:
        holes = compiled.match(site.line)
        return None if holes is None else [_filled(compiled, holes)]

    return Rule(name, priority, example, tuple(yields), read)


def by_habit(
    patterns: Sequence[Pattern], line: str, context: HeadingStack, where: str
) -> tuple[list[Observation], tuple[int, ...]] | None:
    """The observations and the token ids that the first fitting pattern or habit finds in a line."""
    for statements in _candidates(patterns, LineSite(line, context)):
        tokens = next((statement.tokens for statement in statements if statement.tokens), ())
        found = [o for statement in statements for o in observations_of(statement, context, where) if o.name]
        if found or tokens:
            return found, tokens
    return None


def _candidates(patterns: Sequence[Pattern], site: LineSite) -> Iterator[Sequence[Statement]]:
    for pattern in patterns:
        if (holes := pattern.match(site.line)) is not None:
            yield [_filled(pattern, holes)]
    for rule in HABITS:
        if (found := _read(rule, site)) is not None:
            yield found


def _read(rule: Rule[LineSite, Sequence[Statement]], site: LineSite) -> Sequence[Statement] | None:
    """A rule of another package that fails does not apply, so that the reader's own rules read the line."""
    try:
        return rule.read(site)
    except Exception as error:  # the code of another package may raise anything
        _warn_once(rule.name, f"{type(error).__name__}: {error}")
        return None


@cache
def _warn_once(rule: str, reason: str) -> None:
    log.warning("rule %s: it failed and is left out (%s)", rule, reason)


def _filled(pattern: Pattern, holes: dict[str, str]) -> Statement:
    """The statement that the holes of a pattern make."""
    statement = Statement()
    if "tokens" in holes:
        statement.tokens = tuple(int(n.value) for n in Bracket("[", lex(holes["tokens"])).numbers() if n.whole)
        return statement
    if "name" in holes:
        statement.label.append(holes["name"].strip())
    elif "layer" in holes:
        statement.label += [p.text for p in lex(pattern.literal) if isinstance(p, Word)]
    statement.layer = int(holes["layer"]) if "layer" in holes else None
    statement.row = int(holes["row"]) if "row" in holes else None
    statement.side = holes.get("side", "")
    for kind in STATISTICS:
        if kind in holes:
            for n in Bracket("[", lex(holes[kind])).numbers():
                statement.add(kind, n)
    for kind in ("first", "last"):
        if kind in holes and isinstance(values := listed(lex(holes[kind])), NumberList):
            statement.add("list", values, [kind])
    if "top" in holes:
        statement.add("top", quoted_pairs(Bracket("[", lex(holes["top"]))))
    for i, v in (("id", "logit"), ("index", "value")):
        if i in holes and v in holes:
            (n,) = Bracket("[", lex(holes[v])).numbers()
            statement.add("at", ((int(holes[i]), n),))
            statement.label.append("logit" if i == "id" else "")
    return statement
