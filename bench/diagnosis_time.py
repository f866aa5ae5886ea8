"""The cost of a diagnosis: seconds of the calling thread until the first verdict and the last, by what was dumped.

python bench/diagnosis_time.py                                  # SmolLM2
python bench/diagnosis_time.py --model stories260k full:rope-type layers::q8

A case is a style, a fault of the second engine (nothing: healthy) and an arithmetic, joined by colons. A style is one
of tests/planting.py (full, last, layers, logits), or `log`: text with five values of some nodes of every layer. The
noise of the tokens is simulated anew, as for the first dump of a new user.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import planting  # noqa: E402

from assay.gguf import open_file  # noqa: E402
from assay.models import load  # noqa: E402
from assay.runtime import hub  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402
from assay.verify.thresholds import SECONDS  # noqa: E402

LOGGED = {"attn_out": "attention output", "ffn_out": "mlp out", "l_out": "hidden"}  # nodes, and words for them
CASES = ("full:rope-type", "layers:rope-type", "last:rope-type", "last:rope-base", "layers::q8", "last::q8")


def log(case: planting.Case, path: Path, tokens: Sequence[int]) -> Path:
    """A log as people print it: five values of the last token."""
    lines = [f"tokens: {list(tokens)}"]
    for name, value in case.parts[-1].items():
        role, _, layer = name.partition("-")
        if role in LOGGED:
            lines.append(f"layer {layer} {LOGGED[role]}: {[round(float(x), 5) for x in value[-1, :5]]}")
    out = path / "engine.log"
    out.write_text("\n".join(lines) + "\n")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a file, or a model that assay knows")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="deadline of each diagnosis")
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    args = parser.parse_args()
    model = load(open_file(hub.resolve(args.model)))
    tokens = tuple(t % model.hparams.n_vocab for t in planting.SMOL_TOKENS)
    path, runs = model.file.path, dict[tuple[str, str], planting.Case]()  # the last run: cases in turn share it
    print(f"{'case':32}{'first':>8}{'last':>8}  verdict")
    for case in args.cases:
        style, bug, arithmetic = (*case.split(":"), "", "")[:3]
        if (bug, arithmetic) not in runs:
            bugs = (bug,) if bug else ()
            runs = {(bug, arithmetic): planting.second(path, *bugs, tokens=tokens, arithmetic=arithmetic or "f32")}
        run = runs[bug, arithmetic]
        with tempfile.TemporaryDirectory() as folder:
            said: list[float] = []
            begun = time.thread_time()
            if style == "log":
                dump = load_dump(log(run, Path(folder), tokens), model)
            else:
                dump = planting.dump(run, style, model, Path(folder), tokens)
            hear = lambda _, s=said: s.append(time.thread_time())  # noqa: E731
            found = diagnose(model, dump, cache=False, progress=hear, seconds=args.seconds)
            ended = time.thread_time()
        first = said[0] if said else ended
        print(f"{case:32}{first - begun:7.1f}s{ended - begun:7.1f}s  {found}", flush=True)


if __name__ == "__main__":
    main()
