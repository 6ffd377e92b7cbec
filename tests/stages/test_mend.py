"""Stage ``mend``: which modules are raised where one part lies in another."""

from types import SimpleNamespace

from precflow.agent.contract import FORWARD
from precflow.diagnosis.mend import UNFUSED, Raised
from precflow.stages import mend


class Runs:
    """Runs in which both parts are right as soon as one norm is raised."""

    measures = tuple(SimpleNamespace(module=name, phase=FORWARD) for name in ("part", "part.inner", "part.inner.norm"))

    def try_forced(self, sets):
        right = ["part.inner.norm" in raised.modules for (raised,) in sets]
        return [dict.fromkeys(("part", "part.inner"), "" if one else "over its limit") for one in right]


def test_what_mends_a_part_and_one_inside_of_it_is_raised_once():
    found = mend._narrow(Runs(), {"part": UNFUSED, "part.inner": UNFUSED}, ["part.inner.norm"])
    assert found == (Raised(UNFUSED, ("part.inner.norm",)),)
