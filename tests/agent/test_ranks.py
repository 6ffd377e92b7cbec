"""How ranks are ended that wait for one that has failed."""

import os
import signal
import time

import pytest

from precflow.agent import ranks


@pytest.mark.parametrize(("ignored", "last"), [(False, 30.0), (True, 0.1)])
def test_a_rank_ends_when_it_is_told_and_is_killed_if_it_does_not(monkeypatch, ignored, last):
    monkeypatch.setattr(ranks, "_LAST", last)
    told, tells = os.pipe()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else signal.SIG_DFL)
        os.write(tells, b".")
        time.sleep(60)
        os._exit(0)
    os.read(told, 1)
    began = time.monotonic()
    ranks._end({process: 1})
    assert time.monotonic() - began < 15
    with pytest.raises(ChildProcessError):  # it has ended, and nothing is left of it
        os.waitpid(process, 0)
    os.close(told)
    os.close(tells)
