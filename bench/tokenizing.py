"""How fast English text becomes ids: assay against llama.cpp and against Hugging Face's `tokenizers`.

    python bench/tokenizing.py MODEL.gguf... [--text FILE]

The figure is MB of text a second of CPU time, once with a new tokenizer and once with its cache filled; then the ratio
to each installed peer. The target is 1 MB/s with a new tokenizer. The output says if a peer gives other ids, because
then its speed means little.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path

from assay.gguf import open_file
from assay.text import Tokenizer

Encode = Callable[[str], list[int]]


def assay(path: Path) -> Encode:
    found = Tokenizer.from_gguf(open_file(path))
    found.encode("a word that is in no vocabulary: qzxjk", add_special=False)  # reads merges and scores
    return lambda text: found.encode(text, add_special=False, parse_special=False)


def llama_cpp(path: Path) -> Encode:
    import llama_cpp as library

    @library.llama_log_callback
    def quiet(_level: int, _text: bytes, _data: object) -> None: ...

    library.llama_log_set(quiet, None)
    parameters = library.llama_model_default_params()
    parameters.vocab_only = True
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    vocab = library.llama_model_get_vocab(model)

    def encode(text: str, _keep: object = quiet) -> list[int]:
        data = text.encode()
        ids = (ctypes.c_int32 * len(data))()
        n = library.llama_tokenize(vocab, data, len(data), ids, len(data), False, False)
        return list(ids[:n])

    return encode


def hugging_face(path: Path) -> Encode:
    """The same vocabulary in `tokenizers`, with the GPT-2 word split; only for byte-level vocabularies."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    file = open_file(path)
    if file.get_str("tokenizer.ggml.model") != "gpt2":
        raise ImportError("no exact equivalent")
    merges = [tuple(pair.split(" ")) for pair in file.get_array("tokenizer.ggml.merges", kind=str)]
    tokens = file.get_array("tokenizer.ggml.tokens", kind=str)
    found = Library(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: list(found.encode(text, add_special_tokens=False).ids)


PEERS = {"assay": assay, "llama.cpp": llama_cpp, "tokenizers": hugging_face}


def rate(encode: Encode, text: str) -> tuple[float, list[int]]:
    start = time.process_time()
    ids = encode(text)
    return len(text.encode()) / 1e6 / (time.process_time() - start), ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, help="default: README.md, repeated")
    args = parser.parse_args()
    readme = Path(__file__).parents[1] / "README.md"
    text = args.text.read_text() if args.text else readme.read_text() * 20
    for path in args.model:
        start = time.process_time()
        assay(path)
        print(f"{path.name}: ready after {time.process_time() - start:.3f} s")
        ours, expected = 0.0, None
        for name, make in PEERS.items():
            try:
                encode = make(path)
            except ImportError as error:
                print(f"  {name:<11} not run: {error}")
                continue
            new, ids = rate(encode, text)
            again, _ = rate(encode, text)
            ours, expected = (new, ids) if expected is None else (ours, expected)
            ratio = f"assay is {ours / new:.2f} times as fast when new" if name != "assay" else f"{len(ids)} ids"
            same = "" if ids == expected else "; OTHER IDS"
            print(f"  {name:<11} {new:6.2f} MB/s new, {again:6.2f} MB/s again; {ratio}{same}")


if __name__ == "__main__":
    main()
