"""What the interpreter cannot do, told apart from what an implementation does wrong."""

from __future__ import annotations

from oracles.backends.base import causes
from oracles.verdict import Unsupported

_TEXTS = (
    ("not supported in interpreter", NotImplementedError),
    ("unsupported dtype", ValueError),
    ("unsupported semantic", ValueError),
    ("unsupported rmwOp", ValueError),
    ("has unsupported dtype", Exception),
    ("'InterpreterBuilder' object has no attribute", AttributeError),
    ("`_semantic` argument must be provided outside of JIT functions", ValueError),
    # The stubs of ``triton.language.extra.libdevice`` have no bodies; their results fail where they are used.
    ("cannot convert None of type", TypeError),
    ("active drivers", RuntimeError),
)
"""Parts of messages with which the interpreter, or the search for a GPU driver, gives up."""


def limit_of(error: BaseException) -> str | None:
    """Why this arm cannot judge a call that ended with ``error``, or ``None`` if the error is the call's own."""
    for cause in causes(error):
        if isinstance(cause, Unsupported):
            return str(cause)
        for text, kind in _TEXTS:
            if isinstance(cause, kind) and text in str(cause):
                return f"the Triton interpreter: {cause}"
    return None
