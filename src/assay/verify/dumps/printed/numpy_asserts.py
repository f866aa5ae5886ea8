"""Rewrites the arrays that a failed `np.testing.assert_allclose` shows, under pytest or alone, as one named list each.

____ test_row[step1-h0/ctx] ____             --- decode step 1, token 118 ---
E    ACTUAL: array([ 0.5, 1.5,               layer 0 ctx: [0.5, 1.5, 2.5]
E           2.5], dtype=float32)
E    DESIRED: array([ 0.5, 1.25, …

The name is in the test's parameters. `ACTUAL` (`x` in NumPy 1) is the engine's; `DESIRED` is what it is compared with.
Steps need the ids that they feed: "ids 77 31 then 118, 42".

Touch this module for the failures of another function that compares arrays.
"""

from __future__ import annotations

import re

from assay.verify.dumps.printed.decode_steps import step_heading

_TEST = re.compile(r"^_{3,120} (?:[\w.]{1,200}?)(?:\[([^\]\n]{1,200})\])? _{3,120}$", re.MULTILINE)
_ARRAY = re.compile(
    r"^E? {1,12}(?:ACTUAL|x): array\((\[[^()]{1,400000}?\])(?:,\s{0,40}dtype=\w{1,20})?\)$", re.MULTILINE
)
_SHORT_SUMMARY = re.compile(r"^=+ (?:short test summary|\d+ (?:failed|passed))", re.MULTILINE)
_FED = re.compile(r"\bthen[ :]{1,3}(\d{1,7}(?:(?:, ?| )\d{1,7}){0,400})\b(?!\.\d)")
_STEP = re.compile(r"(?:step|decode|gen|call|pass)[_ ]?(\d{1,4})", re.IGNORECASE)
_PROMPT = re.compile(r"(?:prefill|prompt)(?:ing)?", re.IGNORECASE)
_LAYER = re.compile(r"(?:h|blk|block|layers?|l)[._]?(\d{1,3})[/.:_](?=[A-Za-z])", re.IGNORECASE)


def with_asserted_arrays(text: str) -> str:
    """The text; where such arrays stand in it, with what precedes the first failed test, and these arrays."""
    tests = list(_TEST.finditer(text))
    if not tests or _ARRAY.search(text) is None:
        return text
    last = _SHORT_SUMMARY.search(text, tests[-1].end())
    ends = [*(m.start() for m in tests[1:]), last.start() if last else len(text)]
    fed = next((m[1] for m in _FED.finditer(text)), "")
    ids = [int(n) for n in re.findall(r"\d+", fed)]
    out, now = [text[: tests[0].start()]], 0
    for test, end in zip(tests, ends, strict=True):
        name, step = _name(test[1] or "")
        array = _ARRAY.search(text, test.end(), end)
        if array is None or not name or not 0 <= step <= len(ids):
            continue
        if step > now:
            out += [step_heading(n, ids[n - 1]) for n in range(now + 1, step + 1)]
            now = step
        numbers = re.sub(r"\s*\n(?:E )?\s*", " ", array[1])
        out.append(f"{name}: {numbers}")
    return "\n".join(out) + "\n"


def _name(parameters: str) -> tuple[str, int]:
    """The node of a test, and the number of its decode step; 0 is the prompt."""
    step, words = 0, []
    for part in parameters.split("-"):
        if m := _STEP.fullmatch(part):
            step = int(m[1])
        elif not _PROMPT.fullmatch(part):
            words.append(part)
    name = "-".join(words)
    m = _LAYER.match(name)
    return (f"layer {m[1]} {name[m.end() :]}" if m else name), step
