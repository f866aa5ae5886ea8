"""Writes docs/explanation/cases.md: five public notes whose authors never found their fault, answered with numbers.

python bench/cases.py [MODEL] [--again]     # tinyllama, the notes' own model; about ten minutes on 2 cores
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import codecs, open_file
from assay.models import Model, load
from assay.runtime import hub
from assay.text import Tokenizer
from assay.verify.dumps.contradictions import contradictions
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import inputs_of
from assay.verify.faults import FAULTS, Context, planted

ROOT = Path(__file__).resolve().parent.parent
BOS = (1,)
CHAT = (1, 29966, 29989, 1792, 29989, 29958, 13, 29896, 29966, 29989, 465, 22137, 29989, 29958)  # note 003's ids
MEANING = (1, 450, 6593)  # note 004: <s> The meaning
WATCHED = ("embd", "l_out-0", "result_norm", "result_output")
SUSPECTS = (  # fault, variant
    ("embd-strided", 0), ("w-transposed", 0), ("w-square-only-transposed", 0), ("gguf-dims-order", 0), ("head-transposed", 0),
    ("kv-swapped", 0), ("gqa-modulo", 0), ("o-proj-head-order", 0), ("gateup-split", 0), ("ffn-silu-on-up", 0),
    ("rope-type", 0), ("rope-missing", 0), ("pos-all-same", 0), ("mask-missing-prefill", 0), ("scale-missing", 0),
    ("norm-no-weight", 0), ("norm-weight-twice", 0), ("norm-plus1-double", 0), ("res-from-norm", 0), ("res-missing", 0),
    ("res-missing", 2),
)  # fmt: skip

Array = np.ndarray[Any, Any]


class Bench:
    """The model in float32, healthy or with a fault."""

    def __init__(self, model: Model) -> None:
        self.model, self.weights = model, Weights(model.file, np.float32, budget=8 << 30)

    def values(
        self, tokens: Sequence[int], fault: tuple[str, int] | None = None, weights: Weights | None = None
    ) -> dict[str, Array]:
        env = inputs_of(tokens, range(len(tokens)))
        used = weights or self.weights
        if fault is None:
            return interpret(self.model.graph, used, env, WATCHED)
        variant = FAULTS[fault[0]].variants[fault[1]]
        made = planted(Context(self.model, (len(tokens),)), variant, 0.0)
        with np.errstate(all="ignore"):
            return interpret(made.graph, used, env, WATCHED, functions=made.functions)

    def greedy(self, tokens: Sequence[int], n: int) -> list[int]:
        out = list(tokens)
        for _ in range(n):
            out.append(int(self.values(out)["result_output"][-1].argmax()))
        return out[len(tokens) :]


def log_softmax(z: Array) -> Array:
    z = z.astype(np.float64) - z.max()
    return np.asarray(z - np.log(np.exp(z).sum()))


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def cosine(a: Array, b: Array) -> float:
    return float(np.sum(a * b) / (rms(a) * rms(b) * a.size))


def shell(*arguments: str) -> list[str]:
    """A command and what it printed, for the page."""
    done = subprocess.run([sys.executable, "-m", "assay", *arguments], capture_output=True, text=True, cwd=ROOT)
    arguments = tuple("tinyllama" if a.endswith(".gguf") else a for a in arguments)
    shown = " ".join(a if a and not set(a) & set(" []|<>") else f"'{a}'" for a in arguments)
    return ["```", f"$ assay {shown}", (done.stdout.rstrip() or done.stderr.rstrip()), "```", ""]


def main() -> None:
    given = [a for a in sys.argv[1:] if not a.startswith("-")]
    name = given[0] if given else "tinyllama"
    file = open_file(hub.resolve(name))
    model, tokenizer = load(file), Tokenizer.from_gguf(file)
    bench = Bench(model)
    out = [
        "<!-- Made by bench/cases.py (make cases). Do not edit. -->\n",
        "# Five notes, answered\n",
        'Five public debugging notes on TinyLlama-1.1B-Chat: four ports that printed nonsense, every operation "verified 100 %",',
        "no fault found. Their authors lacked a definition to compare single operations with. The sections below show what their own numbers",
        "say, and the command that would have settled it. All numbers are made by `make cases` on one file",
        f"(`{file.path.name}`, types {', '.join(sorted({t.type.name for t in file.tensors.values()}))}); the notes used other",
        "quantisations, so values agree in the first digits only.\n",
    ]
    kept = ROOT / "build" / "cases"
    kept.mkdir(parents=True, exist_ok=True)
    notes: list[tuple[str, Callable[[], list[str]]]] = [
        ("002", note_002),
        ("001", lambda: note_001(bench)),
        ("004", lambda: note_004(bench)),
        ("003", lambda: note_003(bench, tokenizer, name)),
        ("000", lambda: note_000(bench, tokenizer, name)),
    ]
    for number, make in notes:  # the quick ones first; finished notes are kept
        if not (kept / number).exists() or "--again" in sys.argv:
            print(f"note {number}", file=sys.stderr)
            (kept / number).write_text("\n".join(make()))
    out += [(kept / number).read_text() for number, _ in sorted(notes, key=lambda n: n[0])]
    (ROOT / "docs" / "explanation" / "cases.md").write_text("\n".join(out) + "\n")


def note_000(bench: Bench, tokenizer: Tokenizer, name: str) -> list[str]:
    table = bench.model.file.decode("token_embd.weight")
    n_vocab, width = table.shape
    strided = table.reshape(-1)[np.arange(3) * n_vocab + 1]
    logits = bench.values(BOS)["result_output"][0]
    p = np.exp(log_softmax(logits))
    entropy = float(-(p * np.log2(p)).sum())
    faulty = bench.values(BOS, ("embd-strided", 0))["result_output"][0]
    best, bad = int(logits.argmax()), int(faulty.argmax())
    return [
        '## 000: "BOS should predict ` The`"\n',
        "*Believed:* after BOS the model should say token 450; it says 20780 with a logit of 9.58 (Q4_K_M) or 12517 with 10.15",
        "(Q4_0); embeddings, dequantisation and all operations are right.\n",
        f"**Raw BOS predicts nothing:** entropy {entropy:.2f} of {np.log2(len(p)):.2f} bits, best token {best}",
        f"({tokenizer.show(best)}) with probability {p[best]:.4f} and a logit of {logits[best]:.2f}; token 450 has {logits[450]:.2f}.",
        "There is no expected token, and a best logit near 10 is a fault by itself. See [what raw BOS predicts](../lab/raw-bos.md).\n",
        "**The printed embedding is not BOS's.** The note prints `[0.00000381, -0.01672363, -0.00485229]` (Q4_0) as BOS's first values.",
        f"BOS's row in this file begins `{_list(table[1][:3])}` and no value of it exceeds {np.abs(table[1]).max():.4f}: -0.0167 cannot be",
        "in it. Read with the vocabulary as stride, `data[d * 32000 + 1]` as the next note spells it out, the same file gives",
        f"`{_list(strided)}`: elements of rows 0, {n_vocab // width} and {2 * n_vocab // width}. That is [embd-strided](../reference/faults.md#embd-strided).",
        "(0.00000381 is 2 × 0.0000019073, the scale of the table's first block, which note 002 prints.)\n",
        f"**Planted.** With that fault this file predicts token {bad} from BOS with a logit of {faulty[bad]:.2f}.\n",
        "**Two quantisations** may disagree, most of all after BOS, where nothing separates the candidates: two arithmetics",
        "on one and the same file already name different winners ([raw BOS](../lab/raw-bos.md)). How far apart this file's weights are when",
        "rounded to two other types:\n",
        *_quantisations(bench, tokenizer),
        "**The suggested chat prompt** `[1, 518, 25580, 29962, 29871]` is not `<s> <|user|>`:\n",
        *shell("tokenize", name, "--ids", "1,518,25580,29962,29871"),
    ]


def _list(values: Array) -> str:
    return "[" + ", ".join(f"{v:.6g}" for v in values) + "]"


def _quantisations(bench: Bench, tokenizer: Tokenizer) -> list[str]:
    file = bench.model.file
    prompts = {"BOS": BOS, "The capital of France is": tuple(tokenizer.encode("The capital of France is"))}
    results = {}
    for kind in ("Q4_0", "Q4_1"):

        def rounded(tensor: str, kind: str = kind) -> Array:
            return codecs.decode(kind, codecs.encode(kind, file.decode(tensor)))

        names = [n for n, t in file.tensors.items() if len(t.shape) == 2 and n != "token_embd.weight"]
        variants = {n: (lambda n=n: rounded(n)) for n in names}
        weights = Weights(file, np.float32, budget=0, variants=variants)
        results[kind] = {}
        for label, tokens in prompts.items():
            results[kind][label] = bench.values(tokens, weights=weights)["result_output"][-1]
        del weights
    out = ["| prompt | Q4_0 says | Q4_1 says | KL divergence |", "|---|---|---|---|"]
    for label in prompts:
        a, b = (log_softmax(results[k][label]) for k in ("Q4_0", "Q4_1"))
        kl = float(np.sum(np.exp(a) * (a - b)))
        cells = [f"`{tokenizer.show(int(x.argmax()))}` ({np.exp(x.max()):.4f})" for x in (a, b)]
        out.append(f"| {label} | {cells[0]} | {cells[1]} | {kl:.4f} |")
    return [*out, ""]


def note_001(bench: Bench) -> list[str]:
    out = [
        '## 001: "all operations are 100 % right, so the weights must be wrong"\n',
        "*Believed:* Q4_K_M dequantisation. *Dumped:* ten values and an rms. They are enough. A run of this file with the fault of",
        "000 planted, dumped as the note dumps (first ten values and rms of the last row, printed to seven digits):\n",
    ]
    values = bench.values(BOS, ("embd-strided", 0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "note-001.jsonl"
        lines = ['{"assay_dump": 1, "engine": "planted", "tokens": [1]}']
        for node, value in values.items():
            row = value[-1]
            first = ", ".join(f"{v:.7g}" for v in row[:10])
            lines.append(f'{{"name": "{node}", "row": 0, "first": [{first}], "rms": {rms(row):.7g}}}')
        path.write_text("\n".join(lines) + "\n")
        shown = shell("diagnose", str(bench.model.file.path), str(path))
    shown[1] = "$ assay diagnose tinyllama note-001.jsonl"
    return [*out, *shown, "\"RMSNorm, FFN, attention match when fed the engine's own values\" is true of such an engine, and says that the fault",
            "lies before them.\n"]  # fmt: skip


def note_002() -> list[str]:
    found = contradictions(read_dump(ROOT / "docs" / "cases" / "note-002.log"))
    return [
        '## 002: "perfect match, ratio 1.000000x"\n',
        "*Believed:* the decoded row equals a Python decoder's. The two printed rows:\n",
        "```",
        (ROOT / "docs" / "cases" / "note-002.log").read_text().rstrip(),
        "```\n",
        *(f"> {line}" for line in found),
        "",
        "Two mistakes print this. Either the Python decoder takes the two nibbles of a byte as neighbours",
        "([q4_0-interleave](../reference/faults.md#q4_0-interleave)) and the engine is right, or the engine skips every second element. The notes'",
        "own bytes support the first: the table begins `20 00 0b 1a da 9d`, a scale of 0.0000019073 and low nibbles 11, 10, 10. So",
        "element 1 is (10 - 8) × 0.0000019073 = 0.00000381 only with all low nibbles first, and the engine printed 0.00000381",
        "in note 000. The reference it was compared with was the faulty one. (And block 0 is token 0, `<unk>`; BOS is token 1.)\n",
    ]


def note_003(bench: Bench, tokenizer: Tokenizer, name: str) -> list[str]:
    right = bench.values(CHAT)
    said = tokenizer.decode(bench.greedy(CHAT, 8))
    out = [
        '## 003: "hidden states of the right rms and no correlation"\n',
        "*Believed:* the ids are right, attention is at fault with 80 %. The ids first:\n",
        *shell("tokenize", name, "1", "--chat", "--check", str(list(CHAT)).replace(" ", "")),
        f"No engine could have been right: with those ids, the definition continues `{said!r}`.\n",
        "Which faults give a final hidden state of the right size that is unrelated to the truth? This file, those ids, the",
        f"last row of `result_norm` (healthy: rms {rms(right['result_norm'][-1]):.3f}):\n",
        "| planted | rms | cosine with the truth | first five |",
        "|---|---|---|---|",
    ]
    rows = []
    for fault, i in SUSPECTS:
        last = bench.values(CHAT, (fault, i))["result_norm"][-1]
        label = f"[{fault}](../reference/faults.md#{fault})" + (
            f" ({FAULTS[fault].variants[i].label})" if fault == "res-missing" else ""
        )
        rows.append(
            (
                abs(cosine(last, right["result_norm"][-1])),
                f"| {label} | {rms(last):.3f} | {cosine(last, right['result_norm'][-1]):.3f} | {_list(last[:5])} |",
            )
        )
    out += [text for _, text in sorted(rows)]
    return [
        *out,
        "",
        "The rms after a norm is that of its weights, for any input: a right rms there proves nothing.\n",
    ]


def note_004(bench: Bench) -> list[str]:
    out = [
        '## 004: "one token dominates at every position, the logit range hardly changes"\n',
        "*Believed:* KV cache or positions. First, the printed values are impossible:\n",
        *(f"> {line}" for line in contradictions(read_dump(ROOT / "docs" / "cases" / "note-004.log"))),
        "",
        "Then, which faults make one token win at positions 0, 1 and 2 of `<s> The meaning`, with one range?\n",
        "| planted | best token at each position | logit range at each position |",
        "|---|---|---|",
    ]
    rows = []
    for item in (None, *SUSPECTS):
        logits = bench.values(MEANING, item)["result_output"]
        best = [int(r.argmax()) for r in logits]
        spans = [f"[{r.min():.2f}, {r.max():.2f}]" for r in logits]
        label = "nothing" if item is None else f"[{item[0]}](../reference/faults.md#{item[0]})"
        if item is not None and item[0] == "res-missing":
            label += f" ({FAULTS[item[0]].variants[item[1]].label})"
        same = len(set(best)) == 1
        rows.append(
            (
                item is not None,
                not same,
                f"| {label} | {'**' if same else ''}{', '.join(map(str, best))}{'**' if same else ''} | {', '.join(spans)} |",
            )
        )
    out += [text for *_, text in sorted(rows, key=lambda r: r[:2])]
    return [
        *out,
        "",
        "A cache or position fault cannot do it at position 0, where there is nothing to cache: the note's own first line rules its",
        "first suspicion out. `[in_features, out_features]` in its list of verified facts is [w-transposed](../reference/faults.md#w-transposed).\n",
    ]


if __name__ == "__main__":
    main()
