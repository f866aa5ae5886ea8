"""Every rule of the reader of prints, on its own example: what the row says is read, and not without the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.verify.dumps.naming.node_words import ENDS, IN_LAYERS, NodeWords
from assay.verify.dumps.naming.phrases import meaning
from assay.verify.dumps.printed.bracket_rules import BRACKET_RULES
from assay.verify.dumps.printed.columns import COLUMN_RULES
from assay.verify.dumps.printed.habits import HABITS, pattern_rule, register_rule
from assay.verify.dumps.printed.heading_rules import HEADING_RULES
from assay.verify.dumps.printed.line_parser import LEXEME_RULES
from assay.verify.dumps.printed.line_prefixes import PREFIX_RULES
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.number_runs import NUMBER_RULES
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.subjects import SUBJECT_RULES

TABLES: tuple[RuleTable[Any, Any], ...] = (
    PREFIX_RULES, LEXEME_RULES, BRACKET_RULES, NUMBER_RULES, COLUMN_RULES, SUBJECT_RULES, HEADING_RULES,
)  # fmt: skip
ROWS = [pytest.param(table, rule, id=f"{table.stage}: {rule.name}") for table in TABLES for rule in table]


def read(text: str) -> tuple[str, ...]:
    """A log as the rows of the tables write it: its token ids, then an observation a line."""
    dump = read_log(Path("x.log"), text=text)
    tokens = ["tokens " + " ".join(map(str, dump.tokens))] if dump.tokens else []
    return tuple(tokens + [obs.summary for obs in (*dump.observations, *dump.unread)])


@pytest.mark.parametrize(("table", "rule"), ROWS)
def test_the_example_of_a_rule_yields_what_its_row_says(table: RuleTable[Any, Any], rule: Rule[Any, Any]) -> None:
    assert read(rule.example) == rule.yields


@pytest.mark.parametrize(("table", "rule"), ROWS)
def test_without_the_rule_its_example_is_read_otherwise(table: RuleTable[Any, Any], rule: Rule[Any, Any]) -> None:
    table.remove(rule.name)
    try:
        assert read(rule.example) != rule.yields
    finally:
        table.add(rule)


@pytest.mark.parametrize("row", IN_LAYERS, ids=lambda row: row.example)
def test_words_inside_a_layer_name_their_nodes(row: NodeWords) -> None:
    assert meaning([*row.example.split(), "layer", "0"], generic=False).nodes == row.nodes


@pytest.mark.parametrize("row", ENDS, ids=lambda row: row.example)
def test_words_without_a_layer_name_their_nodes(row: NodeWords) -> None:
    assert meaning(row.example.split()).nodes == row.nodes


@pytest.mark.parametrize("rows", [IN_LAYERS, ENDS], ids=["in layers", "ends"])
def test_priorities_of_words_are_unique(rows: tuple[NodeWords, ...]) -> None:
    assert len({row.priority for row in rows}) == len(rows)


@pytest.fixture
def habit() -> Iterator[Rule[Any, Any]]:
    rule = pattern_rule(
        "frobnicator",
        "frob={layer} of {name} is {rms}",
        example="frob=1 of ffn_out is 2.5\n",
        yields=("ffn_out-1 rms 2.5",),
    )
    yield rule
    HABITS.remove(rule.name)


def test_another_package_adds_a_habit(habit: Rule[Any, Any]) -> None:
    assert read(habit.example) != habit.yields
    register_rule(habit)
    assert read(habit.example) == habit.yields


def test_two_rules_do_not_share_a_name_or_a_priority(habit: Rule[Any, Any]) -> None:
    register_rule(habit)
    with pytest.raises(ValueError, match="is taken by 'frobnicator'"):
        register_rule(habit)
