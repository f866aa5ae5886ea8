"""Makes docs/reference/faults.md: the text is here, the table of faults is `assay.verify.faults`.

Touch it to change what the page says about all faults; a single fault is a row of the catalogue.
"""
# ruff: noqa: E501  tables of a page

from __future__ import annotations

import re

from assay.verify.faults import FAULTS, Fault, FaultKind, Stage
from assay.verify.faults.vision import PICTURE_PLANTS, PROMPT_PLANTS

INTRO = """# What goes wrong in inference engines

A port of a Llama-family model to a new language or a new chip loads, runs, and prints nonsense. Or worse: it prints sense
that is a little less good than it should be. This page lists {n} mistakes that really happen, in the order in which a token
meets them. Most of them have a public thread that shows one. Each row says what is wrong, what is right, how it shows,
where it shows first, and the cheapest run that exposes it. The page is generated from the table that `assay diagnose`
searches. {planted} faults are planted and tried on your engine's own numbers. The rest are recognised by other means or
need an architecture that assay does not build yet.

    assay diagnose model.gguf dump.jsonl

names the row. [The dump format](dump-format.md) is a line of JSON per tensor; ten printed values will often do.

## Before you suspect anything

1. **Compare token ids first.** If the ids differ, nothing after them can agree. `assay tokenize MODEL TEXT --check IDS`.
2. **Compare with the file, not with intuition.** Norm weights of rms 0.046 are right for TinyLlama; a BOS embedding of
   rms 0.002 is right; a flat distribution after BOS alone is right ([what raw BOS predicts](../lab/raw-bos.md)).
3. **Compare the same thing.** A chat-templated run of another program says nothing about your raw run.
4. **Run it twice.** If two equal requests differ, look first for a race, uninitialised memory or a stale cache.
5. **Compare your prefill with your own decode.** Equal: the fault is in shared mathematics or in the weights. Unequal: it
   is in positions, cache, mask, or in one of two kernels.
6. **Find the first node that is wrong *on its own inputs*.** Everything after it is wrong too and proves nothing.
7. **One token at position 0 proves little.** Rotation by 0 is the identity and a softmax over one key is 1: every mistake in
   RoPE, positions, mask, attention scale and the order of Q/K rows is invisible in its logits.
8. **Expect more than one.** Ports with one fault usually have three; a fix that changes nothing visible may still be right.

## Fingerprints

| what the numbers do | what it is |
|---|---|
| scores before the softmax times one constant | [attention scale](#scale-missing): sqrt(hd) missing, 1/sqrt(hd) twice, else a wrong dimension |
| each row of a norm times its own constant | [eps](#eps-value): sqrt((ms + e1) / (ms + e2)); look at the row with the smallest rms |
| a norm times 1/γ, γ, or (γ+1)/γ element by element | weight [missing](#norm-no-weight), [twice](#norm-weight-twice), [plus one](#norm-plus1-double) |
| right at position 0, wrong after it, worse with distance | [rotation](#rope-type); first pairs exact: [base](#rope-base) or [factors](#rope-freq-factors); all pairs: [pairing](#rope-type) or [scaling](#rope-linear) |
| layer 0: last row right, the others wrong; from layer 1 on all wrong | [no causal mask](#mask-missing-prefill) |
| every head of the attention output shrunk, its direction right | [empty cache slots in the softmax](#softmax-unfilled) |
| prompt right, every generated token wrong | [decode positions](#pos-reset-decode), [cache](#kv-recreated), or [another kernel](#path-split) |
| the same, and the model has a convolution or a recurrent state | [window](#conv-state-missing), [state](#st-lost) or [padding](#st-pad-enters) between two calls |
| a recurrent layer right at token 0, wrong from token 1 on | [decay](#gdn-decay-absent), [what is taken away](#gdn-no-delta), or the state's [axis](#kda-decay-axis) |
| a recurrent layer zero at token 0 | [read before the write](#gdn-read-early) |
| right up to token 16 or 64, then not | [the state at a chunk's border](#chunk-reset) |
| rms right, cosine 0.07 | [nibbles in the wrong order](#q4_0-interleave) |
| right for the first 32 or 256 elements of a row | [block size](#gguf-block-bytes), [first block only](#gguf-first-block-only) |
| a constant offset within each block | [minimum](#q4_1-min) or [zero point](#q4_0-zero-point) |
| numerically zero, 1e-19 | [half read as bfloat16](#f16-as-bf16) |
| gate equals up, k equals v, row t equals row t-1 | [exchanged weights](#ffn-gate-up-weights), [K and V](#kv-swapped), [wrong row](#head-wrong-row) |
| logits times one constant, same argmax | [logit scale](#head-logit-scale), [tied table scaled](#embd-scale-in-tied-table) |
| id 0, `!`, for ever | [NaN](#samp-nan-token0): a symptom of something earlier |

## What a probe can and cannot see

| probe | sees | misses |
|---|---|---|
| one token at position 0, logits only | weights, norms, FFN, residuals, head | every fault of rotation, position, mask, scale and Q/K order: half of all |
| one token, all nodes | those, and the order of Q/K rows, and the scale at the scores | rotation |
| two different tokens, all nodes | nearly everything | sliding windows, tiles, chunks, cache |
| n equal tokens | rows that differ: attention rows that do not sum to 1, rotation of V | whatever treats all rows alike |
| a prompt, and the same with its last token changed | an earlier row that changes: the mask leaks | the rest |
| all positions shifted by 11 | logits that change: rotation on one side only, of V, or not a rotation | any consistent rotation, right or wrong |
| prefill against token by token | positions, cache, mask offset, kernel paths | what both share |
| a prompt alone, of a model with recurrent state | every operation inside a call | the state between calls: window, matrix, padding, tokens taken back. `diagnose` says so and asks for decode steps |
| the same prompt alone, after another, and beside another | a state that leaks or is not cleared | |
| lengths across 32, 64, 256, 2048 | tiles, chunks, windows, capacity | |
| the same request twice | stale caches, races, uninitialised memory | |

Some faults cannot be told apart by logits at all: no rotation and all positions equal; gate and up exchanged and SiLU on the
wrong one. assay reports such ties as a class and names the tensor that would split it.

## What is not a fault

Hugging Face's order of Q and K rows *with* half-split rotation; a constant added to all positions; another order of
summation; activations quantised to 8 bits before a product; keys and values kept in half precision. Each is recognised and
named in a note. They are not reported as faults.

## Layers with a recurrent state

Six stages are about layers that remember: *convolution* (`conv-`, and `sconv-` of LFM2), *delta rule* (`gdn-` of Qwen3-Next
and Qwen3.5, `kda-` of Kimi-Linear), *scan* (`ssm-` of Mamba and the hybrids), *rwkv*, *recurrent state* (`st-`, `chunk-`) and
*draft head* (`mtp-`). Gated attention (`gattn-`) stands with attention. Ten of their faults cannot show in a prompt: they
need a second call. A fault of a draft head is judged from a dump whose names begin with `mtp/`.

## Engines that see

Five stages are about pictures (`vis-`): *picture pixels*, *picture patches*, *vision tower*, *projector* and *picture prompt*. They
are judged with `assay diagnose MMPROJ DUMP --image PICTURE` ([pictures](../howto/pictures.md#find-a-bug-in-an-engine-that-sees)).
Where the trained model and llama.cpp differ, both are healthy, and a note names the row.

## Adapters

The stage *adapter* (`lora-`) is about LoRA. The dump is judged against the model with its adapters:
`assay diagnose MODEL DUMP --lora FILE=SCALE`. Values have the names that they have without adapters.

## How to read the rows

*Shows first at* is the earliest node that differs on the same ids, in [assay's names](names.md). *At position 0* is what a
one-token prompt shows: `logits` already differ; `tensor only`, an intermediate differs and the logits do not; `no`. *Evidence*:
**E**: a public thread or note shows it; **E?**: a weak one does; **T**: measured on a toy model; **S**: measured on random
blocks; **N**: none found, listed because the structure invites it.
"""

