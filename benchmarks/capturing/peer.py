"""Run by the peer's interpreter: msprobe around the same work. Prints one JSON object."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is run by its path

from msprobe.pytorch import PrecisionDebugger

from capturing import work

_LEVELS = {"module": "L0", "api": "L1", "module_api": "mix"}


def main(case: work.Case) -> dict[str, Any]:
    """Measure one case and return its times, files and bytes of the last step."""
    model, step = case.build()
    folder = Path(case.folder)
    config = folder / "config.json"
    common = {"task": case.detail, "dump_path": str(folder / "dump"), "rank": [], "step": [], "level": _LEVELS[case.level]}
    task = {"scope": [], "list": [], "data_mode": ["all"]}
    config.write_text(json.dumps({**common, "enable_dataloader": False, case.detail: task}), encoding="utf-8")
    debugger = PrecisionDebugger(config_path=str(config))

    def clean() -> None:
        shutil.rmtree(folder / "dump", ignore_errors=True)

    def captured() -> None:
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()

    result = work.race(step, captured, case.rounds, clean=clean)
    files = [path for path in (folder / "dump").rglob("*") if path.is_file()]
    return {**result, "files": len(files), "bytes": sum(path.stat().st_size for path in files)}


if __name__ == "__main__":
    answer = main(work.Case.parse(sys.argv[1]))
    sys.__stdout__.write("\n" + json.dumps(answer) + "\n")
