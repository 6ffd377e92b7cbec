"""How much of a test that could go on for ever is done: a little by default, all of it where PRECFLOW_ALL_EXAMPLES is set."""

import os

ALL = bool(os.environ.get("PRECFLOW_ALL_EXAMPLES"))


def examples(full):
    """Return how many examples hypothesis draws where ``full`` are a thorough search and each takes a tenth of a second."""
    return full if ALL else max(10, full // 5)
