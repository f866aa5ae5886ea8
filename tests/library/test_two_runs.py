"""`watch` and `bisect` on real processes: an engine is a script that prints its layers, right or with a fault in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.library.two_runs import bisect
from assay.library.watching import watch
from tests import planting, tiny
from tests.verify.endpoint.faulty_server import serving

TOKENS = [1, 300, 297, 12, 300, 77]
ENGINE = """\
import sys, time
import numpy as np
found = np.load({values!r})
print("tokens:", found["tokens"].tolist(), flush=True)
for i in range(2):
    row = found[f"l_out-{{i}}"][-1, :8] * {factor}
    print(f"layer {{i}}: {{row.tolist()}}", flush=True)
{rest}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("two") / "tiny.gguf", type="Q8_0")


@pytest.fixture(scope="module")
def values(path: Path) -> Path:
    out = path.with_name("truth.npz")
    assay.load(path, engine="reference").trace(TOKENS).save(out)
    return out


def engine(folder: Path, values: Path, factor: float = 1.0, rest: str = "", name: str = "engine.py") -> list[str]:
    script = folder / name
    script.write_text(ENGINE.format(values=str(values), factor=factor, rest=rest))
    return [sys.executable, str(script)]


def test_watch_once(path: Path, values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = engine(tmp_path, values)
    assert main(["watch", str(path), "--once", "--", *command]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("same: 2 nodes") and "l_out-0 … l_out-1 (2 nodes): last row, 8 values each" in err
    assert main(["watch", str(path), "--once", "--json", "--", *engine(tmp_path, values, 1.5)]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["event"] == "verdict" and told[-1]["first_wrong"] == "l_out-0"


def test_watch_names_the_mistake(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict first, then why; the second engine is the author's."""
    case = planting.second(path, "rope-base", tokens=TOKENS, steps=(6,))
    out = tmp_path / "out.npz"
    np.savez(out, tokens=np.array(TOKENS), **case.parts[0])
    command = [sys.executable, "-c", f"import os; os.utime({str(out)!r})"]
    assert main(["watch", str(path), "--once", "--diagnose", "--dump", str(out), "--", *command]) == 1
    verdict, _, why = capsys.readouterr().out.partition("\n\nfault: ")
    assert verdict.startswith("wrong: Qcur-0") and why.startswith("rope-base at Qcur-0: your base is")


def test_watch_tells_while_the_engine_runs(path: Path, values: Path, tmp_path: Path) -> None:
    seen = watch(path, engine(tmp_path, values, 1.5, "time.sleep(60)"))
    for event in seen:
        if event.kind == "first":
            assert event.finding is not None and event.finding.first_wrong == "l_out-0"
            break
    started = time.monotonic()
    seen.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30  # the sleeping engine was ended with it


def test_watch_runs_again_on_change(path: Path, values: Path, tmp_path: Path) -> None:
    command = engine(tmp_path, values, 1.5)
    verdicts = []
    for event in watch(path, command, interval=0.05):
        if event.kind == "verdict":
            verdicts.append(event.text)
        if len(verdicts) == 2:
            break
        if event.kind == "wait":
            assert "engine.py" in event.text
            engine(tmp_path, values, 1.0)
            os.utime(tmp_path / "engine.py", (1, 1))
    assert verdicts == ["wrong", "same"]


def test_watch_a_file_that_is_written(path: Path, values: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    rest = f"np.savez({str(out)!r}, **found)"
    kinds = [e.text for e in watch(path, engine(tmp_path, values, 1, rest), dump=out, once=True) if e.kind == "verdict"]
    assert kinds == ["same"]
    with pytest.raises(assay.AssayError, match="not written by"):
        list(watch(path, engine(tmp_path, values), dump=tmp_path / "never.npz", once=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["watch", "MODEL"], "no command given"),
        (["watch", "MODEL", "--once", "--", "/no/such/engine"], "no such program"),
        (["watch", "MODEL", "--once", "--", "echo", "hello"], "a text without numbers, not values of nodes"),
        (["watch", "MODEL", "--once", "--", "echo", "layer 0: [1.5, 2.5, 3.5]"], "has no token ids"),
        (["bisect", "x", "x"], "A and B are the same"),
        (["bisect", "/no/such/a", "/no/such/b"], "no such program"),
        (["bisect", "http://localhost:1", "x"], "servers are compared with each other"),
        (["bisect", "'", "x"], "neither a file nor a command"),
    ],
)
def test_errors(path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path) if a == "MODEL" else a for a in arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_interrupt_ends_the_engine_too(path: Path, values: Path, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    rest = f"import os; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(120)"
    command = [sys.executable, "-m", "assay", "watch", str(path), "--", *engine(tmp_path, values, 1, rest)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def spoilt(values: Path, out: Path, name: str, rows: slice) -> Path:
    found = dict(np.load(values))
    found[name][rows] *= 1.25
    np.savez(out, **found)
    return out


def test_bisect_dumps(path: Path, values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = spoilt(values, tmp_path / "b.npz", "ffn_norm-1", slice(2, 4))
    assert main(["bisect", str(values), str(other), "-m", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("they differ first at ffn_norm-1, on tokens 2, 3 of 6") and "A is right, B is wrong" in out
    assert main(["bisect", str(values), str(other), "--json"]) == 1
    told: Any = json.loads(capsys.readouterr().out)
    assert told["first"] == "ffn_norm-1" and told["tokens"] == [2, 3] and told["right"] is None
    third = spoilt(values, tmp_path / "c.npz", "embd", slice(None))
    assert bisect(str(third), str(other), path).right.startswith("both are wrong")
    found = bisect(str(values), str(spoilt(values, tmp_path / "d.npz", "embd", slice(0, 0))), path)
    assert found and found.right.startswith("both are right")


def test_bisect_commands(path: Path, values: Path, tmp_path: Path) -> None:
    sides = [" ".join(engine(tmp_path, values, f, name=f"e{i}.py")) for i, f in enumerate((1.5, 1.0))]
    found = bisect(sides[0], sides[1], path)
    assert found.first is not None and found.first.name == "l_out-0" and found.first.tokens == (5,)
    assert found.right.startswith("B is right, A is wrong")
    alone = bisect(sides[0], sides[1])  # without a model, the row that a line printed is unknown
    assert alone.first is not None and alone.first.name == found.first.name and alone.first.tokens == ()
    assert repr(alone).startswith("they differ first at l_out-0 (nmse")


def test_bisect_servers(path: Path) -> None:
    with serving(path) as good, serving(path, "rope-base") as bad, serving(path) as again:
        found = bisect(bad, good, path)
        assert found.first is not None and found.first.name.startswith("generated token 0")
        assert found.right.startswith("B is right, A is wrong")
        assert bisect(good, again, path)
