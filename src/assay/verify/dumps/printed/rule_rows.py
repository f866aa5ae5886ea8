"""The rows of which the reader of prints is made: a habit of printing, its example, and what the example means.

A rule is one row of a table. Tables try their rows by `priority`, the highest first, and the first row that applies
decides. The position of a row in the code means nothing. `tests/verify/dumps/test_rules.py` reads the example of every
row and compares the observations with `yields`. It also reads the example without the row: the result must differ.

To teach the reader a new habit, add a row to the table of its stage, or call `register_rule` from another package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Site = TypeVar("Site")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Rule(Generic[Site, Result]):
    """One habit. `read` returns None where the habit does not apply to the site.

    `also` is a second reading, where the text alone does not decide. The line is then read twice, and the values
    choose (`matching/by_values.py`). `example` is a whole log; `yields` are its observations (`Observation.summary`).
    """

    name: str
    priority: int
    example: str
    yields: tuple[str, ...]
    read: Callable[[Site], Result | None]
    also: Callable[[Site], Result | None] | None = None  # a second reading of the same text


@dataclass
class Doubts:
    """Rules that can read a line in two ways: those met in the line, and those whose second reading is to be taken."""

    second: frozenset[str] = frozenset()
    met: set[str] = field(default_factory=set)


class RuleTable(Generic[Site, Result]):
    """The rules of one stage, sorted by priority. Names and priorities are unique, so the order is never accidental."""

    def __init__(self, stage: str, *rules: Rule[Site, Result]) -> None:
        self.stage = stage
        self._rules: list[Rule[Site, Result]] = []
        for rule in rules:
            self.add(rule)

    def __iter__(self) -> Iterator[Rule[Site, Result]]:
        return iter(self._rules)

    def add(self, rule: Rule[Site, Result]) -> None:
        """Insert a rule at its priority."""
        for other in self._rules:
            if rule.name == other.name or rule.priority == other.priority:
                raise ValueError(
                    f"{self.stage} rule {rule.name!r}: name or priority {rule.priority} is taken by {other.name!r}; "
                    "choose another"
                )
        self._rules.append(rule)
        self._rules.sort(key=lambda r: -r.priority)

    def remove(self, name: str) -> None:
        """Take a rule out by its name."""
        self._rules = [rule for rule in self._rules if rule.name != name]

    def first(self, site: Site, doubts: Doubts | None = None) -> Result | None:
        """The result of the first rule that applies to the site; None if no rule applies.

        A rule with a second reading notes its name in `doubts.met`. Where `doubts.second` has the name, the second
        reading is taken.
        """
        for rule in self._rules:
            second = rule.also is not None and doubts is not None and rule.name in doubts.second
            found = rule.also(site) if second and rule.also else rule.read(site)
            if found is not None:
                if rule.also is not None and doubts is not None:
                    doubts.met.add(rule.name)
                return found
        return None
