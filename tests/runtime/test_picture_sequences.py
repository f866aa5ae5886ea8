"""Sequences with pictures: the same tokens however they are scheduled; prefixes are named by their pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.runtime.cache_folder import open_folder
from assay.runtime.image_places import Images, place_images, prompt_part, rows_in_chunk, whole_images
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.prefix_keys import answer_keys, page_name
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence
from assay.runtime.speculation import Speculator
from assay.text import Tokenizer
from assay.vision.rows import ImageRows
from tests.picture_prompts import golden, model_of

N = 6


def two_pictures(name: str, digest: bytes = b"") -> tuple[tuple[int, ...], Images]:
    """A prompt of more than a page: two pictures with text around them. `digest` replaces that of the second."""
    pieces = golden(name)[0]
    again = [replace(p, digest=digest) if digest and isinstance(p, ImageRows) else p for p in pieces]
    return place_images([*pieces, *again])


def job(prompt: tuple[tuple[int, ...], Images], params: SamplerParams = GREEDY) -> Job:
    ids, images = prompt
    return Job(ids, params, N, ignore_eos=True, images=images)


def run(
    name: str, jobs: list[Job], *, chunk: int = 512, n_pages: int = 32, folder: Path | None = None, kept: bool = False
) -> tuple[list[Sequence], Scheduler]:
    model = model_of(name)
    engine = CpuEngine(model, threads=1, precision="exact", n_pages=n_pages)
    scheduler = Scheduler(
        engine, Tokenizer.from_gguf(model.file), chunk=chunk, speculator=Speculator(),
        folder=open_folder(folder) if folder else None,
    )  # fmt: skip
    made = []
    for one in jobs:
        made.append(scheduler.make(one, lambda update: None))
        scheduler.add(made[-1:])
        while kept and scheduler.busy:
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
        scheduler.pages.check()
    scheduler.close()
    return made, scheduler


def answers(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.ids[sequence.n_prompt :] for sequence in sequences]


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen3vl", "qwen2vl"])
def test_chunks_batches_and_cached_prefixes_change_no_token(name: str) -> None:
    prompt = two_pictures(name)
    (alone,), _ = run(name, [job(prompt)])
    assert alone.generated == N and not alone.cached
    for chunk in (5, 16):
        assert answers(run(name, [job(prompt)], chunk=chunk)[0]) == answers([alone])
    text = Job((257, 97, 98, 99), GREEDY, N, ignore_eos=True)
    found, _ = run(name, [text, job(prompt), text, job(prompt)])
    assert answers(found) == [answers([found[0]])[0], answers([alone])[0]] * 2
    first, second = run(name, [job(prompt), job(prompt)], kept=True)[0]
    assert second.cached >= PAGE and answers([first]) == answers([second]) == answers([alone])


def test_preempted_sequences_compute_their_pictures_again() -> None:
    prompt = two_pictures("qwen3vl")
    (alone,), _ = run("qwen3vl", [job(prompt)])
    jobs = [replace(job(two_pictures("qwen3vl", bytes([i]))), max_tokens=40) for i in range(3)]
    found, _ = run("qwen3vl", jobs, n_pages=5)
    assert any(sequence.preempted for sequence in found)
    assert {tuple(a[:N]) for a in answers(found)} == {tuple(answers([alone])[0])}


def test_another_picture_is_another_prefix(tmp_path: Path) -> None:
    """The same tokens with another picture share what lies before it, in memory and on disk."""
    one, other = two_pictures("gemma4"), two_pictures("gemma4", b"another picture")
    assert len(one[0]) == len(other[0]) > 4 * PAGE
    place = one[1][1].start  # of the second picture
    first, second = run("gemma4", [job(one), job(other)], kept=True)[0]
    assert place // PAGE * PAGE <= second.cached <= place and not first.cached
    for prompt, known in ((one, 0), (other, place // PAGE * PAGE), (one, len(one[0]) // PAGE * PAGE)):
        (found,), _ = run("gemma4", [job(prompt)], folder=tmp_path / "cache")
        assert found.cached >= known and answers([found]) in (answers([first]), answers([second]))


def test_positions_of_several_numbers() -> None:
    image = ImageRows(np.zeros((6, 4), np.float32), (3, 2), b"a", False)
    ids, images = place_images([[1, 2], image, [3], image, [4, 5]])
    given = rows_in_chunk(images, 0, len(ids), True)
    assert given and given.positions is not None
    assert given.positions.tolist() == [
        [0, 0, 0], [1, 1, 1],
        [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4],
        [5, 5, 5],
        [6, 6, 6], [6, 6, 7], [6, 6, 8], [6, 7, 6], [6, 7, 7], [6, 7, 8],
        [9, 9, 9], [10, 10, 10],
    ]  # fmt: skip
    for start in range(len(ids) - 1):
        part = rows_in_chunk(images, start, 2, True)
        wanted = given.positions[start : start + 2]
        assert (part is None and start < 1) or (part and np.array_equal(part.positions, wanted))  # type: ignore[arg-type]
    assert rows_in_chunk(images, 0, 2, True) is None and rows_in_chunk(images, 8, 1, False) is None


def test_the_part_of_a_prompt_with_an_arithmetic_of_its_own() -> None:
    """Precision mixed: all but the last token, and no part of a picture whose rows see each other."""
    both, causal = (ImageRows(np.zeros((40, 4), np.float32), None, b"a", sees) for sees in (True, False))
    for pieces, wanted in (([[1, 2], both, [3]], 42), ([[1, 2], both], 2), ([[1, 2], causal], 41), ([[1, 2]], 1)):
        ids, images = place_images(pieces)
        assert prompt_part(images, len(ids)) == wanted


def test_rows_in_the_arithmetic_of_an_answer_have_other_names() -> None:
    """No page of a prompt is used for an answer; a page of rows alone has a name as well."""
    ids, _ = place_images([[1, 2], ImageRows(np.zeros((40, 4), np.float32), None, b"a", False)])
    keys = answer_keys(ids)
    assert len({*ids, *keys}) == 2 * len(ids) and max(keys) < 0
    assert page_name("", keys[-PAGE:]) != page_name("", ids[-PAGE:])


def test_a_step_does_not_cut_rows_that_see_each_other() -> None:
    image = ImageRows(np.zeros((6, 4), np.float32), None, b"a", True)
    _, images = place_images([[1, 2], image, [3]])
    assert [whole_images(images, 0, n) for n in (1, 2, 3, 7, 8, 9)] == [1, 2, 2, 2, 8, 9]
    assert [whole_images(images, 2, n) for n in (1, 5, 6, 7)] == [6, 6, 6, 7]
    assert whole_images(images, 4, 1) == 4  # the rest of a picture whose first rows are cached


def test_penalties_and_drafts_see_tokens_only() -> None:
    params = SamplerParams(temp=0.0, repeat_penalty=1.3, repeat_last_n=-1)
    (found,), _ = run("qwen3vl", [job(two_pictures("qwen3vl"), params)])
    assert all(token >= 0 for token in answers([found])[0])


def test_what_pictures_cannot_have_is_refused() -> None:
    prompt = two_pictures("gemma3")
    for changed, message in (
        (replace(job(prompt), prompt_logprobs=1), "log-probabilities"),
        (job(two_pictures("gemma4")), "do not fit the model"),
    ):
        with pytest.raises(AssayError, match=message):
            run("gemma3", [changed])
