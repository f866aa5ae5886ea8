"""JSON schemas whose objects are closed: keys that `properties` does not name are not allowed.

JSON Schema allows further keys unless `additionalProperties` forbids them. A model that may write any key writes
surplus keys. A schema that says nothing about further keys therefore forbids them here, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
# Keywords that decide about other keys of an object, so that it is not closed.
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "$ref")
# Keywords whose schemas hold for one object together with others. A closed part would refuse the keys of another part,
# so a schema with one of them stays as it is.
_TOGETHER = ("not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef")


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with every object closed that lists its properties and does not say what else it may have."""
    return schema if _joins(schema) else _closed(schema)


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    found = [schema[key] for key in _ONE if key in schema]
    for key in _LIST:
        found += schema[key] if isinstance(schema.get(key), list) else ()
    for key in _NAMED:
        found += schema[key].values() if isinstance(schema.get(key), Mapping) else ()
    return found


def _joins(schema: Any) -> bool:
    """Whether a schema has parts that hold for one object together."""
    if not isinstance(schema, Mapping):
        return False
    several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
    return several or any(key in schema for key in _TOGETHER) or any(map(_joins, _parts(schema)))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for key in _ONE:
        if key in found:
            found[key] = _closed(found[key])
    for key in _LIST:
        if isinstance(found.get(key), list):
            found[key] = [_closed(part) for part in found[key]]
    for key in _NAMED:
        if isinstance(found.get(key), Mapping):
            found[key] = {name: _closed(part) for name, part in found[key].items()}
    if isinstance(found.get("properties"), Mapping) and not any(key in found for key in _OPENING):
        found["additionalProperties"] = False
    return found
