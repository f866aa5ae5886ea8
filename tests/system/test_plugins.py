"""Entry points of packages that are made here: a distribution in a folder, with a module and its entry_points.txt."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from assay import engines
from assay.engines.contract import PagedEngine
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.system import plugins
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.dumps.printed.habits import HABITS
from assay.verify.dumps.reader_table import unregister_reader
from assay.verify.faults import FAULTS, Context, add_plugin_faults, planted
from tests.tiny import make

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package: its name, its module's source, and its entry points by group."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(plugins, "_registered", {})
    modules: list[str] = []

    def install_package(name: str, source: str, **groups: dict[str, str]) -> None:
        module = name.replace("-", "_")
        modules.append(module)
        (site / f"{module}.py").write_text(source)
        folder = site / f"{module}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [
            f"[assay.{group}]\n" + "".join(f"{key} = {module}:{target}\n" for key, target in entries.items())
            for group, entries in groups.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(lines))

    yield install_package
    for module in modules:
        sys.modules.pop(module, None)


ENGINE = """
from assay.engines.reference import ReferenceEngine
class Mine(ReferenceEngine):
    name = "mine"
def create(model, **options):
    options.pop("threads", None)
    return Mine(model, "float64", **options)
"""


def test_an_engine(install: Install, tmp_path: Path) -> None:
    install("my-engine", ENGINE, engines={"mine": "create"})
    model = load(open_file(make(tmp_path / "m.gguf")))
    engine: PagedEngine = engines.create("mine", model, n_pages=4)
    assert engine.name == "mine" and plugins.names("assay.engines") == ["mine"]
    with pytest.raises(AssayError, match=r"engine other: not available here; there are .*mine"):
        engines.create("other", model)
    with pytest.raises(AssayError, match="engine mine: has no option --colour; leave it out"):
        engines.create("mine", model, colour=1)


def test_an_architecture(install: Install, tmp_path: Path) -> None:
    install("my-models", "from assay.models.llama import llama\n", architectures={"zlama": "llama"})
    path = make(tmp_path / "m.gguf")
    found = load(open_file(_renamed(path, "zlama")))
    assert [node.name for node in found.graph] == [node.name for node in load(open_file(path)).graph]
    with pytest.raises(AssayError, match="unknown architecture 'zlamz'; the nearest known is zlama"):
        load(open_file(_renamed(path, "zlamz")))


@pytest.mark.parametrize("group", ["faults", "readers", "operations"])
def test_functions_that_register(install: Install, group: str) -> None:
    """Each is called once, however often its group is looked at."""
    install("my-additions", "calls = []\ndef register():\n    calls.append(1)\n", **{group: {"mine": "register"}})
    for _ in range(2):
        assert plugins.register_all(f"assay.{group}") == []
    assert sys.modules["my_additions"].calls == [1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "cannot be imported .ModuleNotFoundError: No module named 'no_such_module'."),
        ("def other(): pass", "cannot be imported .AttributeError: "),
        ("register = 3", "broken:register is not a function .found int."),
        ("def register():\n    raise ValueError('two\\nlines')", "broken:register failed .ValueError: two lines."),
    ],
)
def test_a_broken_plugin_is_named_and_disturbs_nothing(
    install: Install, caplog: pytest.LogCaptureFixture, source: str, message: str
) -> None:
    install("broken", source, faults={"bad": "register"})
    install("working", "calls = []\ndef register():\n    calls.append(1)\n", faults={"good": "register"})
    with caplog.at_level(logging.WARNING):
        (error,) = plugins.register_all("assay.faults")
    assert "\n" not in str(error)
    with pytest.raises(AssayError, match=f"^plugin bad of broken 1.2: {message}"):
        raise error
    assert caplog.messages == [str(error)] and sys.modules["working"].calls == [1]
    assert plugins.register_all("assay.faults") == [error] and len(caplog.messages) == 1


def test_a_broken_engine_leaves_the_built_in_ones(install: Install, tmp_path: Path) -> None:
    install("broken", "import no_such_module", engines={"mine": "create", "reference": "create"})
    model = load(open_file(make(tmp_path / "m.gguf")))
    assert engines.create("reference", model, n_pages=4).name == "reference"
    with pytest.raises(AssayError, match=r"plugin mine of broken 1.2: cannot be imported .*uninstall broken"):
        engines.create("mine", model)


READER = """
from assay.verify.dumps.load import DumpReader, pattern_rule, register_reader, register_rule
from dataclasses import replace
def fail(*_):
    raise RuntimeError("no such luck")
