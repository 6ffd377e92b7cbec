import errno
import os

import pytest

from precflow.agent.dump.write_errors import bytes_text, over_budget, write_error
from precflow.agent.failures import KINDS


def test_bytes_are_shown_in_powers_of_thousand():
    assert [bytes_text(count) for count in (0, 999, 64_000_000, 2_500_000_000_000)] == [
        "0 bytes",
        "999 bytes",
        "64.0 MB",
        "2.5 TB",
    ]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, "disk_full", "no space left in /: 5.0 kB needed, "),
        (errno.EFBIG, "disk_full", "no space left in /"),
        (errno.EROFS, "read_only", "/ cannot be written to (Read-only file system)"),
        (errno.EIO, "unwritable", "writing 5.0 kB to / failed"),
    ],
)
def test_errors_of_the_system_are_sentences_with_a_next_step(number, kind, words):
    error = write_error(OSError(number, os.strerror(number)), "/", 5000)
    assert error.kind == kind
    assert error.kind in KINDS
    assert error.message.startswith(words)
    assert error.next_step


def test_a_folder_that_is_gone_has_an_unknown_number_of_bytes():
    assert "an unknown number of bytes free" in write_error(OSError(errno.ENOSPC, "full"), "/no/such/folder", 1).message


def test_over_the_budget_says_what_would_help():
    error = over_budget("/dump", 1000, 800, 400)
    assert (
        error.message == "the dump in /dump would exceed its budget: 1.0 kB allowed, 800 bytes written, 400 bytes more needed"
    )
    assert (error.kind, "capture.budget" in error.next_step) == ("budget", True)
