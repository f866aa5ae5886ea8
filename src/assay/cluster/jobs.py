"""A job and its updates as frames.

Values that only one process understands are translated: a deadline becomes the seconds left, a compiled grammar
becomes its text, and an exception becomes its kind and message.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from assay.cluster.frames import Array, ConnectionBroken
from assay.cluster.picture_frames import pack_images, unpack_images
from assay.engines.contract import CacheLost
from assay.errors import AssayError
from assay.runtime import receipts
from assay.runtime.grammar import ConstraintMaker, Grammars
from assay.runtime.image_places import Images
from assay.runtime.params import SamplerParams
from assay.runtime.pictured_prompt import PictureReader
from assay.runtime.sampler import Choice, Ranked
from assay.runtime.sequence import Constraint, Job, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, GrammarError
from assay.runtime.thinking_budget import ThinkingBudget
from assay.system.terminal import printable

_PLAIN = (
    "max_tokens", "stop", "logprobs", "prompt_logprobs", "keep", "pooling", "show_special", "ignore_eos", "owner",
)  # fmt: skip
POOLED = "(pooled)"  # key of the pooled vector, beside the names of nodes
_ERRORS: dict[str, Callable[[str], Exception]] = {
    "deadline": DeadlinePassed,
    "engine": EngineFailed,
    "grammar": lambda message: GrammarError(message, "grammar"),
    "fault": AssayError,
}


def from_job(job: Job, seed: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """The head and the arrays of a frame. The router decides the seed, so it stays the same when the job moves."""
    settings = asdict(replace(job.params, dry_breakers={}))
    settings["seed"] = seed
    settings["dry_breakers"] = [[token, list(rest)] for token, rest in job.params.dry_breakers.items()]
    head: dict[str, Any] = {name: getattr(job, name) for name in _PLAIN} | {"params": settings}
    if job.receipt:
        head["receipt"] = receipts.VERSION
    if job.second:
        head["second"] = job.second
    if job.deadline < math.inf:
        head["seconds"] = job.deadline - time.monotonic()
    if job.constraint is not None:
        if not isinstance(job.constraint, ConstraintMaker):
            raise AssayError("job: the constraint has no text that another process could compile")
        head["grammar"] = [job.constraint.kind, job.constraint.text, job.constraint.param]
    if job.thinking is not None:
        head["thinking"] = asdict(job.thinking)
    pixels: dict[str, Array] = {}
    if job.images:
        head["images"], pixels = pack_images(job.images)
    ids = [max(token, 0) for token in job.ids]  # below 0: a row of a picture
    return head, {"ids": np.array(ids, np.int32), "answered": np.array(job.answered, np.int32), **pixels}


def to_job(
    head: Mapping[str, Any],
    arrays: Mapping[str, Array],
    grammars: Grammars,
    pictures: PictureReader | None = None,
    arrived: float | None = None,
) -> Job:
    """The job that a frame describes. Slow if it has a grammar, which is compiled here, or pictures, which are encoded.

    `arrived` is the time of the frame on the clock of time.monotonic(); the deadline counts from there.
    """
    try:
        settings = dict(head["params"])
        settings["dry_breakers"] = {
            token: tuple(tuple(tail) for tail in rest) for token, rest in settings["dry_breakers"]
        }
        settings["logit_bias"] = tuple((token, bias) for token, bias in settings["logit_bias"])
        given: dict[str, Any] = {name: tuple(v) if isinstance(v := head[name], list) else v for name in _PLAIN}
        constraint: Callable[[], Constraint] | None = None
        if "grammar" in head:
            constraint = grammars.again(*head["grammar"])
        thinking = None
        if "thinking" in head:
            closing = tuple(head["thinking"]["closing"])
            thinking = ThinkingBudget(**{**head["thinking"], "closing": closing})
        now = time.monotonic() if arrived is None else arrived
        deadline = now + head["seconds"] if "seconds" in head else math.inf
        ids, images = _ids(arrays["ids"]), Images()
        if "images" in head:
            ids, images = unpack_images(head["images"], arrays, ids, pictures)
        return Job(
            ids=ids,
            images=images,
            params=SamplerParams(**settings),
            answered=_ids(arrays["answered"]),
            deadline=deadline,
            constraint=constraint,
            receipt=head.get("receipt") == receipts.VERSION,
            second=operator.index(head.get("second", 0)),
            thinking=thinking,
            **given,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectionBroken(f"frame: not a job ({type(error).__name__}: {printable(str(error), 200)})") from None


def _ids(array: Array) -> tuple[int, ...]:
    if array.ndim != 1 or array.dtype.kind != "i":
        raise ValueError(f"ids are not one row of whole numbers (found {array.dtype} of shape {array.shape})")
    return tuple(array.tolist())


def from_choice(choice: Choice) -> list[Any]:
    return [choice.id, choice.logprob, [list(ranked) for ranked in choice.top]]


def to_choice(row: list[Any]) -> Choice:
    token, logprob, top = row
    return Choice(token, logprob, tuple(Ranked(*ranked) for ranked in top))


def from_update(update: Update) -> dict[str, Any]:
    found: dict[str, Any] = {"text": update.text}
    if update.choice is not None:
        found["choice"] = from_choice(update.choice)
    if update.finish is not None:
        found["finish"] = update.finish
    if update.error is not None:
        found["error"] = from_error(update.error)
    return found


def to_update(found: Mapping[str, Any]) -> Update:
    choice = to_choice(found["choice"]) if "choice" in found else None
    error = to_error(found["error"]) if "error" in found else None
    return Update(choice, found["text"], found.get("finish"), error)


def from_error(error: Exception) -> list[str]:
    """The kind and the message of an error. Internal errors do not expose internals."""
    if isinstance(error, GrammarError):
        return ["grammar", str(error)]
    if isinstance(error, DeadlinePassed):
        return ["deadline", str(error)]
    if isinstance(error, EngineFailed | CacheLost) or not isinstance(error, AssayError):
        return ["engine", str(error)]
    return ["fault", str(error)]


def to_error(found: list[str]) -> Exception:
    kind, message = found
    return _ERRORS.get(kind, EngineFailed)(message)
