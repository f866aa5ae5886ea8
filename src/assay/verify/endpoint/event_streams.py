"""Answers that come as server-sent events, put together to the answer that comes without a stream.

    completions, chat completions   the pieces of text and the lists of log-probabilities, one after the other
    responses                       the last event has the whole answer
    messages                        the pieces of text between the first and the last event

Events are a stranger's: what is not of the expected type counts as not said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_END = "[DONE]"


def is_stream(raw: bytes) -> bool:
    """Is this the beginning of a stream, and not of a JSON text?"""
    return raw.lstrip()[:6].startswith((b"data:", b"event:", b": "))


def joined(raw: bytes) -> dict[str, Any] | None:
    """The answer that the events make; None if the stream has no end."""
    events, ended = _events(raw)
    if any("error" in event and event["error"] for event in events):
        return next(event for event in events if event.get("error"))
    whole = [event["response"] for event in events if isinstance(event.get("response"), dict)]
    if whole:
        return whole[-1] if "output" in whole[-1] else None
    if any(event.get("type") == "message_start" for event in events):
        return _message(events)
    found = _choices(events)
    return found if ended or found["choices"][0].get("finish_reason") else None


def _events(raw: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The objects of all events, and whether the mark of the end came."""
    found = list[dict[str, Any]]()
    for line in raw.decode("utf-8", "replace").splitlines():
        field, _, text = line.partition(":")
        if field != "data":
            continue
        if text.strip() == _END:
            return found, True
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            break  # cut off
        if isinstance(event, dict):
            found.append(event)
    return found, False


def _choices(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first choice of OpenAI's completions and chat completions."""
    text, choice, scores, usage = "", dict[str, Any](), dict[str, list[Any]](), dict[str, Any]()
    for event in events:
        usage = event["usage"] if isinstance(event.get("usage"), dict) else usage
        choices = event.get("choices")
        piece = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = piece.get("delta")
        said = delta.get("content") if isinstance(delta, dict) else piece.get("text")
        text += said if isinstance(said, str) else ""
        if isinstance(delta, dict):
            choice["message"] = {}
        if piece.get("finish_reason"):
            choice["finish_reason"] = piece["finish_reason"]
        if isinstance(piece.get("token_ids"), list):
            choice.setdefault("token_ids", []).extend(piece["token_ids"])
        listed = piece.get("logprobs")
        for key, values in (listed if isinstance(listed, dict) else {}).items():
            if isinstance(values, list):
                scores.setdefault(key, []).extend(values)
    choice |= {"message": {"content": text}} if "message" in choice else {"text": text}
    return {"choices": [choice | ({"logprobs": scores} if scores else {})], "usage": usage}


def _message(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Anthropic's messages."""
    text, usage, reason = "", dict[str, Any](), None
    for event in events:
        delta, started = event.get("delta"), event.get("message")
        counts = (started if isinstance(started, dict) else event).get("usage")
        usage |= counts if isinstance(counts, dict) else {}
        if isinstance(delta, dict):
            text += delta["text"] if isinstance(delta.get("text"), str) else ""
            reason = delta.get("stop_reason") or reason
    made = {"content": [{"type": "text", "text": text}], "stop_reason": reason, "usage": usage}
    return made if reason else None
