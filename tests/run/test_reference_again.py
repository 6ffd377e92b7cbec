"""What is changed where the reference runs again with another number of threads."""

import pytest

from precflow.run.reference_again import choose_threads


@pytest.mark.parametrize(
    ("inherited", "own", "chosen"),
    [
        ({}, {}, {"OMP_NUM_THREADS": "1"}),
        ({"OMP_NUM_THREADS": "1"}, {}, {"OMP_NUM_THREADS": "2"}),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "1"}),
        ({"MKL_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4"}, {"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}),
    ],
)
def test_a_librarys_own_number_of_threads_goes_before_that_of_all(monkeypatch, inherited, own, chosen):
    """MKL_NUM_THREADS=1 of the shell held torch to one thread, whatever OMP_NUM_THREADS said."""
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    assert choose_threads(own) == chosen
