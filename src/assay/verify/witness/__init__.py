"""Witnesses: other engines that are run for comparison, by name.

This module holds the table alone, so that a help page can print it without importing an engine. A new witness is one
file in this package, one row here, and an extra of its name in pyproject.toml.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Witness:
    """Another engine: its title, the packages that contain it, its adapter, and the values that it shows."""

    title: str
    packages: tuple[str, ...]  # as the registry calls them; the extra of the same name brings them
    adapter: str  # module:class
    shows: str
    talks: bool = False  # text with log-probabilities is all it gives


WITNESSES: dict[str, Witness] = {
    "llamacpp": Witness("llama.cpp", ("llama-cpp-python",), "llamacpp:LlamaCppEngine", "every node"),
    "transformers": Witness(
        "transformers", ("transformers", "torch", "gguf", "accelerate"), "transformers:TransformersEngine",
        "what its modules take and give, attention's probabilities",
    ),
    "tinygrad": Witness("tinygrad", ("tinygrad",), "tinygrad:TinygradEngine", "what its modules take and give"),
    "mlx": Witness("MLX", ("mlx", "mlx-lm"), "mlx:MlxEngine", "what its modules take and give"),
    "openvino": Witness(
        "OpenVINO GenAI", ("openvino-genai",), "openvino:OpenVinoEngine", "two places a layer, its output, logits"
    ),
    "mistralrs": Witness(
        "mistral.rs", ("mistralrs",), "mistralrs:MistralrsTalker", "text with log-probabilities", talks=True
    ),
    "xllamacpp": Witness(
        "llama.cpp's server", ("xllamacpp",), "xllamacpp:XllamacppTalker", "text with log-probabilities", talks=True
    ),
}  # fmt: skip
