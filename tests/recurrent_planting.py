"""The recurrent faults that are planted in `second_recurrent.py`: on which model each shows, and how a run is dumped.

A case runs a prompt of 24 tokens and two decode calls of one token. Dumps hold the state of each layer after each call
(`cache_r_lN`, `cache_s_lN`), in the styles of `planting.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.planting import Case, fault_id
from tests.second_recurrent import Recurrent

Array = np.ndarray[Any, Any]
STEPS = (24, 1, 1)

DELTA = ("qwen35", "qwen3next", "qwen35moe", "qwen3next-old", "kimi-linear")
KEYED = DELTA[:4]  # delta rule with key heads for several value heads, a z gate
ATTENTION = ("qwen35moe", "qwen3next", "qwen35-mtp")
SCAN = ("mamba2", "falcon-h1", "nemotron_h", "granitehybrid-moe", "jamba")
GROUPS = ("mamba2", "nemotron_h", "falcon-h1")
BIASED = ("mamba2", "jamba", "mamba")
SHORT = ("lfm2", "lfm2moe")
STATE = ("qwen35", "mamba2", "jamba", "kimi-linear", "rwkv7", "granitehybrid")
WINDOW = ("qwen35", "lfm2", "mamba2", "kimi-linear", "jamba")
ROUTED = ("kimi-linear", "nemotron_h_moe", "lfm2moe")
DRAFT = ("qwen35-mtp", "qwen35moe-mtp", "qwen3next-mtp", "nemotron_h_moe-mtp")

# A group of models, and the faults that show on each of them. The first model of a group is the one graded by default.
_TABLE: tuple[tuple[tuple[str, ...], str], ...] = (
    (KEYED, "gdn-head-map gdn-qk-swapped gdn-z-sigmoid gdn-ba-swapped"),
    (
        DELTA,
        "gdn-l2-absent gdn-l2-q-only gdn-l2-mean gdn-q-unscaled gdn-k-scaled gdn-beta-raw gdn-beta-double"
        " gdn-beta-key-only gdn-dt-bias-absent gdn-softplus-absent gdn-softplus-exp gdn-a-log gdn-decay-sign"
        " gdn-decay-absent gdn-decay-late gdn-decay-late/end gdn-delta-stale gdn-no-delta gdn-read-early"
        " gdn-read-early/decay gdn-state-transposed gdn-state-transposed/both gdn-z-before-norm gdn-z-absent"
        " gdn-norm-absent gdn-norm-wide gdn-norm-plus-one",
    ),
    (("qwen3next", "qwen3next-old"), "gdn-ba-halves"),
    (("qwen3next-old",), "gdn-fused-flat"),
    (ATTENTION, "gattn-halves gattn-swapped gattn-absent gattn-silu gattn-full-rope"),
    (("lfm2", "qwen35moe"), "gattn-norm-after-rope gattn-qk-norm-absent"),
    (DRAFT, "mtp-concat-order mtp-norm-shared"),
    (
        WINDOW,
        "conv-reversed conv-late conv-state-missing conv-state-short conv-state-activated conv-state-activated/output"
        " conv-state-padded",
    ),
    (("qwen35", "mamba2", "kimi-linear", "jamba"), "conv-act-absent"),
    (BIASED, "conv-bias-absent"),
    (
        SHORT,
        "sconv-order sconv-gates-swapped sconv-b-late sconv-c-absent sconv-silu sconv-norm-first sconv-norm-first/twice"
        " conv-state-input",
    ),
    (GROUPS, "ssm-group-ignored ssm-group-tile ssm-norm-absent ssm-norm-wide ssm-z-after-norm"),
    (
        SCAN,
        "ssm-zx-swapped ssm-bc-swapped ssm-dt-bias-absent ssm-softplus-absent ssm-softplus-exp ssm-a-log ssm-decay-sign"
        " ssm-dt-x-absent ssm-decay-late ssm-decay-late/end ssm-read-early ssm-read-early/decay ssm-d-absent"
        " ssm-z-absent ssm-z-sigmoid",
    ),
    (("jamba",), "ssm-dbc-norm-absent"),
    (
        ("kimi-linear",),
        "kda-scalar-decay kda-decay-axis kda-gate-silu kda-one-kernel kda-mla-rope kda-mla-scale",
    ),
    (("nemotron_h", "granitehybrid", "jamba", "lfm2"), "hyb-rope-flip"),
    (("falcon-h1", "granitehybrid-moe", "lfm2"), "hyb-rope-mode"),
    (("granitehybrid", "granitehybrid-moe"), "hyb-residual-plain hyb-scale-default"),
    (("falcon-h1",), "falcon-serial falcon-serial/direct"),
    (("nemotron_h", "nemotron_h_moe"), "nemo-relu nemo-silu"),
    (("qwen35moe", "granitehybrid-moe", "kimi-linear"), "moe-gate-kind"),
    (("qwen35moe", "jamba", "lfm2moe"), "moe-norm-flip"),
    (ROUTED, "moe-bias-absent moe-bias-in-weights"),
    (("nemotron_h_moe", "kimi-linear"), "moe-scale-absent"),
    (("qwen35moe", "granitehybrid-moe", "kimi-linear"), "moe-shared-absent"),
    (("qwen3next", "qwen35moe"), "moe-shared-gate-absent"),
    (
        STATE,
        "st-bf16 st-f16 st-lost st-pad-enters st-pad-enters/last st-pad-enters/window st-pad-decays st-rollback"
        " st-rollback/draft st-leak st-leak/other chunk-reset chunk-decay",
    ),
    (
        ("rwkv7",),
        "rwkv-decay-plain rwkv-v-first rwkv-l2-absent rwkv-ka-absent rwkv-read-early rwkv-bonus-absent",
    ),
    (("rwkv6",), "rwkv-read-late rwkv-u-absent rwkv-rescale-absent rwkv-gn-eps"),
    (("rwkv7", "rwkv6"), "rwkv-shift-lost rwkv-shift-sign rwkv-mix-order rwkv-gate-absent"),
)  # fmt: skip
PLANTED: dict[str, tuple[str, ...]] = {fault: models for models, faults in _TABLE for fault in faults.split()}
MODELS = (
    "lfm2", "lfm2moe", "qwen35", "qwen35-mtp", "qwen35moe", "qwen35moe-mtp", "qwen3next", "qwen3next-mtp",
    "qwen3next-old", "mamba2", "granitehybrid", "granitehybrid-moe", "nemotron_h", "nemotron_h_moe",
    "nemotron_h_moe-mtp", "falcon-h1", "kimi-linear", "mamba", "jamba", "rwkv7", "rwkv6",
)  # fmt: skip
# Show from the second call on: a dump of a prompt alone cannot hold them.
SECOND_CALL = (
    "conv-state-missing", "conv-state-short", "conv-state-activated", "conv-state-padded", "conv-state-input",
    "st-lost", "st-pad-enters", "st-pad-decays", "st-rollback", "rwkv-shift-lost",
)  # fmt: skip
BY_HEAD = ("kq", "kq_soft_max", "kqv", "kqv_mla", "q_nope_absorbed")  # [head, token, …]
LAYER_NODES = ("l_out", "nemotron_h_block_out", "mtp_post_ffn", "result_norm", "result_output")


def folder() -> Path | None:
    """The golden recurrent models, or None where the reference data is not there."""
    shared = os.environ.get("ASSAY_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    found = Path(shared) / "data" / "recurrent"
    return found if found.is_dir() else None


@lru_cache(maxsize=64)
def golden(path: Path) -> dict[str, Array]:
    """What llama.cpp gave for this model."""
    with np.load(path.with_suffix(".npz")) as data:
        return dict(data)


def tokens_of(path: Path) -> tuple[int, ...]:
    """The prompt of 24 tokens and the two that follow."""
    recorded = golden(path)
    return tuple(int(t) for name in ("tokens", "tokens@1", "tokens@2") for t in recorded[name])


def planted(path: Path, *bugs: str, tokens: Sequence[int] = (), steps: Sequence[int] = STEPS, **options: Any) -> Case:
    """The run of the second engine with these bugs; of its draft head where the fault lies there."""
    engine = Recurrent(path, bugs, **options)
    tokens = list(tokens or tokens_of(path))
    with np.errstate(all="ignore"):
        if any(b.startswith("mtp-") for b in bugs):
            parts = [engine.draft(golden(path)["tokens"], golden(path)["mtp/hidden"])]
        else:
            parts = engine.run(tokens, tuple(steps))
    return Case("+".join(bugs) or "healthy", tuple(map(fault_id, bugs)), tuple(parts))


def recorded(path: Path) -> Case:
    """llama.cpp's own run of the golden prompt, as a case."""
    parts: list[dict[str, Array]] = [{}, {}, {}]
    for key, value in golden(path).items():
        name, _, call = key.partition("@")
        if name not in ("tokens", "positions", "n_ctx") and not name.startswith(("long_", "mtp/")):
            parts[int(call or 0)][name] = value
    return Case("llama.cpp", (), tuple(parts))


