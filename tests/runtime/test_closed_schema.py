"""Objects of a schema are closed, unless the schema speaks of other keys."""

from __future__ import annotations

from typing import Any

import pytest

from assay.runtime.closed_schema import closed

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
SHUT = A | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (A, SHUT),
        ({"type": "object"}, {"type": "object"}),  # any object
        (A | {"additionalProperties": True}, A | {"additionalProperties": True}),
        (A | {"patternProperties": {"^x": A}}, A | {"patternProperties": {"^x": SHUT}}),
        ({"items": A}, {"items": SHUT}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a"}, {"$defs": {"a": SHUT}, "$ref": "#/$defs/a"}),
        ({"properties": {"properties": A}}, {"properties": {"properties": SHUT}, "additionalProperties": False}),
        ({"const": A, "default": A}, {"const": A, "default": A}),  # values, not schemas
        ({"allOf": [A, {"properties": {"b": {}}}]}, {"allOf": [A, {"properties": {"b": {}}}]}),
        ({"items": A, "not": A}, {"items": A, "not": A}),
        ({"properties": 3, "anyOf": 4, "items": None}, {"properties": 3, "anyOf": 4, "items": None}),
    ],
)
def test_closed(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert closed(schema) == wanted
