"""The one exception for faults of the user's making: a file, a request, an argument.

Its text is a single line, `object: what is wrong (found X, expected Y); what to do`, and the
command line turns it into that line on stderr and exit code 2. Anything else that escapes is a bug
and keeps its traceback.
"""

from __future__ import annotations


class AssayError(Exception):
    """A fault the user can mend; the message says how."""
