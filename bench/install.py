"""A wheel into an empty environment: how long it takes, how large it is, and whether the command and the server work.

python bench/install.py dist/assay-*.whl --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import urllib.request
import venv
from pathlib import Path


def size(folder: Path, *, bytecode: bool) -> int:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_size for path in files if bytecode or path.suffix != ".pyc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--model", default="smollm2", help="what `assay run` and `assay serve` are tried with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        packages = next(home.glob("lib/python*/site-packages"))
        before = size(packages, bytecode=False), size(packages, bytecode=True)
        began = time.perf_counter()
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, args.wheel.absolute()], check=True)
        took = time.perf_counter() - began
        files, whole = (size(packages, bytecode=b) - n for b, n in zip((False, True), before, strict=True))
        print(f"installed in {took:.1f} s: {files / 1e6:.1f} MB, {whole / 1e6:.1f} MB with the bytecode that pip makes")
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