def register():
    register_reader(DumpReader("mine", 99, fail, fail))
    register_reader(DumpReader("own format", 98, lambda source: source.head.startswith(b"MINE"), fail))
    rule = pattern_rule("mine", "x {rms}", example="x 1", yields=("x rms 1",))
    register_rule(replace(rule, read=fail))
"""


def test_a_failing_reader_leaves_the_built_in_ones(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("my-reader", READER, readers={"mine": "register"})
    (tmp_path / "run.log").write_text("layer 0 ffn_out rms = 2.5\n")
    (tmp_path / "x.mine").write_text("MINE")
    try:
        assert [o.summary for o in read_dump(tmp_path / "run.log").observations] == ["ffn_out-0 rms 2.5"]
        with pytest.raises(AssayError, match=r"the reader own format failed .RuntimeError: no such luck."):
            read_dump(tmp_path / "x.mine")
    finally:
        unregister_reader("mine")
        unregister_reader("own format")
        HABITS.remove("mine")
    assert any("reader mine" in line for line in caplog.messages)
    assert any("rule mine" in line for line in caplog.messages)


FAULT = """
from assay.verify.faults import Change, Fault, FaultKind, Stage, Variant, register_fault
def fail(*_):
    raise RuntimeError("no such luck")
def register():
    variants = (Variant("fails at once", fail), Variant("fails when run", lambda c, node, p: Change(node, fail)))
    register_fault(Fault("my-fault", Stage.FFN, "wrong", "right", (FaultKind.COMPUTATION,), variants=variants))
"""


def test_a_failing_fault_leaves_the_built_in_ones(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("my-faults", FAULT, faults={"mine": "register"})
    model = load(open_file(make(tmp_path / "m.gguf")))
    tokens = (1, 5, 9, 7, 3, 2)
    made = planted(Context(model, (6,)), FAULTS["rope-type"].variants[0])
    names = [node.name for node in model.graph if not node.name.startswith("cache")]
    values = interpret(made.graph, Weights(model.file), inputs_of(tokens, range(6)), names, functions=made.functions)
    seen = tuple(Observation(n, "values", v.astype(np.float32), shape=v.shape, foreign=n) for n, v in values.items())
    add_plugin_faults.cache_clear()
    try:
        found = diagnose(model, Dump("planted", tokens, tuple(range(6)), (6,), seen, "planted"))
        assert "my-fault" in FAULTS
    finally:
        FAULTS.pop("my-fault", None)
        add_plugin_faults.cache_clear()
    assert "rope-type" in [cause.fault for cause in found.causes]
    for label in ("fails at once", "fails when run"):
        assert any(f"fault my-fault ({label})" in line for line in caplog.messages)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    for name in ("first", "second"):
        install(name, "def create(): pass", engines={"mine": "create"})
    with pytest.raises(AssayError, match=r"plugin mine: first and second both provide it in assay.engines"):
        plugins.find("assay.engines", "mine")


def test_nothing_is_installed() -> None:
    assert all(plugins.find(group, "no-such-name") is None for group in plugins.GROUPS)


def _renamed(path: Path, arch: str) -> Path:
    """A copy of the file under another architecture of five letters, in its keys too."""
    to = path.with_name(f"{arch}.gguf")
    to.write_bytes(path.read_bytes().replace(b"llama", arch.encode()))
    return to
