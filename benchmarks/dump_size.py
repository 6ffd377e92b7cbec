"""How much smaller a dump is than the tensors that it stands for, as a Markdown table.

    precflow +recipe=sd_text_encoder target.device=emulated capture=sketch
    python benchmarks/dump_size.py runs/sd_text_encoder/store/reference/*

What a dump stands for are the tensors of its records. They are counted twice: each record's by itself, as a dump without
deduplication holds them, and each content once, as ours does in detail ``tensors``. Movement and weights that go in have none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from precflow.dumps.estimate import holds_tensor, tensor_bytes
from precflow.dumps.formats import read_dump


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of a dump, of the tensors of all its records, and of those with each content once; and the records."""
    calls = read_dump(folder).calls()
    records = [
        record for call in calls for record in (*call.inputs, *call.outputs) if holds_tensor(record, movement=call.movement)
    ]
    return {
        "dump": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "all": sum(map(tensor_bytes, records)),
        "once": sum({record.key: tensor_bytes(record) for record in records}.values()),
        "records": len(records),
    }


def table(folders: list[Path]) -> str:
    """Return the table."""
    lines = [
        "| dump | MB | records | their tensors, MB | times | each content once, MB | times |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for folder in folders:
        found = sizes(folder)
        mine, every, once = (found[name] / 1e6 for name in ("dump", "all", "once"))
        numbers = (every, every / mine, once, once / mine)
        cells = (folder.name, f"{mine:.2f}", found["records"], *(f"{number:.0f}" for number in numbers))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table([Path(name) for name in sys.argv[1:]]) + "\n")
