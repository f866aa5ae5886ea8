"""Every filter, test and global that Jinja documents works in the sandbox, or fails with one line."""

from __future__ import annotations

import jinja2.filters
import jinja2.tests
import pytest

from assay.errors import AssayError
from assay.text import ChatTemplate

FILTERS = {
    "abs": ("-1|abs", "1"), "attr": ("'a'|attr('x')", ""), "batch": ("[1, 2, 3]|batch(2)|list", "[[1, 2], [3]]"),
    "capitalize": ("'ab'|capitalize", "Ab"), "center": ("'a'|center(3)", " a "), "count": ("[1]|count", "1"),
    "d": ("x|d(1)", "1"), "default": ("x|default(1)", "1"), "dictsort": ("{'a': 1}|dictsort", "[('a', 1)]"),
    "e": ("'<'|e", "&lt;"), "escape": ("'<'|escape", "&lt;"), "filesizeformat": ("1000|filesizeformat", "1.0 kB"),
    "first": ("[1]|first", "1"), "float": ("'1'|float", "1.0"), "forceescape": ("'<'|forceescape", "&lt;"),
    "format": ("'%s!'|format(1)", "1!"), "groupby": ("[{'a': 1}]|groupby('a')|length", "1"),
    "indent": ("'a\\nb'|indent(1)", "a\n b"), "int": ("'1'|int", "1"), "items": ("{'a': 1}|items|list", "[('a', 1)]"),
    "join": ("[1, 2]|join", "12"), "last": ("[1]|last", "1"), "length": ("[1]|length", "1"),
    "list": ("'a'|list", "['a']"),
    "lower": ("'A'|lower", "a"), "map": ("['a']|map('upper')|list", "['A']"), "max": ("[1, 2]|max", "2"),
    "min": ("[1, 2]|min", "1"), "pprint": ("{'a': 1}|pprint", "{'a': 1}"), "random": ("[1]|random", "1"),
    "reject": ("[1]|reject('odd')|list", "[]"), "rejectattr": ("[{'a': 1}]|rejectattr('a')|list", "[]"),
    "replace": ("'a'|replace('a', 'b')", "b"), "reverse": ("[1, 2]|reverse|list", "[2, 1]"),
    "round": ("1.5|round", "2.0"),
    "safe": ("'a'|safe", "a"), "select": ("[1]|select('odd')|list", "[1]"),
    "selectattr": ("[{'a': 1}]|selectattr('a')|list", "[{'a': 1}]"), "slice": ("[1, 2]|slice(2)|list", "[[1], [2]]"),
    "sort": ("[2, 1]|sort", "[1, 2]"), "string": ("1|string", "1"), "striptags": ("'<a>b &amp; c'|striptags", "b & c"),
    "sum": ("[1, 2]|sum", "3"), "title": ("'ab c'|title", "Ab C"), "tojson": ("[1]|tojson", "[1]"),
    "trim": ("' a '|trim", "a"), "truncate": ("'a b c d e f'|truncate(5, leeway=0)", "a..."),
    "unique": ("[1, 1]|unique|list", "[1]"), "upper": ("'a'|upper", "A"), "urlencode": ("'a b'|urlencode", "a%20b"),
    "urlize": ("'a.b'|urlize", "a.b"), "wordcount": ("'a b'|wordcount", "2"),
    "wordwrap": ("'a b c'|wordwrap(3)", "a b\nc"),
    "xmlattr": ("{'a': 1}|xmlattr", ' a="1"'),
}  # fmt: skip
TESTS = {
    "boolean": "true", "callable": "range", "defined": "1", "divisibleby": "4 is divisibleby 2", "eq": "1 is eq 1",
    "equalto": "1 is equalto 1", "escaped": "('a'|e)", "even": "2", "false": "false", "filter": "'upper'",
    "float": "1.5",
    "ge": "1 is ge 1", "greaterthan": "2 is greaterthan 1", "gt": "2 is gt 1", "in": "1 is in [1]", "integer": "1",
    "iterable": "[]", "le": "1 is le 1", "lessthan": "1 is lessthan 2", "lower": "'a'", "lt": "1 is lt 2",
    "mapping": "{}", "ne": "1 is ne 2", "none": "none", "number": "1", "odd": "1", "sameas": "none is sameas none",
    "sequence": "[]", "string": "''", "test": "'odd'", "true": "true", "undefined": "x", "upper": "'A'",
}  # fmt: skip
GLOBALS = {
    "cycler": "cycler(1, 2).next()", "dict": "dict(a=1).a", "joiner": "joiner()() ~ 1", "namespace": "namespace(a=1).a",
    "lipsum": "lipsum(1, html=false)|length > 20 and 1", "range": "range(1, 2)|first",
}  # fmt: skip


def render(expression: str, **options: float) -> str:
    return ChatTemplate("{{ " + expression + " }}", name="t").render([], **options)  # type: ignore[arg-type]


def test_the_tables_are_complete() -> None:
    assert FILTERS.keys() == jinja2.filters.FILTERS.keys()
    assert TESTS.keys() == {name for name in jinja2.tests.TESTS if name.isalpha()}
    assert GLOBALS.keys() == jinja2.Environment().globals.keys()


@pytest.mark.parametrize("name", FILTERS)
def test_filter(name: str) -> None:
    expression, expected = FILTERS[name]
    assert render(expression) == expected


@pytest.mark.parametrize("name", TESTS)
def test_test(name: str) -> None:
    given = TESTS[name]
    assert render(given if " is " in given else f"{given} is {name}") == "True"


@pytest.mark.parametrize("name", GLOBALS)
def test_global(name: str) -> None:
    assert render(GLOBALS[name]) == "1"


@pytest.mark.parametrize(
    "expression",
    [
        "'aaa'|wordwrap(0)", "'a'|center(10**12)", "[1]|batch(10**12, 'x')|list", "'%1000000000d'|format(1)",
        "('a' * 100000)|replace('a', 'b' * 100000)", "2 ** 50000", "(10 ** 5000)|tojson", "'1e999'|float|int",
        "(10 ** 400)|filesizeformat", "range(10 ** 9)|list", "{'a b': 1}|xmlattr", "{1: 2, 'a': 3}|dictsort",
        "[1]|map('nosuch')|list", "1|nosuch", "1 is nosuch", "1 is divisibleby 0", "lipsum(n=1, min=9, max=9)",
        "'a'.encode('idna')", "'%s'|format", "[1, 'a']|sort", "[1, 'a']|sum",
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(expression: str) -> None:
    try:
        render(expression)
    except AssayError as error:
        assert "\n" not in str(error) and "ModuleNotFound" not in str(error)
    assert render("1") == "1"


@pytest.mark.parametrize(
    "expression", ["lipsum(n=10**9)|length", "[1]|slice(10**9)|list", "('a' * 3000000)|wordwrap(1)|length"]
)
def test_a_filter_that_takes_long_is_ended(expression: str) -> None:
    with pytest.raises(AssayError, match=r"t: (gave no result within 0\.5 s|takes too much memory)"):
        render(expression, timeout=0.5)
