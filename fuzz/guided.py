"""Coverage-guided fuzzing of the same readers with atheris, where it is installed (`pip install atheris`).

    python -m fuzz.guided READER [libFuzzer's options]

libFuzzer's bytes seed the structured mutations, so every input is nearly right and the coverage chooses among them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("fuzz.guided: needs atheris; pip install atheris")
    name, *options = sys.argv[1:] or ["gguf"]
    with atheris.instrument_imports(include=["assay"]):
        from fuzz.readers import readers, temporary
    with temporary() as folder:
        reader = readers(Path(folder))[name]

        def one(data: bytes) -> None:
            try:
                reader.read(reader.make(random.Random(data)))
            except reader.refusals:
                return

        atheris.Setup([sys.argv[0], *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
