"""Other people's engines on two files: docs/engines.md, a line an engine, with the verdict in words.

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
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.verify.witness import WITNESSES

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "engines.json"
PAGE = ROOT / "docs" / "engines.md"
STORIES = ROOT.parent / "shared" / "data" / "models" / "stories15M-q8_0.gguf"
LENGTHS = "10"
LIMIT_S = 600


def llama3_like(source: Path, path: Path) -> Path:
    """The file with factors for its rotation: none for the fast pairs, up to eight for the slow ones."""
    file = open_file(source)
    tensors = [Tensor(name, t.shape, t.type, np.asarray(file.raw(name)).tobytes()) for name, t in file.tensors.items()]
    pairs = int(file.metadata["llama.rope.dimension_count"]) // 2
    factors = np.ones(pairs, np.float32)
    factors[pairs // 2 :] = np.linspace(2, 8, pairs - pairs // 2)
    tensors.append(Tensor("rope_freqs.weight", (pairs,), by_name("F32"), factors))
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, dict(file.metadata), tensors)
    return path


def versions(engine: str) -> str | None:
    """The packages that hold the engine, or None where one is missing."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in WITNESSES[engine].packages)
    except PackageNotFoundError:
        return None


def verdict(model: str, engine: str) -> dict[str, Any]:
    """What `assay check` says, as JSON."""
    command = [sys.executable, "-m", "assay", "check", model, "--engine", engine, "--lengths", LENGTHS, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 1):
        return {"verdict": "refused", "said": done.stderr.strip().splitlines()[-1].removeprefix("assay: ")}
    return dict(json.loads(done.stdout[done.stdout.index("{") :]))


def in_words(found: dict[str, Any]) -> str:
    """A cell of the table."""
    if found["verdict"] == "refused":
        return f"refuses the file: {found['said']}"
    answers = [check["answer"] for check in found["checks"] if check.get("answer")]
    if found["verdict"] == "right":
        return "**right**: " + "; ".join(f"{c['name']}: {c['detail']}" for c in found["checks"])
    return "**wrong**: " + (_sentences(answers[0]) if answers else found["checks"][0]["detail"])


def _sentences(answer: str) -> str:
    """The lines of an answer that say what is wrong, where it shows and how sure that is."""
    lines = [line.strip() for line in answer.splitlines()]
    wanted = ("cause:", "best guess:", "wrong:", "fix:", "evidence:", "confidence", "unexplained:", "note:")
    return ". ".join(line for line in lines if line.startswith(wanted)) or lines[0]


def page(kept: dict[str, Any]) -> str:
    rows = []
    for name, witness in WITNESSES.items():
        if name in kept:
            found = kept[name]
            cells = (f"{witness.title} (`{name}`)", found["packages"], witness.shows, *map(in_words, found["models"]))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n" + TAIL


HEAD = """\
# Other people's engines

Made by `make engines` (`bench/engines.py`); every cell is what `assay check MODEL --engine NAME --lengths 10` says.
Each engine is an optional extra of its name: `pip install -e '.[tinygrad]'` in a checkout. What an engine lets be seen
decides how its answer is found: from nodes, from the outputs of layers, or from log-probabilities alone.

The second file is like a Llama 3 file: stories15M with a tensor `rope_freqs.weight` (ones, then 2 to 8 over the upper
half of the pairs), which divides the angles of the rotation.

| engine | packages | shows | SmolLM2 135M (Q4_1) | stories15M (Q8_0) with `rope_freqs.weight` |
|---|---|---|---|---|
"""
TAIL = """
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=tuple(WITNESSES), help="only these; default: all")
    parser.add_argument("--again", action="store_true", help="ask again what has been answered before")
    parser.add_argument("--model", default="smollm2", help="the ordinary file")
    parser.add_argument("--stories", type=Path, default=STORIES, help="the file that gets factors")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    factored = llama3_like(args.stories, KEPT.with_name("stories15M-rope_freqs.gguf"))
    for name in args.engine or WITNESSES:
        packages = versions(name)
        if packages is None:
            print(f"{name}: not installed; pip install -e '.[{name}]'", file=sys.stderr)
            continue
        if name in kept and not args.again:
            continue
        print(f"{name}: {packages}", file=sys.stderr, flush=True)
        kept[name] = {"packages": packages, "models": [verdict(m, name) for m in (args.model, str(factored))]}
        KEPT.write_text(json.dumps(kept, indent=1))
    PAGE.write_text(page(kept))


if __name__ == "__main__":
    main()
