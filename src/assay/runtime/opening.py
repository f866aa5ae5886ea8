"""Open a model and create its engine. The command line, the server and the library all use this module.

    opened = open_model("smollm2", OpenOptions(engine="cpu", ctx_size=2048))
    engine = opened.engine()

Opening reads the metadata and maps the file, and refuses a file that cannot work. It is fast. Creating the engine is
slow, because that loads the weights and allocates the cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import engines
from assay.engines.contract import PAGE, PagedEngine, pages_for
from assay.engines.plan.batching import STEP
from assay.engines.plan.state_layout import StateMemory, page_bytes, state_memory
from assay.errors import AssayError
from assay.gguf import GGUFFile, TensorInfo, open_file
from assay.models import Model, load
from assay.models.adapters import Adapter, open_adapter, with_adapters
from assay.models.draft_head import head_in_file
from assay.models.eagle3 import ARCH as EAGLE
from assay.models.gemma4_assistant import ARCH as ASSISTANT
from assay.models.pictures import PictureForm
from assay.runtime import cache_folder, draft_choice, hub
from assay.runtime.assistant_draft import assistant_head
from assay.runtime.cache_folder import CacheFolder
from assay.runtime.draft_model import DraftModel, check_vocabularies
from assay.runtime.eagle_draft import eagle_head
from assay.runtime.grammar import Grammars
from assay.runtime.head_alone import head_alone
from assay.runtime.head_draft import DraftHead, HeadDrafter, own_head
from assay.runtime.params import DEFAULT_CTX, DRY_BREAKERS, Breakers
from assay.runtime.registry_models import ReportProgress
from assay.runtime.sampler import dry_breakers
from assay.runtime.sequence_errors import NoShift
from assay.runtime.speculation import Speculator
from assay.system.stages import listening, reports
from assay.text import ChatTemplate, Tokenizer

if TYPE_CHECKING:
    from assay.runtime.pictured_prompt import PictureReader

MAX_CTX = 1 << 26  # beyond any model, and small enough for page numbers of 32 bits
_LARGEST_SCALE = 1e4  # of an adapter
MTP = "mtp"  # instead of the name of a draft model: the draft head of the file itself
_HEAD_FILES = {EAGLE: eagle_head, ASSISTANT: assistant_head}  # architectures that are draft heads, not models
AUTO = "auto"  # or the fastest way, measured when the model is loaded; auto:MODEL also measures a draft model
SHARED_CACHE = 16384  # cache positions of all sequences together, unless one context is larger


@dataclass(frozen=True)
class OpenOptions:
    """How to open a model. None leaves the choice to the engine or the file."""

    engine: str | None = None
    precision: str | None = None
    threads: int | None = None
    kv_type: str | None = None
    ctx_size: int | None = None  # positions of one sequence; 0: as many as the model was trained on
    cache_size: int | None = None  # positions of all sequences together; at least one context
    template: str | None = None  # a chat template by name or file, instead of the file's own
    template_arguments: Mapping[str, Any] | None = None  # variables of the template, such as enable_thinking
    lookahead: bool = True  # speculative decoding where it is faster; the text is the same
    draft: str | None = None  # a small model with the same vocabulary, to draft tokens; or "mtp", "auto", "auto:MODEL"
    state_slots: int | None = None  # states of a fixed size: one for each sequence at once, the others for snapshots
    cache_dir: str | None = None  # a folder in which prefixes outlive the process
    cache_dir_size: int = cache_folder.DEFAULT_BYTES
    lora: tuple[str, ...] = ()  # adapters: FILE or FILE=SCALE
    context_shift: bool = False  # a full context drops its oldest tokens (`context_shift.py`)
    keep: int = 0  # first tokens that a context shift keeps; -1: the whole prompt
    cpu_experts: int | None = None  # layers whose experts the cpu engine computes beside the cuda engine
    mmproj: str | None = None  # the tower for pictures; None: found beside the model, if a picture is given
    tier: int | None = None  # how the wgpu engine computes floats; None: the first tier that gives the cpu's bits
    portable: bool = False  # without a precision, take one whose bits every machine has: receipts are replayed anywhere


class Opened:
    """An opened file: its graph, tokenizer, chat template and cache sizes. No weights are loaded yet."""

    runs_towers = True  # False where other processes encode the pictures

    def __init__(self, file: GGUFFile, options: OpenOptions) -> None:
        self.file = file
        self.options = options
        model = load(file)
        trained = model.hparams.n_ctx_train
        asked = options.ctx_size
        if asked is not None and asked > MAX_CTX:
            raise AssayError(f"--ctx-size: too large (found {asked}, at most {MAX_CTX})")
        self.n_ctx = min(trained, DEFAULT_CTX) if asked is None else asked or trained
        self.model: Model = model.at(self.n_ctx)
        if options.draft == MTP:
            own_head(self.model)
        if options.context_shift and not model.graph.state.cuttable:
            raise NoShift(file.path.name)
        if options.mmproj is not None and not Path(options.mmproj).is_file():
            raise AssayError(f"--mmproj {options.mmproj}: no such file")
        self.draft_choice = ""  # what --draft auto measured and chose
        self._shared = SHARED_CACHE if options.cache_size is None else options.cache_size
        self.n_pages = pages_for(max(self._shared, self.n_ctx))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Created on first use. A file without a vocabulary can be run on ids; its tokens have no text."""
        return Tokenizer.from_gguf(self.file, nameless=self.model.hparams.n_vocab)

    @cached_property
    def adapters(self) -> list[Adapter]:
        """The adapters of the options. A file that does not fit the model is refused."""
        found = []
        for text in self.options.lora:
            path, _, scale = text.rpartition("=") if re.search(r"=[-+.\deE]+$", text) else (text, "", "1")
            try:
                factor = float(scale)
            except ValueError:
                factor = math.nan
            if not abs(factor) <= _LARGEST_SCALE:
                raise AssayError(f"--lora {text}: the scale must be a number of at most {_LARGEST_SCALE:g}")
            if Path(path).is_dir():
                raise AssayError(
                    f"--lora {text}: is a folder; make a file of it: assay convert {path} OUT.gguf --base FOLDER"
                )
            if not Path(path).is_file():
                raise AssayError(f"--lora {text}: no such file; give FILE or FILE=SCALE")
            found.append(open_adapter(Path(path), self.model, factor))
        if found and self.options.engine == "wgpu":
            raise AssayError("--lora: the wgpu engine has no adapters; use --engine cpu or cuda")
        return found

    def with_adapters(self) -> Opened:
        """The same, with the adapters of the options as a part of the model's definition."""
        found = copy(self)
        found.model = with_adapters(self.model, self.adapters)
        return found

    @cached_property
    def pictures(self) -> PictureReader:
        """The reader of pictures, made of the mmproj file on first use. A model without one is refused here."""
        from assay.runtime.pictured_prompt import PictureReader, projector_beside
        from assay.vision.projector import open_projector

        path = Path(self.options.mmproj) if self.options.mmproj is not None else projector_beside(self.file.path)
        name, hparams = self.options.engine or engines.default_name(), self.model.hparams
        on = name if name != "auto" or "cuda" in engines.ENGINES else "cpu"
        precision = self.options.precision or "fast"
        given = {"tier": self.options.tier} if on == "wgpu" and self.options.tier is not None else {}
        found = open_projector(path, on, threads=self.options.threads, precision=precision, **given)
        form = PictureForm(hparams.n_deepstack, found.tower.sees_itself, hparams.axes)
        if missing := form.needs - set(engines.engine_class(name).pictures):
            raise AssayError(f"images: the {name} engine cannot take {', '.join(sorted(missing))}; use --engine cpu")
        if found.tower.width != (wanted := (1 + hparams.n_deepstack) * hparams.n_embd):
            raise AssayError(
                f"{path}: does not fit the model (found rows of {found.tower.width} numbers, expected {wanted}); use "
                "the mmproj file that was made for it"
            )
        return PictureReader(found, runs=self.runs_towers)

    @cached_property
    def sees(self) -> bool:
        """Whether pictures can be given: an mmproj file was named, or lies beside the model."""
        from assay.runtime.pictured_prompt import projector_beside

        try:
            return bool(self.options.mmproj or projector_beside(self.file.path))
        except AssayError:
            return False

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template from the options, else the file's own, else None."""
        if self.options.template is not None:
            found: ChatTemplate | None = ChatTemplate.named(self.options.template, self.tokenizer)
        else:
            found = ChatTemplate.from_gguf(self.file, self.tokenizer)
        return found.with_variables(self.options.template_arguments) if found else None

    @cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.model.hparams.n_vocab)

    @cached_property
    def dry_breakers(self) -> Breakers:
        """llama.cpp's default sequence breakers, in this vocabulary."""
        return self.breakers(DRY_BREAKERS)

    def breakers(self, strings: Sequence[str]) -> Breakers:
        """Every way to spell DRY's sequence breakers in tokens."""
        pieces = [self.tokenizer.piece(token) for token in range(self.tokenizer.n_vocab)]
        return dry_breakers(
            pieces, lambda text: self.tokenizer.encode(text, add_special=False, parse_special=False), strings
        )

    @property
    def position_bytes(self) -> float:
        """Estimated bytes of one position in the cache."""
        return page_bytes(self.model.graph, self._kv_type) / PAGE

    @property
    def _kv_type(self) -> str:
        name = self.options.engine or engines.default_name()
        return self.options.kv_type or engines.default_kv_type(name, self.options.precision)

    @property
    def cache_bytes(self) -> int:
        """Estimated bytes of the cache before the engine exists; afterwards use `engine.memory`."""
        name, graph = self.options.engine or engines.default_name(), self.model.graph
        kv_type = self._kv_type
        apart = graph.state.windows if engines.engine_class(name).separate_windows else ()
        sizes = {w: min(self.n_pages, self.window_pages(w)) for w in apart} | {0 if apart else None: self.n_pages}
        pages = sum(n * page_bytes(graph, kv_type, window) for window, n in sizes.items())
        heads = [self.model.draft if self.options.draft == MTP or self._measures_drafts else None]
        heads.append(self._head_file.graph if self._head_file else None)
        pages += sum(self.n_pages * page_bytes(head, kv_type) for head in heads if head)
        return pages + self.states.bytes

    @property
    def states(self) -> StateMemory:
        """Estimated memory of state of a fixed size. An engine takes fewer slots where memory is short."""
        return state_memory(self.model.graph, self.options.state_slots)

    def window_pages(self, window: int) -> int:
        """Separate pages for layers with a sliding window, for all sequences together: as many as the shared cache has,
        and at least enough for two sequences to see their window and compute a step."""
        return max(pages_for(self._shared), 2 * pages_for(window + STEP) + 2)

    def engine(
        self, progress: ReportProgress | None = None, *, scheduled: bool = False, answering: bool | None = None
    ) -> PagedEngine:
        """Create the engine. This is slow, because it reads and converts the weights.

        With `scheduled`, layers with a sliding window get separate pages. The scheduler evicts those that left the
        window; other callers could not. With `answering` (default: as `scheduled`) the default precision is the
        engine's for requests. Pictures, experts on the cpu and receipts need the cpu's arithmetic throughout.
        """
        o = self.options
        answering = scheduled if answering is None else answering
        name = o.engine or engines.default_name()
        apart = engines.engine_class(name).separate_windows
        cpus = self.sees or o.cpu_experts or o.portable
        with self._reading(progress):
            return engines.create(
                name, self.model,
                answering=answering and self.model.graph.generates and not cpus,
                n_pages=self.n_pages, precision=o.precision, threads=o.threads, kv_type=o.kv_type,
                window_pages=self.window_pages if scheduled and apart else None,
                state_slots=o.state_slots if self.model.graph.state.per_sequence else None,
                adapters=self.adapters or None, tier=o.tier, cpu_experts=o.cpu_experts or None,
            )  # fmt: skip

    @contextmanager
    def _reading(self, progress: ReportProgress | None) -> Iterator[None]:
        """Report progress on the first read of every tensor inside the block, to `progress` or to the listener."""
        total = sum(t.nbytes for t in self.file.tensors.values())
        seen: set[str] = set()
        done = 0

        def read(tensor: TensorInfo) -> None:
            nonlocal done
            if tensor.name not in seen:
                seen.add(tensor.name)
                tell(f"loading {self.file.path.name}", done, total)
                done += tensor.nbytes

        with reports(progress) as tell:
            self.file.reading = read if progress is not None or listening() is not None else None
            try:
                yield
            finally:
                self.file.reading = None

    def folder(self) -> CacheFolder | None:
        """The folder of prefixes on disk, if one was asked for. `Scheduler.close` gives it back."""
        o = self.options
        return cache_folder.open_folder(o.cache_dir, o.cache_dir_size) if o.cache_dir is not None else None

    @property
    def _measures_drafts(self) -> bool:
        return (self.options.draft or "").partition(":")[0] == AUTO

    def speculator(self, engine: PagedEngine) -> Speculator | None:
        """Speculative decoding for the engine's sequences. With a draft model this is as slow as `engine`."""
        o = self.options
        if not o.lookahead or not self.model.graph.generates:
            return None
        if o.draft is None:
            return Speculator()
        if o.draft == MTP:
            return Speculator(HeadDrafter(own_head(self.model)))
        if not self._measures_drafts:
            return self._drafted_by(o.draft)
        small = o.draft.partition(":")[2]
        ways: dict[str, draft_choice.Maker] = {"none": lambda: None, "ngram": Speculator}
        if self.model.draft is not None and engine.beside is not None:
            ways[MTP] = lambda: Speculator(HeadDrafter(own_head(self.model)))
        if small:
            ways[small] = lambda: self._drafted_by(small)
        found, self.draft_choice = draft_choice.choose(engine, self.tokenizer, ways)
        return found

    @cached_property
    def _head_file(self) -> DraftHead | None:
        """The draft head in a file of its own that the options name, if they name one."""
        draft = self.options.draft or ""
        name = draft.partition(":")[2] if self._measures_drafts else draft
        if name in ("", MTP) or not self.options.lookahead:
            return None
        file = open_file(hub.resolve(name))
        if head_in_file(file.metadata, file.tensors) is None:
            return None
        open_head = _HEAD_FILES.get(file.get_str("general.architecture"), head_alone)
        if "tokenizer.ggml.tokens" in file.metadata:
            check_vocabularies(Tokenizer.from_gguf(file), self.tokenizer, name)
        return open_head(file, self.model, name)

    def _drafted_by(self, name: str) -> Speculator:
        """Drafts of a small model, or of a draft head in a file of its own."""
        if self._head_file:
            return Speculator(HeadDrafter(self._head_file))
        file = open_file(hub.resolve(name))
        options = replace(self.options, draft=None, ctx_size=self.n_ctx, precision=None, kv_type=None)
        small = Opened(file, replace(options, context_shift=False, lora=()))
        check_vocabularies(small.tokenizer, self.tokenizer, name)
        return Speculator(DraftModel(small.engine(scheduled=True, answering=False)))


def open_model(
    model: str | Path | None = None, options: OpenOptions | None = None, *, progress: ReportProgress | None = None
) -> Opened:
    """Open the model that an argument names (`hub.resolve`); it is downloaded if necessary."""
    return Opened(open_file(hub.resolve(model, progress=progress)), options or OpenOptions())
