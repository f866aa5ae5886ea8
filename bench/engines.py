"""Runs other people's engines on two files and writes docs/lab/engines.md: a row for each engine, the verdict in words.

make engines            # installs the extras, then: python bench/engines.py
python bench/engines.py --engine tinygrad --again

Every verdict is what `assay check MODEL --engine NAME --lengths 10 --json` prints; answers are kept in
build/engines.json, so that one engine can be tried again without the others. SmolLM2 is an ordinary file. The other is
stories15M with a tensor `rope_freqs.weight` (ones, then 2 to 8 over the upper half of the pairs), as Llama 3.1 and
later files carry it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from assay.verify.witness import WITNESSES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.synthetic import with_factors  # noqa: E402

KEPT = ROOT / "build" / "engines.json"
PAGE = ROOT / "docs" / "lab" / "engines.md"
STORIES = ROOT.parent / "shared" / "data" / "models" / "stories15M-q8_0.gguf"
ORDINARY, FACTORED = "smollm2", "stories15M-rope_freqs.gguf"
LENGTHS = "10"
OPTIONS = {"openvino": ("--precision", "f32")}  # else the plugin chooses, by the machine
LIMIT_S = 900
WIDTH = 200
FOLDERS = re.compile(r"(?:/[^\s/:]+)*/(?=[^\s/:]+\.gguf)")

# Findings by hand about a verdict; printed only while the verdict is the same.
BY_HAND = {
    ("tinygrad", FACTORED, "wrong: rope-freq-factors"): """\
True, and its source says so: `llm/model.py` makes the frequencies of `rope.freq_base` alone, and where it loads the
tensors a comment notes that `rope_freqs.weight` is unused.""",
    ("transformers", FACTORED, "wrong: rope-freq-factors"): """\
True. Nothing in its reader of GGUF files (`modeling_gguf_pytorch_utils.py`) asks for `rope_freqs.weight`; scaling is
rebuilt from a file's keys for gpt-oss only.""",
    ("mistralrs", FACTORED, "wrong: spm-merge-order"): """\
True, and the factors are used. mistral.rs counts 27 tokens in a text that this vocabulary cuts into 13; 27 is what a
unigram tokenizer makes of it. Fed with those 27 ids, the definition is 0.09 nats (rms) from its log-probabilities; with
the factors ignored 0.25, with the right 13 ids 1.87.""",
    ("openvino", ORDINARY, "wrong: q4_1-min"): """\
True. The graph that its reader of GGUF files makes holds each block's minimum as a zero point of four bits (a constant
of type `u4` beside the scales): d * (q - round(-m / d)) where the file says d * q + m.""",
    ("openvino", FACTORED, "refused"): """\
Its reader of GGUF files ends with the C++ library's `map::at`, a lookup that failed, and does not say of what.""",
}


