"""Faults of recurrent and hybrid models: each edit changes the logits of a golden model as much as was measured.

The measured figures are those of an independent float64 engine (RECURRENT.md, section 6): the NMSE of the logits, over
the decode steps for a fault marked `s`. A sample of the faults is then planted and must be named from little evidence.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Trait
from assay.models import Model
from assay.verify.diagnosis.by_calls import BOTH, FedCall, dumped_calls, hidden_calls, run_calls
from assay.verify.diagnosis.diagnose_dump import PROMPT_ONLY, diagnose
from assay.verify.dumps.draft_tracing import PREFIX, with_draft_head
from assay.verify.dumps.observation import Dump, Observation, inputs_of, token_axis
from assay.verify.faults import CODE, FAULTS, Context, Planted, Probe, Variant, known_as, planted
from tests.models import recurrent
from tests.planting import grade

Array = np.ndarray
# Golden model: faults with the measured NMSE. qwen35 is in tests/data/arch, so that a checkout tests something.
MEASURED = {
    "qwen35": """gdn-head-map=0.4 gdn-l2-absent=0.5 gdn-l2-q-only=0.5 gdn-l2-mean=0.9 gdn-beta-raw=0.5
        gdn-beta-double=0.2 gdn-ba-swapped=0.1 gdn-softplus-absent=0.2 gdn-decay-sign=0.4 gdn-decay-absent=0.2
        gdn-read-early=0.1 gdn-state-transposed=0.7 gdn-norm-absent=0.4
        gdn-norm-wide=0.1 gdn-k-scaled=0.1 gdn-beta-key-only=0.07 gdn-softplus-exp=0.04 gdn-a-log=0.1 gdn-no-delta=0.1
        gdn-qk-swapped=0.4 gdn-z-before-norm=0.3 gdn-z-sigmoid=0.2 gdn-z-absent=0.7 gdn-norm-plus-one=0.3
        gattn-halves=0.04 gattn-swapped=0.04 gattn-absent=0.02 gattn-silu=0.04 gattn-full-rope=0.01 hyb-rope-flip=0.002
        hyb-rope-mode=0.003 gattn-norm-after-rope=0.0002 conv-act-absent=0.4""",
    "qwen35moe": "gdn-decay-late=0.02 gdn-delta-stale=0.003 gdn-dt-bias-absent=0.004",
    "qwen35-mtp": "gdn-q-unscaled=3e-6",
    "qwen3next-old": "gdn-ba-halves=0.2 gdn-fused-flat=2 moe-shared-gate-absent=0.2 chunk-reset=0.03",
    "lfm2moe": """gattn-qk-norm-absent=0.03 sconv-order=2 sconv-b-late=2 sconv-c-absent=2 sconv-silu=2
        moe-gate-kind=0.04 moe-bias-absent=0.05 moe-bias-in-weights=0.0009""",
    "granitehybrid": """conv-reversed=0.5 conv-late=0.5 conv-bias-absent=0.07 conv-state-missing=0.1s
        conv-state-short=0.06s conv-state-padded=0.1s ssm-zx-swapped=0.4 ssm-bc-swapped=0.4 ssm-dt-bias-absent=0.02
        ssm-softplus-absent=0.5 ssm-softplus-exp=0.09 ssm-a-log=0.08 ssm-decay-sign=0.7 ssm-dt-x-absent=0.07
        ssm-decay-late=0.006 ssm-read-early=0.07 ssm-d-absent=0.07 ssm-z-absent=0.3 ssm-z-sigmoid=0.2
        ssm-z-after-norm=0.05 hyb-residual-plain=0.4 hyb-scale-default=0.008 st-bf16=2e-6 st-f16=3e-8 st-lost=0.2s
        st-pad-enters=0.03s st-pad-decays=0.01s""",
    "granitehybrid-moe": "conv-state-activated=0.04s ssm-group-ignored=0.3 ssm-group-tile=0.3 ssm-norm-wide=0.2",
    "lfm2": "sconv-gates-swapped=1 conv-state-input=1s sconv-norm-first=20",
    "nemotron_h_moe": "ssm-norm-absent=1 nemo-relu=0.3 nemo-silu=0.4 moe-shared-absent=0.2 chunk-decay=0.0002",
    "jamba": "ssm-dbc-norm-absent=1 moe-norm-flip=0.0008",
    "kimi-linear": """kda-scalar-decay=0.7 kda-decay-axis=0.9 kda-gate-silu=2 kda-one-kernel=1 kda-mla-rope=0.03
        kda-mla-scale=0.05""",
    "falcon-h1": "falcon-serial=1",
    "rwkv7": """rwkv-shift-lost=0.4s rwkv-shift-sign=1 rwkv-mix-order=0.1 rwkv-decay-plain=0.01 rwkv-v-first=0.1
        rwkv-l2-absent=0.6 rwkv-ka-absent=0.3 rwkv-read-early=0.1 rwkv-bonus-absent=0.3 rwkv-gn-eps=1e-8
        rwkv-gate-absent=1""",
    "rwkv6": "rwkv-read-late=0.9 rwkv-u-absent=1 rwkv-rescale-absent=0.1",
    "minimax-m2": "m2-norm-per-head=0.04",
    "hunyuan-moe": "gattn-norm-flip=0.02",
    "bailingmoe2": "moe-scale-absent=0.4 groups-absent=0.3",
    "mistral4": "temp-absent=0.1",
    "arcee": "relu2-plain=0.2",
    "apertus": "xielu-softplus-absent=0.1",
    "gemma3n": "n3-sparsity-absent=1 n3-laurel-absent=2",
}
NOT_EDITS = {"st-leak", "st-rollback"}  # other calls, which `diagnosis.by_calls` runs


class Run:
    """A golden model and the tokens of its three calls."""

    def __init__(self, name: str) -> None:
        calls = recurrent.calls(name)
        self.model: Model = calls.model
        self.weights = Weights(self.model.file)
        self.steps = tuple(len(calls.recorded[f"tokens{end}"]) for end in calls.ends)
        self.tokens, self.positions = (
            tuple(int(t) for end in calls.ends for t in calls.recorded[f"{key}{end}"])
            for key in ("tokens", "positions")
        )
        self.context = Context(self.model, self.steps)
        self.right = self.values([self.model.graph.output])[self.model.graph.output]

    def values(self, names: list[str], made: Planted | None = None) -> dict[str, Array]:
        graph, functions = (made.graph, made.functions) if made else (self.model.graph, None)
        with np.errstate(all="ignore"):
            return interpret(graph, self.weights, inputs_of(self.tokens, self.positions), names, functions=functions)

    def planted(self, variant: Variant) -> Planted:
        p = variant.search.common[0] if variant.search and variant.search.common else 0.0
        return planted(self.context, variant, p)

    def nmse(self, made: Planted, decoding: bool) -> float:
        found, rows = self.values([self.model.graph.output], made)[self.model.graph.output], self.context.decoding(
            len(self.tokens)
        )  # fmt: skip
        rows = rows if decoding else np.ones_like(rows)
        return float(np.sum((found - self.right)[rows] ** 2) / np.sum(self.right[rows] ** 2))

    def dump(self, values: dict[str, Array], style: str, steps: tuple[int, ...] = ()) -> Dump:
        """The values in float32: every node, or of every node the last row's first ten values."""
        model = with_draft_head(self.model) if any(n.startswith(PREFIX) for n in values) else self.model
        n, found = sum(steps or self.steps), []
        for name, value in values.items():
            axis = token_axis(model.graph, name)
            value = np.take(value, range(n), axis=axis) if value.shape[axis] > n else value
            value = value.astype(np.float32) if value.dtype.kind == "f" else value
            if style == "last":
                row = np.take(value, -1, axis=axis).reshape(-1)[:10].astype(np.float64)
                found.append(Observation(name, "first", row, (n - 1, n), value.shape, foreign=name))
            else:
                found.append(Observation(name, "values", value, shape=value.shape, foreign=name))
        return Dump("p", self.tokens[:n], self.positions[:n], steps or self.steps, tuple(found), "planted")

    def nodes(self) -> list[str]:
        return [n.name for n in self.model.graph if not n.has(Trait.CACHES | Trait.SHOWS_STATE)]


