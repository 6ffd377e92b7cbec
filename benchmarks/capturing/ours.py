"""Our agent's recorder around the same work, in a process of its own. Prints one JSON object."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is run by its path

from capturing import work
from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection
from precflow.agent.session import garbage

_LEVELS = {"module": ("module",), "api": ("api",), "module_api": ("module", "api")}


def main(case: work.Case) -> dict[str, Any]:
    """Measure one case and return its times, records, files and bytes of the last step."""
    model, step = case.build()
    phases = ("forward", "backward") if case.subject == "encoder" else ("forward",)
    place = Path(case.folder) / "dump"
    counts: dict[str, int] = {}

    def clean() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)

    def captured() -> None:
        writer = Writer(str(place))
        recorder = Recorder(writer, CaptureSection(level=_LEVELS[case.level], phase=phases, detail=case.detail))
        with recorder.watch(model):
            step()
        writer.seal({})
        counts.update(writer.counts)

    with garbage.collect_rarely():  # as a dump does, for plain steps too
        result = work.race(step, captured, case.rounds, clean=clean)
    files = [path for path in place.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**result, **counts, "files": len(files), "bytes": size, "peak": peak}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(work.Case.parse(sys.argv[1]))) + "\n")
