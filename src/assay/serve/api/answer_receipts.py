"""Receipts of answers: `assay serve --receipts KEY` signs one for each choice of a completion or a conversation."""

from __future__ import annotations

from typing import Any

from assay.runtime.receipts import header_of, make_receipt
from assay.serve.api.server_state import State
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader


async def signed(state: State, entry: ServedModel, reader: Reader) -> dict[str, Any]:
    """`{"receipts": […]}`, or nothing if none was asked for. A server without a key does not sign them.

    The file is hashed once, off the event loop.

    An answer whose tokens do not all have a hash gets no receipt: a replica of an older version sends none.
    """
    worker, signer = reader.worker, state.signer
    if not all(sequence.job.receipt for sequence in reader.sequences):
        return {}

    def made() -> list[dict[str, Any]]:
        found = []
        for sequence in reader.sequences:
            job, arithmetic = sequence.job, worker.arithmetic(sequence)
            tokens = sequence.ids[len(job.ids) :]
            if arithmetic is None or len(tokens) != len(sequence.row_digests):
                return []
            constrained = job.constraint is not None or job.thinking is not None
            header = header_of(
                entry.file.sha256, arithmetic, job.params, sequence.seed, job.ids, constrained=constrained,
                images=job.images,
            )  # fmt: skip
            found.append(make_receipt(header, job.ids, tokens, sequence.row_digests, signer).to_dict())
        return found

    receipts = await state.threads.run("disk", made)
    return {"receipts": receipts} if receipts else {}