def as_draft(case: Case, path: Path) -> Case:
    """A run of a draft head under the names of a dump that may also hold the trunk: `mtp/…`, its input included."""
    given = {"mtp/hidden": golden(path)["mtp/hidden"]}
    return Case(case.name, case.faults, ({**given, **{f"mtp/{k}": v for k, v in case.parts[0].items()}},))


# -- styles ------------------------------------------------------------------------------------------------------------


def _header(tokens: Sequence[int], call: int) -> str:
    phase = "decode" if call else "prefill"
    return json.dumps({"assay_dump": 1, "engine": "planted", "tokens": [int(t) for t in tokens], "phase": phase})


def _whole(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int], keep: Callable[[str], bool]) -> Path:
    """JSON lines that point to raw float32 beside them."""
    lines, start = [], 0
    for call, (n, part) in enumerate(zip(steps, case.parts, strict=True)):
        lines.append(_header(tokens[start : start + n], call))
        for name, value in part.items():
            if keep(name):
                raw = f"{call}-{name.replace('/', '_')}.bin"
                (path / raw).write_bytes(np.ascontiguousarray(value, "<f4").tobytes())
                lines.append(json.dumps({"name": name, "shape": list(value.shape), "file": raw, "dtype": "f32"}))
        start += n
    out = path / "dump.jsonl"
    out.write_text("\n".join(lines) + "\n")
    return out