@cache
def run(name: str) -> Run:
    return Run(name)


def rows(text: str) -> dict[str, tuple[float, bool]]:
    found = (item.split("=") for item in text.split())
    return {fault: (float(figure.rstrip("s")), figure.endswith("s")) for fault, figure in found}


@pytest.mark.parametrize("name", MEASURED)
def test_an_edit_changes_the_logits_as_measured(name: str) -> None:
    """By about the measured NMSE, within a factor of ten, in one of the fault's forms."""
    on = run(name)
    for fault, (figure, decoding) in rows(MEASURED[name]).items():
        made = [on.planted(v) for row in known_as(fault) for v in FAULTS[row].variants]
        found = [on.nmse(one, decoding) for one in made if one.touched]
        assert any(figure / 10 <= nmse <= figure * 10 for nmse in found), (fault, figure, found)


def test_every_fault_of_the_list_is_known() -> None:
    listed = {fault for text in MEASURED.values() for fault in rows(text)} | NOT_EDITS
    listed |= {"mtp-concat-order", "mtp-norm-shared"}
    assert len(listed) == 124  # of 125: gdn-l2-clamp changes nothing that could be seen
    assert all(known_as(fault) for fault in listed)
    ids = {id for fault in listed for id in known_as(fault)}
    assert all(FAULTS[id].variants for id in ids - {"st-leak"})
    lines = [{**CODE[FAULTS[id].stage], **CODE.get(id, {})} for id in ids]
    assert all({"c", "rust", "python", "wgsl"} <= set(row) for row in lines)
    assert sum(id in CODE for id in ids) >= 100  # lines of their own; the others have those of their stage
    second_call = {f for text in MEASURED.values() for f, row in rows(text).items() if row[1]}
    assert all(FAULTS[id].run == Probe.DECODE for f in second_call for id in known_as(f))


