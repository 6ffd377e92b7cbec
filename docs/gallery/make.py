"""Run the faults of ``faults.yaml`` and write a page with a picture for each; nobody copies a number.

    python docs/gallery/make.py                          all of them, half an hour on two cores
    python docs/gallery/make.py causal_mask first_nan    these, and the index
    python docs/gallery/make.py --folder /tmp/gallery    finished stages stay in a folder, so that a second time is quick

It runs the ``precflow`` that the shell finds, and Debian's chromium for the pictures.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEIGHTS = {"network": 530, "curves": 740, "what-to-do": 470}  # pixels of what is shown of a section, 1000 wide
CHROMIUM = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=3000".split()
ALONE = (
    "main > section:not(#{0}), .page-head, footer, .chart-help {{ display: none !important }}"
    "main, #{0} {{ margin-top: 0 !important }}</style>"
)


@dataclass(frozen=True)
class Ended:
    """What a run left: its last screen, its result, and where its page lies."""

    screen: str
    result: dict[str, Any]
    report: Path


def main() -> None:
    """Run the faults that are named, or all, and write their pages and the index."""
    faults = yaml.safe_load((HERE / "faults.yaml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Run the faults of faults.yaml and write a page with a picture for each.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults of faults.yaml; all if none is named")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gallery", help="where the runs lie")
    parser.add_argument("--output", type=Path, default=HERE, help="where the pages go")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in faults]:
        parser.error(f"no fault is called {', '.join(unknown)}; there are {', '.join(faults)}")
    for name in options.names or faults:
        fault = faults[name]
        folder = prepare(fault, options.folder.resolve())
        ended = run(fault["command"], folder)
        found = [finding["rule"] for finding in ended.result["findings"]]
        if found[:1] != [fault["rule"]]:
            sys.exit(f"{name}: {fault['rule']} was expected first, found {found or 'nothing'}\n{ended.screen}")
        draw(ended.report, fault["show"], options.output / f"{name}.webp")  # the next run takes the page away
        mended = run(fault["mended"], folder)
        page = write_page(name, fault, ended, mended)
        if str(options.folder.resolve()) in page:
            sys.exit(f"{name}: the page shows a path of this machine\n{page}")
        (options.output / f"{name}.md").write_text(page, encoding="utf-8")
        verdicts = [each.result["verdict"]["verdict"] for each in (ended, mended)]
        print(f"{name}: {fault['rule']}, {' -> '.join(verdicts)}", flush=True)
    (options.output / "README.md").write_text(write_index(faults), encoding="utf-8")


def prepare(fault: dict[str, str], folder: Path) -> Path:
    """Return the folder in which a fault runs: a copy of an example, or one that all others share."""
    where = folder / fault.get("in", "recipes")
    if not where.exists() and "in" in fault:
        shutil.copytree(ROOT / "examples" / fault["in"], where, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    where.mkdir(parents=True, exist_ok=True)
    if "prepare" in fault:
        shutil.copy(HERE / fault["prepare"].split()[-1], where)
        call(fault["prepare"], where)
    return where


def call(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command line in a folder, as the reader would."""
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    command = ["bash", "-c", line]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)


def run(line: str, folder: Path) -> Ended:
    """Run precflow; a run that could not be done ends everything."""
    done = call(line, folder)
    report = re.search(r"^   report +(\S+)/report\.html", done.stderr, re.MULTILINE)
    if report is None or done.returncode not in {0, 1, 3}:
        sys.exit(f"{line}\n{done.stderr}")
    screen = done.stderr[done.stderr.rindex("state=", 0, report.start()) :].partition("\n")[2].rstrip()
    # How long it took says how busy this machine was; and where a page is written again nothing is computed.
    screen = re.sub(r"\A( .+) · [^·\n]+\n(   nothing was computed: .+\n)?", r"\1\n", screen)
    public = folder / report[1] / "public"
    return Ended(screen, json.loads((public / "result.json").read_text(encoding="utf-8")), public / "report.html")


def draw(report: Path, section: str, picture: Path) -> None:
    """Take a picture of one section of a report."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text(encoding="utf-8"), count=1)
    alone = report.with_name("section.html")
    alone.write_text(page.replace("</style>", ALONE.format(section), 1), encoding="utf-8")
    picture.unlink(missing_ok=True)
    command = [*CHROMIUM, f"--window-size=1000,{HEIGHTS[section]}", f"--screenshot={picture}", alone.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    alone.unlink()
    if not picture.exists():
        sys.exit(f"chromium took no picture of {report}\n{done.stderr}")


def write_page(name: str, fault: dict[str, str], ended: Ended, mended: Ended) -> str:
    """Return the page of one fault."""
    result, finding = ended.result, ended.result["findings"][0]
    made = [f"Made with precflow {result['precflow']}."]
    if "in" in fault:
        made.append(f"The files are those of [examples/{fault['in']}](../../examples/{fault['in']}/README.md).")
    if "prepare" in fault:
        made.append(f"[{fault['prepare'].split()[-1]}]({fault['prepare'].split()[-1]}) makes the files.")
    if result["emulated"]:
        made.append("The target is [emulated](../emulation.md).")
    pictures = {"network": "the error of each record along the network", "curves": "both curves and their difference"}
    shown = pictures.get(fault["show"], "what the report says to do")
    typed = "\n".join([*([fault["prepare"]] if "prepare" in fault else []), fold(fault["command"])])
    evidence = "\n".join(f"| {cell(each['what'])} | {cell(each['value'])} |" for each in finding["evidence"])
    against = "".join(f"\n* Not {plain(each['rule'])}: {plain(each['because'])}." for each in finding["against"])
    return f"""# {fault["title"]}

{fault["seen"].strip()}

## The run

{" ".join(made)}

```bash
{typed}
```

```text
{ended.screen}
```

![{fault["title"]}: {shown}]({name}.webp)

## The evidence

[{finding["rule"]}](../rules.md#{finding["rule"].lower()}), *{finding["certainty"]}*: {plain(finding["title"]).rstrip(".")}

{plain(finding["why"])}

| measured | |
|---|---|
{evidence}
{against}

## The mend

{plain(finding["fix"])}

```bash
{fold(fault["mended"])}
```

```text
{mended.screen}
```
""".replace("\n\n\n", "\n\n")


def write_index(faults: dict[str, dict[str, str]]) -> str:
    """Return the page that leads to all others."""
    rows = "".join(
        f'| [<img src="{name}.webp" width="220" alt="">]({name}.md) '
        f"| **[{fault['title']}]({name}.md)** <br> {fault['seen'].strip()} "
        f"| [{fault['rule']}](../rules.md#{fault['rule'].lower()}) |\n"
        for name, fault in faults.items()
    )
    return f"""# A gallery of faults

{len(faults)} kinds of fault that break a port, each planted into a small model and found by one command. A page has the
command, what precflow says, a picture of its report, the evidence, and the run after the mend. [make.py](make.py) has
written all of it from the results of the runs that [faults.yaml](faults.yaml) names.

| | what somebody sees | rule |
|---|---|---|
{rows}
Yours is not among them? [Start from what you see](../symptoms.md), or read [all rules](../rules.md).
"""


def fold(line: str) -> str:
    """Return a command in lines that a page is wide enough for."""
    return textwrap.fill(line.strip(), 100, break_long_words=False, break_on_hyphens=False).replace("\n", " \\\n    ")


def cell(text: str) -> str:
    """Return text that can stand in a cell of a table."""
    return plain(text).replace("|", "\\|")


def plain(text: str) -> str:
    """Return text of a result as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    main()