def full(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """Every node and every state, whole."""
    return _whole(case, path, tokens, steps, lambda name: True)


def layers(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """The result of each layer, the last norm and the logits."""
    return _whole(case, path, tokens, steps, lambda name: name.split("-")[0].removeprefix("mtp/") in LAYER_NODES)


def layers_and_states(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """The result of each layer, and all states before and after each call."""
    shown = (*LAYER_NODES, "cache_")
    return _whole(case, path, tokens, steps, lambda name: name.startswith(shown))


def logits(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    return _whole(case, path, tokens, steps, lambda name: name in ("result_output", "mtp/result_output"))


def last(case: Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """Of every node the first ten values and the rms of the last row, in every call; no states."""
    lines, start = [], 0
    for call, (n, part) in enumerate(zip(steps, case.parts, strict=True)):
        lines.append(_header(tokens[start : start + n], call))
        for name, value in part.items():
            if not name.startswith("cache_"):
                by_head = name.split("-")[0].removeprefix("mtp/") in BY_HEAD
                row = (value[:, -1] if by_head else value[-1]).reshape(-1)
                rms = float(np.sqrt(np.mean(row.astype(np.float64) ** 2)))
                first = [float(x) for x in row[:10]]
                lines.append(json.dumps({"name": name, "row": n - 1, "first": first, "rms": rms}))
        start += n
    out = path / "dump.jsonl"
    out.write_text("\n".join(lines) + "\n")
    return out


STYLES: dict[str, Callable[[Case, Path, Sequence[int], Sequence[int]], Path]] = {
    "full": full,
    "layers": layers,
    "last": last,
    "logits": logits,
}