def test_an_alias_denotes_the_rows_that_list_it() -> None:
    assert known_as("gdn-a-log") == ("gdn-a-log",)
    assert known_as("moe-bias-absent") == ("moe-router-bias",)
    assert known_as("hyb-rope-flip") == ("rope-missing", "rope-nope-layer")
    assert known_as("nothing-like-it") == ()


@pytest.mark.parametrize(
    ("name", "fault", "style"),
    [
        ("qwen35", "gdn-delta-stale", "full"),
        ("qwen35", "conv-state-missing", "full"),
        ("qwen35", "gdn-z-before-norm", "last"),
        ("qwen35", "st-lost", "last"),
        ("lfm2", "conv-state-input", "last"),
        ("granitehybrid", "ssm-decay-late", "last"),
        ("rwkv7", "rwkv-shift-lost", "last"),
        ("kimi-linear", "kda-decay-axis", "last"),
    ],
)
def test_a_planted_fault_is_named(name: str, fault: str, style: str) -> None:
    on = run(name)
    made = on.planted(FAULTS[fault].variants[0])
    found = diagnose(on.model, on.dump(on.values(on.nodes(), made), style), weights=on.weights, cache=False)
    assert grade(found, (fault,)) in ("right", "tied"), found


@pytest.mark.parametrize(
    ("fault", "label"),
    [
        ("st-leak", "the same prompt"),
        ("st-rollback", "2 copies of the last token"),
        ("st-pad-enters", "4 rows of padding, id 0, enter"),
    ],
)
def test_hidden_calls_are_named(fault: str, label: str) -> None:
    on = run("qwen35")
    made = next(
        h for h in hidden_calls(on.model, on.tokens, on.steps) if h.fault == fault and label in h.label
    )  # fmt: skip
    names = [n for n in on.nodes() if "S" not in on.model.graph.shapes[n]]
    values = run_calls(on.model.graph, on.weights, made.calls, names)
    found = diagnose(on.model, on.dump(values, "last"), weights=on.weights, cache=False)
    assert grade(found, (fault,)) == "right", found


def test_a_state_from_elsewhere_is_told_by_its_rows() -> None:
    """A request before whose tokens nobody knows: the rows tell that some start state explains all of them."""
    on = run("qwen35")
    before = FedCall(tuple((7 * t + 3) % on.model.hparams.n_vocab for t in on.tokens), 0, BOTH)
    names = [n for n in on.nodes() if "S" not in on.model.graph.shapes[n]]
    values = run_calls(on.model.graph, on.weights, (before, *dumped_calls(on.tokens, on.steps)), names)
    found = diagnose(on.model, on.dump(values, "full"), weights=on.weights, cache=False)
    assert grade(found, ("st-leak",)) == "right" and found.causes[0].confidence < 0.9, found


def test_calls_of_the_dump_give_the_values_of_one_run() -> None:
    on = run("qwen35")
    values = run_calls(on.model.graph, on.weights, dumped_calls(on.tokens, on.steps), [on.model.graph.output])
    np.testing.assert_allclose(values[on.model.graph.output], on.right, rtol=0, atol=1e-9)


def test_a_prompt_alone_cannot_show_the_state_between_calls() -> None:
    on = run("qwen35")
    made = on.planted(FAULTS["st-lost"].variants[0])
    values = on.values(on.nodes(), made)
    for name in [n for n in values if "S" in on.model.graph.shapes[n]]:
        del values[name]
    prompt = diagnose(on.model, on.dump(values, "full", on.steps[:1]), weights=on.weights, cache=False)
    assert prompt.verdict == "healthy" and PROMPT_ONLY in prompt.notes
    both = diagnose(on.model, on.dump(values, "full"), weights=on.weights, cache=False)
    assert grade(both, ("st-lost",)) == "right" and PROMPT_ONLY not in both.notes


@pytest.mark.parametrize("fault", ["mtp-concat-order", "mtp-norm-shared"])
def test_a_fault_of_a_draft_head_is_named(fault: str) -> None:
    on = run("qwen35-mtp")
    joined = with_draft_head(on.model)
    head = [n.name for n in joined.graph if n.name.startswith(PREFIX) and not n.has(Trait.CACHES)]
    made = planted(Context(joined, on.steps), FAULTS[fault].variants[0])
    assert made.touched and all(name.startswith(PREFIX) for name in made.touched)
    with np.errstate(all="ignore"):
        env = inputs_of(on.tokens, on.positions)
        values = interpret(made.graph, on.weights, env, head, functions=made.functions)
    found = diagnose(on.model, on.dump(values, "full"), weights=on.weights, cache=False)
    assert grade(found, (fault,)) == "right", found
