"""Make the plan of a page in a separate process, for the server: `python -m assay.library.web_plan_process < JOB`.

The job is one JSON object on stdin: `model` is a path, and `folder` is where plan.json and packed.bin are written.
`name` is the model's name on the server, `context` the number of positions, `most_packed` the largest packed.bin in
bytes. `template` and `arguments` are those of the server's chat template.

The last line that the process prints is `{"bytes": …}`, or `{"error": …}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from assay.errors import AssayError


def make_plan(job: dict[str, Any]) -> dict[str, Any]:
    from assay.library.web_export import PACKED, chat_frame, write_plan
    from assay.runtime.opening import OpenOptions, open_model

    options = OpenOptions(
        ctx_size=job["context"], template=job["template"], template_arguments=job["arguments"] or None
    )
    opened, folder = open_model(job["model"], options), Path(job["folder"])
    raw = False
    try:
        if opened.template:
            chat_frame(opened.template)
    except AssayError:  # the page continues texts, as the server does for /v1/completions
        raw = True
    write_plan(opened, folder, raw, job["most_packed"], served=job["name"])
    return {"bytes": (folder / "plan.json").stat().st_size + (folder / PACKED).stat().st_size}


def main() -> None:
    try:
        answer = make_plan(json.load(sys.stdin))
    except MemoryError:
        answer = {"error": "the plan of the page needs more memory than there is"}
    except (AssayError, OSError) as error:
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