def versions(engine: str) -> str | None:
    """The packages that hold the engine, or None where one is missing."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in WITNESSES[engine].packages)
    except PackageNotFoundError:
        return None


def verdict(model: str, engine: str) -> dict[str, Any]:
    """The answer of `assay check`, as JSON."""
    command = [sys.executable, "-m", "assay", "check", model, "--engine", engine, "--lengths", LENGTHS]
    command += [*OPTIONS.get(engine, ()), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"verdict": "refused", "said": f"no answer within {LIMIT_S} s"}
    if done.returncode not in (0, 1) or "{" not in done.stdout:  # a witness may end with a traceback, too
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"verdict": "refused", "said": FOLDERS.sub("", said.removeprefix("assay: "))}
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return {key: found[key] for key in ("verdict", "checks")}


def cell(found: dict[str, Any]) -> str:
    """The verdict in a word, and the mistakes by name."""
    if found["verdict"] in ("right", "refused"):
        return str(found["verdict"])
    named = [line for line in _answer(found).splitlines() if line.startswith(("cause", "best guess"))]
    return "wrong: " + (", ".join(line.split(": ", 1)[1].split(" (")[0] for line in named) or "unexplained")


def in_words(found: dict[str, Any]) -> list[str]:
    """The lines that say why: of each check where all is right, else of the diagnosis."""
    if found["verdict"] == "refused":
        return [f"refused: {found['said']}"]
    checks = [f"{'pass' if c['passed'] else 'FAIL'}  {c['name']}: {c['detail']}" for c in found["checks"]]
    wanted = ("cause", "best guess", "wrong:", "fix:", "evidence:", "confidence", "unexplained:", "note:")
    lines = [line for line in _answer(found).splitlines() if line.strip().startswith(wanted)]
    return checks + lines


def _answer(found: dict[str, Any]) -> str:
    return next((str(check["answer"]) for check in found["checks"] if check.get("answer")), "")


def page(kept: dict[str, Any]) -> str:
    rows, why = [], []
    for name, witness in WITNESSES.items():
        if name not in kept:
            continue
        found = kept[name]
        models = {label: found["models"][label] for label in (ORDINARY, FACTORED) if label in found["models"]}
        verdicts = (cell(models[label]) if label in models else "no answer kept" for label in (ORDINARY, FACTORED))
        cells = (f"[{witness.title}](#{name})", found["packages"], witness.shows, *verdicts)
        rows.append("| " + " | ".join(cells) + " |")
        why.append(f"\n## {name}\n")
        for model, said in models.items():
            command = " ".join((f"$ assay check {model} --engine {name} --lengths {LENGTHS}", *OPTIONS.get(name, ())))
            why.append("\n".join(("```", command, *(line[:WIDTH] for line in in_words(said)), "```\n")))
            if told := BY_HAND.get((name, model, cell(said))):
                why.append(f"{told}\n")
    return HEAD + "\n".join(rows) + "\n" + "\n".join(why)


HEAD = """\
# Other people's engines

Made by `make engines` (`bench/engines.py`); every cell is what `assay check MODEL --engine NAME --lengths 10` says.
Each engine is an optional extra of its name: `pip install -e '.[tinygrad]'` in a checkout. The visible values
of an engine decide how it is judged: by nodes, by the outputs of layers, or by log-probabilities alone. tinygrad runs
with its switch HALF=0, in float32; by default its weights are halves. OpenVINO runs in float32. mlx-lm reads no
GGUF files: its model definitions get the file's decoded weights. The others read the file themselves.

The second file is like a Llama 3 file: stories15M with a tensor `rope_freqs.weight` (ones, then 2 to 8 over the upper
half of the pairs), which divides the angles of the rotation.

| engine | packages | shows | SmolLM2 135M (Q4_1) | stories15M (Q8_0) with `rope_freqs.weight` |
|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=tuple(WITNESSES), help="only these; default: all")
    parser.add_argument("--again", action="store_true", help="ask again what has been answered before")
    parser.add_argument("--model", default=ORDINARY, help="the ordinary file; '' leaves it out")
    parser.add_argument("--stories", type=Path, default=STORIES, help="the file that gets factors")
    args = parser.parse_args()
    if not args.stories.is_file():
        parser.error(f"{args.stories}: no such file; give a Llama in GGUF form with --stories FILE")
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    factored = with_factors(args.stories, KEPT.with_name(FACTORED))
    files = {label: model for label, model in ((FACTORED, str(factored)), (args.model, args.model)) if model}
    for name in args.engine or WITNESSES:
        packages = versions(name)
        if packages is None:
            print(f"{name}: not installed; pip install -e '.[{name}]'", file=sys.stderr)
            continue
        for label, model in files.items():
            if args.again or label not in kept.get(name, {}).get("models", {}):
                print(f"{name} on {label}", file=sys.stderr, flush=True)
                kept.setdefault(name, {"models": {}})["packages"] = packages
                kept[name]["models"][label] = verdict(model, name)
                KEPT.write_text(json.dumps(kept, indent=1))
    PAGE.write_text(page(kept))


if __name__ == "__main__":
    main()
