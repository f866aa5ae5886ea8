"""Keyword arguments of a generation, under assay's names and those of transformers and OpenAI.

`GenerationSettings` lists them with their types for editors and type checkers, and `settings` checks the values. A new
field of SamplerParams needs a line in `GenerationSettings`; `tests/library/test_settings.py` compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar

from assay.errors import AssayError
from assay.runtime.draws import seed_of
from assay.runtime.opening import Opened
from assay.runtime.params import Breakers, SamplerParams
from assay.runtime.sequence import Constraint

# Other names of fields of SamplerParams.
ALIASES = {"temperature": "temp", "repetition_penalty": "repeat_penalty", "typical_p": "typical"}
_FIELDS = {field.name: field.type for field in fields(SamplerParams)}
LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")
_OTHER = (*LENGTHS, "stop", "logprobs", "grammar", "json_schema", "ignore_eos", "do_sample", "params")


class GenerationSettings(TypedDict, total=False):
    """The keyword arguments of `generate`, `stream` and `chat`. One that is left out has llama.cpp's default."""

    # length and end
    max_new_tokens: int | None  # of the whole answer; -1 or None: until the context is full
    max_tokens: int | None  # the same
    max_completion_tokens: int | None  # the same
    stop: str | Sequence[str] | None  # end the answer before one of these texts
    ignore_eos: bool  # continue after the end-of-sequence token
    # form
    grammar: str | None  # GBNF or Lark
    json_schema: Mapping[str, Any] | bool | None  # True: any JSON object
    # what comes back
    logprobs: int | bool | None  # log-probability of every token, and of that many alternatives
    # sampling
    seed: int | None  # None: a random one, which the result has
    temperature: float | None  # 0 is greedy
    temp: float | None  # the same
    do_sample: bool  # False is greedy
    top_k: int | None  # 0: all
    top_p: float | None  # 1: off
    min_p: float | None  # 0: off
    typical: float | None  # 1: off
    typical_p: float | None  # the same
    top_n_sigma: float | None  # -1: off
    repetition_penalty: float | None  # 1: off
    repeat_penalty: float | None  # the same
    repeat_last_n: int | None  # tokens that the penalties count; 0: none, -1: all
    frequency_penalty: float | None
    presence_penalty: float | None
    dry_multiplier: float | None  # 0: off
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None  # 0: none, -1: all
    dry_breakers: Sequence[str] | Breakers | None
    xtc_probability: float | None  # 0: off
    xtc_threshold: float | None
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None  # -inf forbids a token
    params: SamplerParams | None  # all of the sampler's settings at once; the others change it


Function = TypeVar("Function", bound=Callable[..., Any])


def lists_settings(function: Function) -> Function:
    """Replace `**given` in the signature that `help` and notebooks show by the settings, each with its type."""
    shown = signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=getattr(kind, "__forward_arg__", kind))
        for name, kind in GenerationSettings.__annotations__.items()
    ]
    function.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class Settings:
    """The arguments of `Generator.generate`."""

    params: SamplerParams
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    constraint: Callable[[], Constraint] | None = None

    def answer(self, index: int) -> Settings:
        """The settings of answer `index` of several to one prompt: its seed is the given seed plus the index."""
        return replace(self, params=replace(self.params, seed=seed_of(self.params.seed, index)))


def settings(opened: Opened, given: Mapping[str, Any]) -> Settings:
    """Settings from keyword arguments."""
    for name in given:
        if name not in _FIELDS and name not in ALIASES and name not in _OTHER:
            near = difflib.get_close_matches(name, [*_FIELDS, *ALIASES, *_OTHER], 1)
            raise AssayError(f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else ""))
    params = given.get("params") or SamplerParams()
    if not isinstance(params, SamplerParams):
        raise AssayError(f"params: must be SamplerParams (found {type(params).__name__})")
    return Settings(
        params=_params(opened, params, given),
        max_tokens=_length(given),
        stop=_texts("stop", given.get("stop") or ()),
        logprobs=_logprobs(given.get("logprobs")),
        ignore_eos=bool(given.get("ignore_eos", False)),
        constraint=_constraint(opened, given),
    )


def _params(opened: Opened, params: SamplerParams, given: Mapping[str, Any]) -> SamplerParams:
    changed: dict[str, Any] = {}
    for name, value in given.items():
        field = ALIASES.get(name, name)
        if field not in _FIELDS or value is None:
            continue
        if field in changed:
            raise AssayError(f"{name}: {field} is also given; use one of them")
        changed[field] = _CONVERT.get(field, _number)(opened, field, value)
    if given.get("do_sample") is False:
        changed["temp"] = 0.0
    if changed.get("dry_multiplier") and not params.dry_breakers:
        changed.setdefault("dry_breakers", opened.dry_breakers)
    return replace(params, **changed)


def _number(_: Opened, field: str, value: Any) -> Any:
    """Check a numeric field now: a string would fail only during the generation."""
    whole = "int" in str(_FIELDS[field])
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise AssayError(f"{field}: must be a {'whole ' if whole else ''}number (found {value!r:.60})")
    return value


def _bias(_: Opened, field: str, value: Any) -> tuple[tuple[int, float], ...]:
    """`{token: bias}`, or pairs."""
    try:
        return tuple((int(token), float(x)) for token, x in (value.items() if isinstance(value, Mapping) else value))
    except (TypeError, ValueError):
        raise AssayError(f"{field}: must map token ids to numbers (found {value!r:.60})") from None


def _breakers(opened: Opened, field: str, value: Any) -> Breakers:
    """Strings, or a result of `sampler.dry_breakers`."""
    return value if isinstance(value, Mapping) else opened.breakers(_texts(field, value))


_CONVERT: dict[str, Callable[[Opened, str, Any], Any]] = {"logit_bias": _bias, "dry_breakers": _breakers}


def _length(given: Mapping[str, Any]) -> int:
    asked = {name: given[name] for name in LENGTHS if given.get(name) is not None}
    for name, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise AssayError(f"{name}: must be an integer of at least 0, or -1 for no limit (found {value!r:.60})")
    if len(set(asked.values())) > 1:
        raise AssayError(f"{', '.join(asked)}: give different lengths; use one of them")
    return next(iter(asked.values()), -1)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text, or a list of texts."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(text, str) for text in found):
        raise AssayError(f"{name}: must be a text or a list of texts (found {value!r:.60})")
    return tuple(found)


def _logprobs(asked: Any) -> int | None:
    """True: only the chosen token. A number: that many alternatives, too."""
    if asked is None or asked is False:
        return None
    if not isinstance(asked, int) or asked < 0:
        raise AssayError(f"logprobs: must be true or an integer of at least 0 (found {asked!r:.60})")
    return 0 if asked is True else asked


def _constraint(opened: Opened, given: Mapping[str, Any]) -> Callable[[], Constraint] | None:
    grammar, schema = given.get("grammar"), given.get("json_schema")
    if grammar is not None and schema is not None:
        raise AssayError("grammar: json_schema is also given; use one of them")
    if schema is not None:
        wanted = {"type": "object"} if schema is True else schema
        if not isinstance(wanted, Mapping):
            raise AssayError(f"json_schema: must be an object, or true for any (found {schema!r:.60})")
        return opened.grammars.schema(wanted, "json_schema")
    if grammar is not None and not isinstance(grammar, str):
        raise AssayError(f"grammar: must be a text (found {grammar!r:.60})")
    return opened.grammars.gbnf(grammar) if grammar is not None else None
