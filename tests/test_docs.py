"""What the documents tell people to type works: every ``bash`` block of README, docs and examples is run.

``precflow`` and ``python`` are those of ``support/warm.py``, which saves the import of torch; the README's block of
``precflow ls`` starts real ones. The text encoder is a narrow one with as many layers as the planted fault needs, and scripts
train one block for few steps. Outside the README no noise floor is measured unless the page is about limits: that takes three
more runs of the reference for each command. Continuous integration runs the README's first command at its real size.

A line may end in ``# exit N`` where another exit code than 0 is meant. A block behind ``<!-- not run: WHY -->`` is not run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precflow.agent.contract import STATISTICS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md"), *ROOT.glob("skills/*/SKILL.md")]
)
BLOCK = re.compile(r"(?P<skip><!-- not run: [^\n]+ -->\n+)?```bash\n(?P<body>.*?)```", re.DOTALL)
OTHER_MODEL = re.compile(r"precflow \+recipe=minilm")
CONVERTED = re.compile(r"precflow \+recipe=onnx_conversion")
TRAINING = re.compile(r"precflow \+recipe=small\.yaml workload\.script=(train_glm|train)\.py")  # examples 06 and 05
BLOCKS_OF = {"train_glm": "layers", "train": "depth"}
WHOLE_ENCODER = re.compile(r"precflow \+recipe=sd_text_encoder(?=.*?(?:\+emulate=(?P<fault>\w+)|$))")
ABOUT_LIMITS = {"decisions.md", "standards.md"}
EXIT = re.compile(r"#.*\bexit (\d+)\s*$")


def commands(document):
    for block in BLOCK.finditer(document.read_text(encoding="utf-8")):
        if not block["skip"]:
            yield [line for line in block["body"].splitlines() if line.strip() and not line.lstrip().startswith("#")]


BLOCKS = [
    pytest.param(document, lines, id=f"{document.relative_to(ROOT)}-{number}")
    for document in DOCUMENTS
    for number, lines in enumerate(commands(document))
]


def with_less_work(line, small_encoder, *, measures):
    """Return a command line whose text encoder is narrow and whose script trains one block for few steps.

    Args:
        line: The command line.
        small_encoder: Gives the overrides for a narrow encoder of so many layers.
        measures: It may measure a noise floor.
    """

    fixed = "" if measures or "tolerance.standards" in line else " tolerance.standards=[default]"

    def shorten(found):
        fault = found["fault"]
        rules = (ROOT / "conf" / "emulate" / f"{fault}.yaml").read_text(encoding="utf-8") if fault else ""
        layers = max([2, *(int(number) + 1 for number in re.findall(r"\blayers\.(\d+)", rules))])
        return f"{found[0]} {' '.join(small_encoder(layers=layers))}{fixed}"

    def train_less(found):
        return f"{found[0]} workload.arguments.steps=5 workload.arguments.{BLOCKS_OF[found[1]]}=1{fixed}"

    line = CONVERTED.sub(f"\\g<0> {' '.join(small_encoder(layers=1))}{fixed}", line)
    line = OTHER_MODEL.sub(rf"\g<0>{fixed}", TRAINING.sub(train_less, line))
    return WHOLE_ENCODER.sub(shorten, line)


@pytest.mark.slow
@pytest.mark.xdist_group("text encoder")
@pytest.mark.parametrize(("document", "lines"), BLOCKS)
def test_block_runs_as_written(document, lines, workplace, warm_server, small_encoder):
    is_example = document.parent.parent.name == "examples" and len([*document.parent.glob("*.*")]) > 1
    where = document.parent if is_example else workplace  # what runs in the workplace finds the dumps of earlier blocks
    folders = [Path(sys.executable).parent, os.environ["PATH"]]
    if (document.name, lines[0]) != ("README.md", "precflow ls"):
        folders.insert(0, warm_server.shim())
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, folders))}
    environment.pop("CI", None)
    measures = document == ROOT / "README.md" or document.name in ABOUT_LIMITS
    for written in lines:
        line = with_less_work(written, small_encoder, measures=measures)
        expected = EXIT.search(line)
        done = subprocess.run(["bash", "-c", line], cwd=where, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == int(expected[1] if expected else 0), f"{line}\n{done.stdout}\n{done.stderr}"


def test_links_and_source_files_that_are_named_exist():
    link, source = (
        re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)"),
        re.compile(r"(?<![\w/])(?:precflow|tests|conf|templates)/[\w/-]+\.\w+"),
    )
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert [path for path in link.findall(text) if not (document.parent / path).exists()] == [], document
        assert [path for path in source.findall(text) if not (ROOT / path).exists()] == [], document


def test_numbers_in_words_are_those_of_the_code():
    words = {10: "Ten", 11: "Eleven", 12: "Twelve", 13: "Thirteen", 14: "Fourteen"}
    statistics = (ROOT / "conf" / "capture" / "statistics.yaml").read_text(encoding="utf-8")
    assert statistics.startswith(f"# {words[len(STATISTICS)]} numbers a tensor")


def test_a_recipe_over_dumps_offers_nothing_that_only_a_workload_heeds():
    text = (ROOT / "recipes" / "compare_dumps.yaml").read_text(encoding="utf-8")
    assert [key for key in ("dtype=", "device=", "workload.", "determinism.", "capture.") if key in text] == []


def test_every_verb_and_recipe_is_documented():
    text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    verbs = [path.stem for path in (ROOT / "precflow" / "verbs").glob("*.py") if path.stem != "__init__"]
    recipes = [path.stem for path in (ROOT / "recipes").glob("*.yaml")]
    assert [verb for verb in verbs if f"precflow {verb}" not in text] == []
    assert [recipe for recipe in recipes if recipe not in text] == []


def test_the_readme_leads_to_every_document():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in ROOT.glob("docs/*.md") if f"docs/{path.name}" not in text] == []
