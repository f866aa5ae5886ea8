"""Log lines made to be slow: reading takes time in proportion to the line, whatever stands in it."""

from __future__ import annotations

import pytest

from tests.hostile.conftest import bounded

LENGTH = 100_000
SHAPES = {
    "a list that does not end well": "Tokens: [" + "12345, " * 14_000 + "; end]",
    "digits": "1" * LENGTH,
    "digits and dots": "1." * (LENGTH // 2),
    "blanks": "rms" + " " * LENGTH + "x",
    "tabs": "rms=" + "\t" * LENGTH,
    "brackets": "[" * LENGTH,
    "brackets that close": "[" * (LENGTH // 2) + "]" * (LENGTH // 2),
    "hex": "ab" * (LENGTH // 2),
    "words": "layer " * (LENGTH // 6),
    "a word": "a" * LENGTH,
    "underscores": "_" * LENGTH,
    "dashes": "-" * LENGTH,
    "equals": "a=" * (LENGTH // 2),
    "quotes": '"' * LENGTH,
    "escaped quotes": '"\\' * (LENGTH // 2),
    "pairs": "(1, 2.5), " * (LENGTH // 10),
    "a table": "| 1.5 " * (LENGTH // 6),
    "commas": "," * LENGTH,
    "a time": "12:" * (LENGTH // 3),
    "paths": "a/" * (LENGTH // 2),
    "escapes": "\x1b[" * (LENGTH // 2),
    "exponents": "1e" * (LENGTH // 2),
    "floats": "-1.5e-3 " * (LENGTH // 8),
    "headings": "#" * LENGTH,
    "an eval callback": "ggml_debug: " + "a" * LENGTH + " = (f32) ADD(",
    "an eval callback's operands": "ggml_debug: a = (f32) ADD(" + "b{1, 2}, " * (LENGTH // 9),
    "colons": "a:" * (LENGTH // 2),
    "stars": "*" * LENGTH,
    "names with indices": "blk[0]." * (LENGTH // 7),
    "dots": "." * LENGTH,
}
PATTERNS = [
    "{name}: {rms}",
    "* {layer} * {first}",
    "a {first} b {last} c",
    "{tokens} x",
    "{name} {top}",
    "x * y * z {rms}",
]
CODE = """
import sys, time
from pathlib import Path
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.dumps.formats.eval_callback import is_eval_callback
from tests.hostile.test_logs import PATTERNS, SHAPES
worst = {}
for name, line in SHAPES.items():
    took = []
    for run in (lambda: read_log(Path("log"), [], line), lambda: is_eval_callback(line),
                *(lambda p=p: Pattern(p).match(line) for p in PATTERNS)):
        started = time.process_time()
        run()
        took.append(time.process_time() - started)
    worst[name] = max(took)
slowest = max(worst, key=worst.get)
print(f"{slowest}: {worst[slowest]:.3f}")
"""


def test_lines_of_a_hundred_thousand_characters() -> None:
    """All shapes against the whole reader and each pattern: seconds where a backtracking pattern took years."""
    done = bounded("-c", CODE, seconds=60, memory=1 << 30)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize("n", [83, 1000])
def test_a_list_that_took_twenty_seconds(n: int) -> None:
    line = "Tokens: [" + "12345, " * (n // 7) + "; end]"
    code = (
        "import sys; from pathlib import Path; from assay.verify.dumps.printed.log_reader import read_log;"
        "read_log(Path(), [], sys.argv[1])"
    )
    assert bounded("-c", code, line, seconds=10).returncode == 0