KINDS = {
    FaultKind.COMPUTATION: "another computation",
    FaultKind.PRECISION: "a narrow type in one place",
    FaultKind.WEIGHTS: "other weights",
    FaultKind.INPUTS: "other inputs, positions or cache",
    FaultKind.TOKENS: "other tokens",
    FaultKind.CHOICE: "sampling or stopping",
}


_UNESCAPED, BAR = re.compile(r"(?<!\\)\|"), r"\\|"  # a bar ends a cell unless it is escaped


def page() -> str:
    """The whole page."""
    planted = sum(bool(f.variants) or f.id in {*PICTURE_PLANTS, *PROMPT_PLANTS} for f in FAULTS.values())
    out = [INTRO.format(n=len(FAULTS), planted=planted), "## Contents\n", "| stage | faults |", "|---|---|"]
    for stage in Stage:
        rows = [f for f in FAULTS.values() if f.stage == stage]
        out.append(f"| {stage} | " + ", ".join(f"[{f.id}](#{f.id})" for f in rows) + " |")
    for stage in Stage:
        out += ["", f"## {stage[0].upper()}{stage[1:]}", ""]
        for fault in FAULTS.values():
            if fault.stage == stage:
                out += _row(fault)
    return "\n".join(out) + "\n"


def _row(f: Fault) -> list[str]:
    links = ", ".join(f"[{label}]({address})" for label, address in f.links)
    kinds = " or ".join(KINDS[k] for k in f.kinds)
    fields = {
        "wrong": _code(f.wrong),
        "right": _code(f.right),
        "symptom": _code(f.symptom),
        "shows first at": f"{_code(f.shows)}; at position 0: {f.at_zero}; smallest probe: {_code(f.probe)}",
        "recognised": f"{_recognised(f)} ({kinds})",
        "evidence": f.evidence + (f"; {links}" if links else ""),
        **({"also called": ", ".join(f.aliases)} if f.aliases else {}),
    }
    rows = (f"| {name} | {_UNESCAPED.sub(BAR, text)} |" for name, text in fields.items())
    return [f"### {f.id}", "", "| | |", "|---|---|", *rows, ""]


def _recognised(f: Fault) -> str:
    tell = f"{_code(f.tell)}" if f.tell else ""
    labels = [v.label.replace("{p}", "*p*") for v in (*f.variants, *PICTURE_PLANTS.get(f.id, ()))]
    labels += [label for label, _ in PROMPT_PLANTS.get(f.id, ())]
    if labels:
        how = "; ".join(dict.fromkeys(labels))
        return f"{tell}. Planted as: {_code(how)}" if tell else f"planted as: {_code(how)}"
    return f"{tell}; {f.waits}" if f.waits else tell


def _code(text: str) -> str:
    """Formulas are prose here; only what Markdown would eat is escaped, outside of backticks."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("*", "\\*").replace("<", "&lt;").replace("|", "\\|").replace("_", "\\_")
        parts[i] = parts[i].replace("\\*p\\*", "*p*")
    return "`".join(parts)
