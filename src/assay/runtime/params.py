"""Settings of the sampler, with llama.cpp's names, meanings and defaults. It does not import NumPy, so help is fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from assay.errors import AssayError

Breakers = Mapping[
    int, tuple[tuple[int, ...], ...]
]  # DRY sequence breakers: first token -> the tokens that complete it
DEFAULT_CTX = 8192  # default context; the cache of a longer one can take gigabytes
DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's default strings

# The range of each numeric field: least, greatest, and whether the least itself is excluded. A field that is not here
# takes any finite number. The command line, the chat's /set, the library and the server all use this table.
LIMITS: Mapping[str, tuple[float, float, bool]] = {
    "temp": (0.0, math.inf, False),
    "top_k": (-(2**31), 2**31 - 1, False),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, False),
    "typical": (0.0, 1.0, False),
    "seed": (0, 2**64 - 1, False),
    "repeat_last_n": (-1, math.inf, False),
    "repeat_penalty": (0.0, math.inf, True),
    "dry_multiplier": (0.0, math.inf, False),
    "dry_base": (0.0, math.inf, False),
    "dry_allowed_length": (0, math.inf, False),
    "dry_penalty_last_n": (-1, math.inf, False),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, False),
}
_OFF = {"repeat_penalty": "; 1 switches it off", "temp": "; 0 is greedy"}


@dataclass(frozen=True)
class SamplerParams:
    """One field for each setting. With `seed` None, a random seed is used."""

    temp: float = 0.8  # 0: greedy
    top_k: int = 40  # 0 or less: all
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical: float = 1.0  # 1: off
    top_n_sigma: float = -1.0  # 0 or less: off
    seed: int | None = None
    repeat_last_n: int = 64  # tokens that the penalties count; -1: all, 0: off
    repeat_penalty: float = 1.0  # 1: off
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: all, 0: off
    dry_breakers: Breakers = field(default_factory=dict)  # see `sampler.dry_breakers`
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1  # above 0.5: off
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise AssayError(f"{item.name}: must be a finite number (found {value})")
        for name, (low, high, above) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not (low < value <= high if above else low <= value <= high):
                wanted = (
                    f"between {low} and {high}" if high < math.inf else f"{'above' if above else 'at least'} {low:g}"
                )
                raise AssayError(f"{name}: must be {wanted} (found {value}){_OFF.get(name, '')}")
        if any(math.isnan(bias) or bias == math.inf for _, bias in self.logit_bias):
            raise AssayError("logit_bias: must be a number or -inf; -inf forbids a token")


GREEDY = SamplerParams(temp=0.0)
