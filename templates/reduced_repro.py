"""Runs the reduced recipe beside this file and tells whether its finding is there. Needs precflow, and what the two sides need.

    python repro.py

Exit code 1 if the finding is there, 0 if not, 2 if the run could not be done.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def kind_of_place(where):
    """Return a place without the numbers of layers and calls."""
    module, slash, operator = where.partition(" / ")
    parts = re.sub(r"~\d+", "", module).split(".")
    return ".".join("*" if part.isdigit() else part for part in parts) + slash + re.sub(r"~\d+$", "", operator)


def main():
    """Run the recipe, compare its findings with the one that is sought, and return the exit code."""
    here = Path(__file__).resolve().parent
    facts = json.loads((here / "reduced.json").read_text(encoding="utf-8"))
    sought = facts["finding"]
    with tempfile.TemporaryDirectory() as folder:
        words = ["+recipe=%s" % (here / "reduced.yaml"), *facts["words"], "runs=%s" % folder, "name=run"]
        code = subprocess.run([sys.executable, "-m", "precflow", *words], check=False).returncode
        results = list(Path(folder).rglob("public/result.json"))
        if code == 2 or not results:
            return 2
        found = json.loads(results[0].read_text(encoding="utf-8"))["findings"]
    there = [one for one in found if (one["rule"], kind_of_place(one["where"])) == (sought["rule"], sought["place"])]
    print("%s at %s: %s" % (sought["rule"], sought["place"] or "the run", "there" if there else "not there"))
    return 1 if there else 0


if __name__ == "__main__":
    sys.exit(main())
