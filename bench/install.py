"""A wheel into an empty environment: how long it takes, how large it is, and whether the command and the server work.

python bench/install.py dist/assay-*.whl --model smollm2.gguf
python bench/install.py dist/assay-*.tar.gz      # first two wheels at once, from the archive, outside its own tree
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
from pathlib import Path


def size(folder: Path, *, bytecode: bool) -> int:
    found = folder.rglob("*") if folder.is_dir() else [folder]
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_size for path in files if bytecode or path.suffix != ".pyc")


def parts(packages: Path, before: set[str]) -> str:
    """The largest of the installed packages."""
    came = {item.name: size(item, bytecode=False) for item in packages.iterdir() if item.name not in before}
    largest = sorted(came.items(), key=lambda pair: -pair[1])[:6]
    return ", ".join(f"{name} {n / 1e6:.1f}" for name, n in largest)


def built(archive: Path, folder: Path) -> Path:
    """Two builds at once of one unpacked archive; both must give a wheel."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tree,) = (item for item in folder.iterdir() if item.is_dir())
    began = time.perf_counter()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(tree), "-w"]
    both = [subprocess.Popen([*pip, folder / f"wheel-{i}"]) for i in range(2)]
    assert [process.wait() for process in both] == [0, 0], "a build failed"
    wheels = [next((folder / f"wheel-{i}").glob("*.whl")) for i in range(2)]
    left = sorted(path.name for path in tree.iterdir() if path.name == "build")
    assert wheels[0].name == wheels[1].name and not left, f"the tree was written to: {left}"
    print(f"{archive.name}: two wheels at once in {time.perf_counter() - began:.0f} s")
    return wheels[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="or a source archive")
    parser.add_argument("--model", default="smollm2", help="what `assay run` and `assay serve` are tried with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(args.wheel, Path(folder)) if args.wheel.suffix == ".gz" else args.wheel
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        packages = next(home.glob("lib/python*/site-packages"))
        names = {item.name for item in packages.iterdir()}
        before = size(packages, bytecode=False), size(packages, bytecode=True)
        began = time.perf_counter()
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, wheel.absolute()], check=True)
        took = time.perf_counter() - began
        files, whole = (size(packages, bytecode=b) - n for b, n in zip((False, True), before, strict=True))
        print(f"installed in {took:.1f} s: {files / 1e6:.1f} MB, {whole / 1e6:.1f} MB with the bytecode that pip makes")
        print(f"a wheel of {wheel.stat().st_size / 1e6:.1f} MB; MB installed: {parts(packages, names)}")
        assay = home / "bin" / "assay"
        began = time.perf_counter()
        run = [assay, "run", args.model, "Say hello.", "-n", "8", "--temp", "0"]
        answer = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
        print(f"assay run: {answer!r} after {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        server = subprocess.Popen(
            [assay, "serve", args.model, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout
            url = json.loads(server.stdout.readline())["url"]
            page = urllib.request.urlopen(url).read()
            models = json.load(urllib.request.urlopen(f"{url}/v1/models"))["data"]
            waited = time.perf_counter() - began
            print(f"assay serve: {models[0]['id']} and a page of {len(page)} bytes after {waited:.1f} s")
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
