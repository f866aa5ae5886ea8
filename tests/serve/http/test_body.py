"""Bodies: counted before they are parsed, limited, parsed alike by both decoders, errors bounded."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from assay.serve.api.routes import ROUTES
from assay.serve.api.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, Schema, TokenizeRequest
from assay.serve.api_errors import ApiError
from assay.serve.http.body import _PATIENT, _QUICK, Body, Intake, invalid, parse, parsed, read, validated
from assay.serve.http.json_counts import JsonCounts
from assay.serve.http.unknown_fields import unknown_fields
from assay.serve.limits import ServerLimits

LIMITS = ServerLimits()
TEXTS = st.text(st.one_of(st.sampled_from('"\\[]{},:\n\u0000é日🙂'), st.characters(codec="utf-8")), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def walked(text: bytes) -> tuple[int, int, int]:
    """Nodes, items and depth of a JSON text, by building all of it. An object is a tuple of its pairs."""

    def walk(value: Any) -> tuple[int, int, int]:
        if not isinstance(value, list | tuple):
            return int(isinstance(value, str)), 0, 0
        parts = [walk(item[1] if isinstance(value, tuple) else item) for item in value]
        keys = len(value) if isinstance(value, tuple) else 0
        nodes, items, depths = zip(*parts, strict=True) if parts else ((), (), ())
        return 1 + keys + sum(nodes), sum(items) + max(len(value) - 1, 0), 1 + max(depths, default=0)

    return walk(json.loads(text, object_pairs_hook=tuple))


def counted(text: bytes, cuts: list[int] | None = None) -> tuple[int, int, int]:
    counts, last = JsonCounts(), 0
    for cut in [*sorted(cuts or []), len(text)]:
        counts.feed(text[last:cut])
        last = max(cut, last)
    return counts.nodes, counts.items, counts.depth


@settings(max_examples=300, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 400), max_size=6))
def test_counts_are_those_of_the_parsed_value(value: Any, ascii: bool, indent: int | None, cuts: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    assert counted(text, [c for c in cuts if c <= len(text)]) == walked(text)


@settings(max_examples=300, deadline=None)
@given(st.text('"\\[]{},:1a ', max_size=60), st.integers(0, 60))
def test_nothing_that_a_parser_accepts_is_counted_wrongly(text: str, cut: int) -> None:
    raw = text.encode()
    try:
        found = walked(raw)
    except ValueError:
        return
    assert counted(raw, [min(cut, len(raw))]) == found


@settings(max_examples=200, deadline=None)
@given(VALUES, st.text('"\\[]{},:1a ', max_size=30))
def test_a_broken_end_hides_nothing(value: Any, rest: str) -> None:
    """What stands before the first error is what a parser builds: it is counted whatever follows."""
    whole = json.dumps(value).encode()
    assert all(a >= b for a, b in zip(counted(whole + rest.encode()), walked(whole), strict=True))


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_both_decoders_give_the_same(value: Any) -> None:
    text = json.dumps(value)
    assert repr(_PATIENT.decode(text)) == repr(_QUICK.decode(text)) == repr(value)


@pytest.mark.parametrize("bad", ["", "{", "[1,]", '{"a" 1}', "[NaN]", "[1e999]", '{"a":1,}', "[1 2]", "nul", '"\\x"'])
def test_both_decoders_refuse_the_same(bad: str) -> None:
    for decoder in (_PATIENT, _QUICK):
        with pytest.raises(ValueError):
            decoder.decode(bad)


def test_counting_takes_linear_time() -> None:
    """Backslashes, quotes, brackets: a megabyte of each in a moment."""
    for unit in (b"\\", b'"', b'\\\\"', b"[", b"[]", b'\\"[', b",", b"a"):
        for before in (b"", b'"'):
            started = time.perf_counter()
            counted(before + unit * ((1 << 20) // len(unit)))
            assert time.perf_counter() - started < 2


# --- limits before parsing


def hidden(n: int) -> bytes:
    """Nodes behind a text that ends with an escaped backslash."""
    return b'{"content": "\\\\", "x": [' + b"[]," * n + b"[]]}"


@pytest.mark.parametrize(
    "body",
    [
        hidden(70_000),
        b'{"prompt": [' + b'"a",' * 500_000 + b'"a"]}',
        b'{"x": {' + b",".join(b'"k%d":1' % i for i in range(70_000)) + b"}}",
        b'{"x": [' + b"1," * 400_000 + b"1]}",
        b"[" * 100_000,
        b'{"a":' * 5_000,
    ],
    ids=["hidden", "texts", "keys", "numbers", "arrays", "objects"],
)
def test_too_many_nodes_are_refused_before_they_are_built(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        parse(body, TokenizeRequest, LIMITS)
    assert error.value.code == "invalid_json" and "at most" in error.value.message


def test_honest_texts_with_brackets_are_accepted() -> None:
    for text in ('"[' * 100_000, "\\[{" * 100_000, '\\"' * 200_000, "[,{:" * 100_000, '"' * 500_000):
        found = parse(json.dumps({"content": text}).encode(), TokenizeRequest, LIMITS)
        assert isinstance(found, TokenizeRequest) and found.content == text


def test_the_largest_honest_bodies_are_accepted() -> None:
    ids = list(range(262_144))
    found = parse(json.dumps({"tokens": ids}).encode(), DetokenizeRequest, LIMITS)
    assert isinstance(found, DetokenizeRequest) and found.tokens == ids
    turns = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 5}] * 1024
    assert parse(json.dumps({"messages": turns}).encode(), ChatRequest, LIMITS)


def test_a_validator_is_built_with_its_first_requests() -> None:
    class Numbered(Schema):
        n: int

    assert not Numbered.__pydantic_complete__
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: parse(b'{"n": %d}' % n, Numbered, ServerLimits()), range(8)))
    assert [model.n for model in found] == list(range(8)) and Numbered.__pydantic_complete__


def test_other_encodings_are_refused() -> None:
    """Their bytes would be counted otherwise than parsed. A byte order mark is allowed."""
    body = {"content": "∢" * 100}  # in UTF-16, two bytes that are quotes
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        with pytest.raises(ApiError) as error:
            parse(json.dumps(body, ensure_ascii=False).encode(encoding), TokenizeRequest, LIMITS)
        assert error.value.code == "invalid_json"
    assert parse(json.dumps(body).encode("utf-8-sig"), TokenizeRequest, LIMITS)


# --- validation


def lists_of(schema: Any, seen: set[int]) -> list[dict[str, Any]]:
    """Every list and dictionary in a core schema."""
    found: list[dict[str, Any]] = []
    if isinstance(schema, dict):
        if id(schema) in seen:
            return []
        seen.add(id(schema))
        if schema.get("type") in ("list", "dict"):
            found.append(schema)
        for value in schema.values():
            found += lists_of(value, seen)
    elif isinstance(schema, list | tuple):
        for value in schema:
            found += lists_of(value, seen)
    return found


@pytest.mark.parametrize(
    "model",
    sorted({route.request for route in ROUTES if route.request}, key=lambda m: m.__name__),
    ids=lambda m: m.__name__,
)
def test_every_list_stops_at_its_first_error(model: Any) -> None:
    for schema in lists_of(model.__pydantic_core_schema__, set()):
        if schema["type"] == "list":
            assert schema.get("fail_fast") and "max_length" in schema, schema
        else:  # a dictionary of anything, or of few entries
            assert schema.get("values_schema", {"type": "any"})["type"] == "any" or schema.get("max_length"), schema


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": ["a"] * 60_000}),
        (CompletionRequest, {"prompt": [[]] * 60_000}),
        (CompletionRequest, {"prompt": [1.5] * 300_000}),
        (CompletionRequest, {"prompt": [[1.5] * 1000] * 64}),
        (CompletionRequest, {"prompt": "a", "stop": ["a" * 300] * 5_000}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {f"a{i}": "x" for i in range(60_000)}}),
        (ChatRequest, {"messages": [{"role": 1, "content": [{}] * 20}] * 1000}),
        (ChatRequest, {"messages": [{}], "tools": [{"type": "x"}] * 10_000}),
        (DetokenizeRequest, {"tokens": ["1"] * 60_000}),
    ],
)
def test_errors_are_few_and_quick(model: Any, body: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as error:
        model.model_validate(body)
    assert error.value.error_count() < 50
    assert len(invalid(error.value).message) <= 500


# --- reading


def received(*parts: bytes, limits: ServerLimits = LIMITS, intake: Intake | None = None) -> Body:
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return waiting.pop(0)

    return asyncio.run(read({"content-type": "application/json"}, receive, limits, intake or Intake()))


def test_a_body_is_counted_while_it_arrives() -> None:
    text = json.dumps({"x": ['"\\[' * 50] * 2000}).encode()
    for size in (1000, 32_768, 50_000, len(text)):
        body = received(*(text[i : i + size] for i in range(0, len(text), size)))
        assert body.content == text and (body.counts.nodes, body.counts.items, body.counts.depth) == walked(text)
        assert parsed(body) == json.loads(text)


def test_what_is_refused_is_not_held() -> None:
    intake = Intake()
    for parts, code in (
        ([b"[[]," * 10_000] * 10, "invalid_json"),
        ([b" " * 100_000] * 30, "body_too_large"),
    ):
        with pytest.raises(ApiError) as error:
            received(*parts, intake=intake)
        assert error.value.code == code and intake.held == 0


def test_all_bodies_together_are_bounded_but_small_ones_are_received() -> None:
    limits, intake = ServerLimits(bodies=1 << 20), Intake(held=(1 << 20) - 1000)
    with pytest.raises(ApiError) as error:
        received(b" " * 100_000, limits=limits, intake=intake)
    assert error.value.code == "overloaded" and intake.held == (1 << 20) - 1000
    assert received(b'{"a": 1}' + b" " * 10_000, limits=limits, intake=intake).content.startswith(b"{")


def test_a_whole_number_without_end_is_refused_before_it_is_computed() -> None:
    for decoder in (_QUICK, _PATIENT):
        assert decoder.decode(f'{{"a": -{10**98}}}') == {"a": -(10**98)}
        with pytest.raises(ValueError, match=r"a whole number has 101 digits \(at most 100\)"):
            decoder.decode('{"a": [1, ' + "9" * 101 + "]}")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"temprature": 0}, ("temprature",)),
        ({"temperature": 0, "store": True, "metadata": {"a": 1}}, ("store", "metadata")),
        ({"stream_options": {"include_usage": True, "include_use": True}}, ("stream_options.include_use",)),
        ({"x\n": 1, "é": 1, "": 1, "y" * 41: 1}, ()),
        ({f"f{i}": 1 for i in range(100)}, tuple(f"f{i}" for i in range(8))),
    ],
)
def test_unknown_fields_are_named(fields: dict[str, Any], found: tuple[str, ...]) -> None:
    content = json.dumps({"prompt": "a", **fields}).encode()
    request, unknown = validated(Body(content, JsonCounts()), CompletionRequest)
    assert isinstance(request, CompletionRequest) and unknown == found


@pytest.mark.parametrize("request_model", sorted({r.request for r in ROUTES if r.request}, key=str), ids=str)
def test_no_field_of_a_request_is_called_unknown(request_model: type[BaseModel]) -> None:
    fields = {field.alias or name: None for name, field in request_model.model_fields.items()}
    assert unknown_fields(fields, request_model) == ()
    assert unknown_fields([{"id": 0}], request_model) == ()


def test_a_misspelling_is_asked_about_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        unknown_fields({"prompt": "a", "max_tokns": 3, "temperatur.e": 1, "zzz": 1}, CompletionRequest)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["a request has the field max_tokns, which is ignored; was max_tokens meant?"]
