"""The packages in `examples/`, installed into a folder and used by processes of their own.

pip installs them if setuptools is new enough to build a wheel. Else the module is copied, and its metadata is written
by hand from `pyproject.toml`. One test is then skipped, and its reason says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Array
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.system.plugins import GROUPS
from assay.verify.dumps.observation import inputs_of
from assay.verify.faults import Context, Variant, planted
from tests import tiny

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name.removeprefix("plugin-"): path for path in sorted((ROOT / "examples").glob("plugin-*"))}
PROJECTS = {name: tomllib.loads((path / "pyproject.toml").read_text()) for name, path in EXAMPLES.items()}
TOKENS = (1, 270, 280, 17, 300, 281)


def article(name: str) -> str:
    return "an" if name[0] in "aeo" else "a"


def builds_wheels() -> bool:
    if not importlib.util.find_spec("pip") or not importlib.util.find_spec("setuptools"):
        return False
    new = tuple(int(part) for part in metadata.version("setuptools").split(".")[:2]) >= (70, 1)
    return new or importlib.util.find_spec("wheel") is not None


def install_with_pip(folder: Path, site: Path) -> None:
    # A build writes to the folder of its source, so copies are built.
    copies = [shutil.copytree(path, folder / path.name) for path in EXAMPLES.values()]
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", site, *copies], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def install_by_hand(site: Path) -> None:
    for name, path in EXAMPLES.items():
        project = PROJECTS[name]["project"]
        module = project["name"].replace("-", "_")
        if (path / module).is_dir():
            shutil.copytree(path / module, site / module)
        else:
            shutil.copy(path / f"{module}.py", site)
        info = site / f"{module}-{project['version']}.dist-info"
        info.mkdir()
        lines = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(lines)
        groups = project["entry-points"].items()
        text = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for group, rows in groups)
        (info / "entry_points.txt").write_text(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all examples installed."""
    folder = tmp_path_factory.mktemp("examples")
    site = folder / "site"
    site.mkdir()
    if builds_wheels():
        install_with_pip(folder, site)
    else:
        install_by_hand(site)
    return site


def python(site: Path | None, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python with assay and, if `site` is given, with the installed examples."""
    path = os.pathsep.join(str(p) for p in (site, ROOT / "src") if p is not None)
    env = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, timeout=300)


def assay(site: Path | None, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return python(site, "-m", "assay", *args)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(open_file(path))


def values_of(model: Model, fault: Variant | None = None) -> dict[str, Array]:
    """Every node but the caches, by the definition, or with a variant of a fault planted."""
    made = planted(Context(model, (len(TOKENS),)), fault) if fault else None
    names = [node.name for node in model.graph if not node.name.startswith("cache")]
    env = inputs_of(TOKENS, range(len(TOKENS)))
    functions = made.functions if made else None
    return interpret(made.graph if made else model.graph, Weights(model.file), env, names, functions=functions)


def module_of(name: str) -> ModuleType:
    """The module of an example, imported without being installed."""
    found = f"assay_example_{name}"
    spec = importlib.util.spec_from_file_location(found, EXAMPLES[name] / f"{found}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the packages


def test_every_group_has_an_example() -> None:
    groups = [group for project in PROJECTS.values() for group in project["project"]["entry-points"]]
    assert sorted(groups) == sorted(GROUPS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_small_and_needs_only_assay(name: str) -> None:
    project, files = PROJECTS[name]["project"], list(EXAMPLES[name].rglob("*.py"))
    others = {f"assay-example-{other}" for other in EXAMPLES}
    assert {"assay"} <= set(project["dependencies"]) <= {"assay", *others}
    assert len(files) == 1 and len(files[0].read_text().splitlines()) < 120
    assert f"docs/howto/add-{article(name)}-{name}.md" in (EXAMPLES[name] / "README.md").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_guide_shows_the_examples_code(name: str) -> None:
    """Every block of code of the guide after "Outside" is in the example, letter by letter."""
    guide = (ROOT / "docs" / "howto" / f"add-{article(name)}-{name}.md").read_text()
    assert f"`examples/plugin-{name}`" in guide
    _, _, outside = guide.partition("Outside")
    blocks = re.findall(r"^```(?:python|toml|c)\n(.*?)^```", outside.partition("**Check it.**")[0], re.M | re.S)
    source = "".join(path.read_text() for path in EXAMPLES[name].rglob("*.*") if path.suffix in (".py", ".c", ".toml"))
    assert len(blocks) >= 2 and [block for block in blocks if block not in source] == []


def test_pip_installs_the_examples(site: Path) -> None:
    if not builds_wheels():
        pytest.skip("setuptools>=70.1 or wheel is not installed; the examples were copied by hand")
    for distribution in metadata.distributions(path=[str(site)]):
        name = distribution.metadata["Name"].removeprefix("assay-example-")
        wanted = PROJECTS[name]["project"]["entry-points"]
        assert {(e.group, e.name, e.value) for e in distribution.entry_points} == {
            (group, key, value) for group, rows in wanted.items() for key, value in rows.items()
        }
    assert len(list(site.glob("*.dist-info"))) == len(EXAMPLES)
    assert (site / "assay_example_operation" / "kernel.c").exists()


# --- each at work


def test_a_fault_is_named(site: Path, path: Path, model: Model, tmp_path: Path) -> None:
    fault = module_of("fault").FAULT
    dump = tmp_path / "dump.npz"
    arrays: dict[str, Any] = {"tokens": np.array(TOKENS), **values_of(model, fault.variants[0])}
    np.savez(dump, **arrays)
    done = assay(site, "diagnose", path, dump, "--json")
    assert done.returncode == 1, done.stderr
    assert [cause["fault"] for cause in json.loads(done.stdout)["causes"]] == [fault.id]


ON_BOTH_ENGINES = """
import sys
import numpy as np
from assay import engines
from assay.engines.contract import Chunk
from assay.gguf import open_file
from assay.models import load

model = load(open_file(sys.argv[1]))
tokens = np.random.default_rng(4).integers(3, 300, 40).astype(np.int32)
keep = ["ffn_softsign-0", "ffn_softsign-1"]
chunk = [Chunk(tokens, 0, np.arange(2, dtype=np.int32), "all")]
found = {
    name: engines.create(name, model, n_pages=4, precision=precision).forward(chunk, keep)[0]
    for name, precision in (("reference", "f64"), ("cpu", "exact"))
}
for pick in (lambda o: o.logits, *(lambda o, name=name: o.nodes[name] for name in keep)):
    a, b = (np.asarray(pick(output), np.float64) for output in found.values())
    print(np.sqrt(np.mean((a - b) ** 2) / np.mean(a**2)))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) on this machine")
