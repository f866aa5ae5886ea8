"""Receipts of answers: `assay serve --receipts KEY` signs one for each choice of a completion or a conversation."""

from __future__ import annotations

from typing import Any

from assay.runtime.receipts import header_of, make_receipt
from assay.serve.api.server_state import State
from assay.serve.pool.models import LocalWorker, ServedModel
from assay.serve.pool.update_queue import Reader


async def signed(state: State, entry: ServedModel, reader: Reader) -> dict[str, Any]:
    """`{"receipts": […]}`, or nothing if the server makes none. The file is hashed once, off the event loop."""
    worker, signer = reader.worker, state.signer
    if signer is None or not isinstance(worker, LocalWorker):
        return {}
    arithmetic = worker.arithmetic

    def made() -> list[dict[str, Any]]:
        found = []
        for sequence in reader.sequences:
            job = sequence.job
            header = header_of(
                entry.file.sha256,
                arithmetic,
                job.params,
                sequence.seed,
                job.ids,
                constrained=job.constraint is not None,
            )
            tokens = sequence.ids[len(job.ids) :]
            found.append(make_receipt(header, job.ids, tokens, sequence.row_digests, signer).to_dict())
        return found

    return {"receipts": await state.threads.run("disk", made)}
