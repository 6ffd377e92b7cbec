"""``precflow notebook RUN [--output FILE]``: write a notebook that reads a result and shows its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from precflow.errors import StoreError
from precflow.files import write_text
from precflow.verbs import Verb, make_parser, print_json, write

VERB = Verb(
    72,
    "a notebook about one run: its tables, findings, curves and history",
    "notebook sd_text_encoder@3",
    other_words=("jupyter", "ipynb", "nb"),
)


def main(arguments: Sequence[str]) -> int:
    """Write the notebook and print its path; return 0.

    Raises:
        StoreError: There is no such result, or the file is there already or cannot be written.
    """
    options = make_parser("notebook", "RUN [--output FILE]")
    options.add_argument(
        "result", metavar="RUN", help="a run, such as minilm or runs/minilm@3, a result.json, or the folder of one"
    )
    options.add_argument("--output", type=Path, metavar="FILE", help="default NAME.ipynb, which must not be there yet")
    chosen = options.parse_args(arguments)
    from precflow.report import notebook
    from precflow.run.find_results import read_result
    from precflow.run.find_runs import find_run

    model = read_result(chosen.result)
    given = Path(chosen.result).expanduser()
    is_file = given.is_file() or (given.is_dir() and not (given / "run.json").is_file())
    run = None if is_file else find_run(chosen.result)
    name = given.stem if run is None else f"{run.folder.name}-{run.entry.number}"
    file = (chosen.output or Path(f"{name}.ipynb")).expanduser()
    if file.exists():  # somebody may have worked in it
        raise StoreError(f"{file} is there already", next_step=f"move it, or name another:  --output {name}-2.ipynb")
    # A notebook runs in its own folder.
    place = os.path.relpath(given if run is None else run.folder, file.parent)
    text = notebook.render(model, place if run is None else f"{place}@{run.entry.number}", is_run=run is not None)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}", next_step="name another: --output FILE"
        ) from error
    if chosen.json:
        print_json({"notebook": str(file)})
    else:
        write(str(file))
    return 0
