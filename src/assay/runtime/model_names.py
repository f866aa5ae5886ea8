"""Names that people type, such as `qwen3` or `llama3.2:1b`, and the file that each stands for.

The table is `model_names.toml`. A name is FAMILY or FAMILY:TAG, as in Ollama; the bare family is its default tag. A tag
may end in a quantisation (`qwen3:8b-q8_0`), which chooses another file of the same repository. Other spellings
(`llama-3.2-1b-instruct`, `Qwen3-8B`) are recognised by their letters and digits.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache

from assay.system.toml_tables import read_table

SUGGESTED = 3
_QUANT = re.compile(r"(?:i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|f16|fp16|f32)", re.IGNORECASE)
_FORM = re.compile(r"-(?:instruct|chat|it|text|gguf|hf|latest)(?=$|-)")


@dataclass(frozen=True)
class NamedModel:
    """A model with a name. Either `package` is set (a model of registry_models.py), or `repository` and `file` are."""

    family: str
    tag: str
    about: str
    architecture: str
    licence: str
    parameters: str
    size: int  # bytes, rounded
    is_default: bool  # the bare family name means this tag
    repository: str = ""
    file: str = ""
    package: str = ""
    quant: str = ""  # a quantisation that was asked for instead of the file's

    @property
    def name(self) -> str:
        """The shortest name."""
        return self.family if self.is_default else f"{self.family}:{self.tag}"

    @property
    def source(self) -> str:
        """Where the file comes from, as a model argument that needs no table."""
        return self.package or f"hf:{self.repository}:{self.quant or self.file}"

    @property
    def is_supported(self) -> bool:
        """Whether assay, or an installed package, builds its architecture."""
        from assay.models.catalogue import ARCHITECTURES
        from assay.system import plugins

        return self.architecture in ARCHITECTURES or self.architecture in plugins.names("assay.architectures")


@cache
def named_models() -> tuple[NamedModel, ...]:
    """Every model of the table, in its order."""
    return tuple(
        NamedModel(
            family, row["tag"], table["about"], row.get("architecture", table["architecture"]), table["licence"],
            row["parameters"], round(row["gigabytes"] * 1e9), row["tag"] == table["default"],
            row.get("repository", ""), row.get("file", ""), row.get("package", ""),
        )
        for family, table in read_table("assay.runtime", "model_names.toml").items()
        for row in table["models"]
    )  # fmt: skip


@cache
def _spellings() -> dict[str, NamedModel]:
    """Every spelling of every model: the name with and without its tag, the further names, and their letters alone."""
    tables = read_table("assay.runtime", "model_names.toml")
    also = {family: (family, *table.get("also", ())) for family, table in tables.items()}
    exact: dict[str, NamedModel] = {}
    loose: dict[str, NamedModel] = {}
    for model in named_models():
        for family in also[model.family]:
            names = [f"{family}:{model.tag}", *([family, f"{family}:latest"] if model.is_default else [])]
            for name in names:
                exact[name] = model
                loose.setdefault(_letters(name), model)
    return loose | {_letters(name): model for name, model in exact.items()} | exact


def find_name(text: str) -> NamedModel | None:
    """The model that a name means, or None. Paths and names of files are no names."""
    name = text.strip().lower().removeprefix("library/")
    if not re.fullmatch(r"[a-z0-9][\w.:+-]*", name) or name.endswith(".gguf"):
        return None
    known = _spellings()
    if found := known.get(name) or known.get(_letters(name)):
        return found
    stem, _, quant = name.replace(":", "-", 1).rpartition("-") if ":" not in name else name.rpartition("-")
    if stem and _QUANT.fullmatch(quant) and (found := known.get(stem) or known.get(_letters(stem))):
        return found if found.package else replace(found, quant=quant.upper().replace("FP16", "F16"))
    return None


def _letters(name: str) -> str:
    """A name without separators and without words such as `-instruct`: `llama-3.2-1b-instruct` is `llama3.21b`."""
    return re.sub(r"[^a-z0-9.]", "", _FORM.sub("", name.lower()))


def suggestions(text: str, count: int = SUGGESTED) -> list[str]:
    """Names of models that can be run, nearest first, by spelling and family.

    If the family is known and only the tag is not, they are of that family; else each is of another family.
    """
    typed = _letters(text.rpartition("/")[2])
    family = text.lower().partition(":")[0]
    letters = _stem(typed)

    order = {model: -i for i, model in enumerate(named_models())}  # the table has newer families first

    def score(model: NamedModel) -> tuple[float, int]:
        if len(typed) > 2 and model.family.startswith(typed) and model.is_default:  # `llama` means several families
            return 2.0, order[model]
        near = max(_ratio(typed, _letters(name)) for name in (model.family, f"{model.family}:{model.tag}"))
        related = len(letters) > 2 and (model.family.startswith(letters) or letters.startswith(model.family[:4]))
        return near + 0.3 * related + 0.02 * model.is_default, order[model]

    able = sorted((model for model in named_models() if model.is_supported), key=score, reverse=True)
    same = [model.name for model in able if model.family == family]
    nearest = {model.family: model.name for model in reversed(able)}  # the best of each family
    others = [model.name for model in able if nearest[model.family] == model.name]
    return list(dict.fromkeys([*same, *others]))[:count]


def alternatives(model: NamedModel, count: int = SUGGESTED) -> list[str]:
    """Models that can be run instead of one that cannot: of the same family first, then the nearest in size."""
    able = [other for other in named_models() if other.is_supported]
    letters = _stem(model.family)

    def score(other: NamedModel) -> tuple[bool, bool, float]:
        apart = max(model.size, other.size) / max(min(model.size, other.size), 1)
        return (other.family != model.family, not other.family.startswith(letters), apart)

    return [other.name for other in sorted(able, key=score)[:count]]


def smaller_models(model: NamedModel, memory: int, count: int = SUGGESTED) -> list[str]:
    """Models that fit three quarters of a memory: of the same family or its relatives first, the largest first."""
    fitting = [other for other in named_models() if other.is_supported and other.size < 0.75 * memory]
    stem = _stem(model.family)

    def order(other: NamedModel) -> tuple[bool, bool, int]:
        return other.family != model.family, not other.family.startswith(stem), -other.size

    return [other.name for other in sorted(fitting, key=order)[:count]]


def _stem(name: str) -> str:
    """The letters that a name begins with: `llama` of `llama3.2`."""
    found = re.match(r"[a-z]*", name)
    return found[0] if found else ""


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def search_names(words: list[str]) -> list[NamedModel]:
    """Models whose name, description, architecture, size or licence has every word."""
    wanted = [word.lower() for word in words]

    def text(model: NamedModel) -> str:
        fields = (model.name, f"{model.family}:{model.tag}", model.about, model.architecture, model.parameters,
                  model.licence, model.repository, model.file)  # fmt: skip
        return " ".join(fields).lower()

    return [model for model in named_models() if all(w in text(model) or _letters(w) == model.family for w in wanted)]