def test_an_architecture_runs_with_its_operation(site: Path, path: Path, tmp_path: Path) -> None:
    found = softsign_model(path, tmp_path / "softsign.gguf")
    done = python(site, "-c", ON_BOTH_ENGINES, found)
    assert done.returncode == 0, done.stderr
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == 3 and max(errors) < 1e-5  # float32 noise
    checked = assay(site, "check", found, "--engine", "cpu", "--precision", "exact", "--lengths", "2", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    refused = assay(None, "check", found, "--engine", "cpu")
    assert refused.returncode != 0 and "unknown architecture 'softsign-llama'" in refused.stderr


def softsign_model(path: Path, to: Path) -> Path:
    """The tiny model under the name of the example's architecture."""
    arch, keys = "softsign-llama", open_file(path).metadata
    own: dict[str, object | None] = {key: None for key in keys if key.startswith("llama.")}
    own |= {key.replace("llama", arch, 1): keys[key] for key in own}
    return tiny.make(to, metadata={**own, "general.architecture": arch})


CONTRACT = """
import sys
from pathlib import Path
from assay import engines
from assay.engines import contract_tests

model = contract_tests.example_model(Path(sys.argv[1]))
for name, rule in contract_tests.RULES.items():
    rule(lambda **options: engines.create("skeleton", model, **options))
    print(name)
"""


def test_an_engine_generates_the_references_text(site: Path, path: Path) -> None:
    asked = ("run", "-m", path, "--raw", "-p", "hello world", "-n", "6", "--temp", "0", "--json")
    answers = [assay(site, *asked, "--engine", engine) for engine in ("skeleton", "reference")]
    assert [done.returncode for done in answers] == [0, 0], answers[0].stderr
    assert len({json.loads(done.stdout)["text"] for done in answers}) == 1
    refused = assay(None, *asked, "--engine", "skeleton")
    assert refused.returncode != 0 and "engine skeleton: not available here" in refused.stderr


def test_an_engine_passes_every_rule_of_the_contract(site: Path, tmp_path: Path) -> None:
    from assay.engines import contract_tests

    done = python(site, "-c", CONTRACT, tmp_path / "m.gguf")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(contract_tests.RULES)


def as_tabdump(values: dict[str, Array], path: Path) -> Path:
    lines = ["# tabdump 1", "tokens\t" + " ".join(map(str, TOKENS))]
    for name, value in values.items():
        numbers = " ".join(f"{x:.9g}" for x in value.ravel())
        lines.append(f"{name}\t{' '.join(map(str, value.shape))}\t{numbers}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_dump_in_the_readers_format_is_judged(site: Path, path: Path, model: Model, tmp_path: Path) -> None:
    values = values_of(model)
    right = assay(site, "diff", path, as_tabdump(values, tmp_path / "right.tabdump"), "--json")
    assert right.returncode == 0, right.stdout + right.stderr
    values["ffn_out-1"] = values["ffn_out-1"] * 1.25
    wrong = assay(site, "diff", path, as_tabdump(values, tmp_path / "wrong.tabdump"))
    assert wrong.returncode == 1 and "ffn_out-1" in wrong.stdout, wrong.stdout + wrong.stderr
    (tmp_path / "torn.tabdump").write_text("# tabdump 1\ntokens\t1 2\nffn_out-0\t2 64\t1 2 3\n")
    torn = assay(site, "diff", path, tmp_path / "torn.tabdump")
    assert torn.returncode == 2 and "line 3: ffn_out-0: wrong number of values (found 3" in torn.stderr


HABIT = """
import sys
from pathlib import Path
from assay.verify.dumps.load import read_dump

for observation in read_dump(Path(sys.argv[1])).observations:
    print(observation.summary)
"""


def test_the_readers_habit_is_read(site: Path, tmp_path: Path) -> None:
    rule = module_of("reader").RULE
    (tmp_path / "run.log").write_text(rule.example)
    done = python(site, "-c", HABIT, tmp_path / "run.log")
    assert tuple(done.stdout.splitlines()) == rule.yields, done.stderr
    assert tuple(python(None, "-c", HABIT, tmp_path / "run.log").stdout.splitlines()) != rule.yields
