"""Example 08 and recipe ``sd_pipeline``: from a wrong picture to the part to blame, what mends it, and its price.

The command is the page's own. ``tests/test_docs.py`` runs the page in the same folder, where everything is kept.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("text encoder")]
PAGE = (Path(__file__).parents[2] / "examples" / "08_sd_pipeline" / "README.md").read_text(encoding="utf-8")
GUILTY = "text_encoder"
FIRST = f"{GUILTY}.encoder.layers.0.layer_norm1"


@pytest.fixture(scope="module")
def ran(warm_server, workplace):
    """Return what the page's first command has said, and the folder of its run."""
    _, recipe, *words = shlex.split(re.search(r"```bash\n(precflow \+recipe=sd_pipeline.*?) *#", PAGE)[1])
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    code, _, said = warm_server.run([recipe, *words], cwd=workplace, env=environment, timeout=900)
    assert code == 1, said
    return " ".join(said.split()), workplace / "runs" / "sd_pipeline"


@pytest.fixture(scope="module")
def result(ran):
    return json.loads((ran[1] / "public" / "result.json").read_text(encoding="utf-8"))


def test_the_guilty_model_and_its_operator_are_named_and_others_inherit(ran, result):
    said, _ = ran
    parts = {part["name"]: part for part in result["parts"]}
    assert [name for name, part in parts.items() if part["state"] == "to blame"] == [GUILTY]
    assert parts[GUILTY]["starts"] == f"{FIRST} / layer_norm"
    assert parts["unet"]["state"] == "inherits"
    assert parts["unet"]["forced"]["ratio"] < 1 < parts["unet"]["free"]["ratio"]
    assert "to blame: text_encoder · inherit: unet" in said
    assert {"PF214", "PF603"} <= {finding["rule"] for finding in result["findings"]}


def test_what_mends_it_has_a_price_and_the_metrics_of_its_picture(ran, result):
    said, _ = ran
    mends = {mend["title"]: mend for mend in result["mends"]}
    assert {title: mend["outcome"] for title, mend in mends.items()} == {
        "as it is": "fails",
        "text_encoder in float32": "passes",
        "text_encoder unfused": "passes",
        "text_encoder on the CPU": "passes",
        f"{FIRST} in float32": "passes",
    }
    title, smallest = mends.popitem()
    assert (smallest["smallest"], smallest["price"]["rounds"]) == (True, 5)
    assert not any(mend["smallest"] for mend in mends.values())
    psnr = [float(mend["task"][0]["shown"].removesuffix(" dB")) for mend in (mends["as it is"], smallest)]
    assert psnr[0] + 6 < psnr[1]
    assert f"mend {title} passes, in" in said
    assert f"psnr {psnr[0]:.3g} dB -> {psnr[1]:.3g} dB" in said


def test_the_page_shows_both_pictures_their_difference_and_all_tables(ran):
    _, folder = ran
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("What mends it, and at which price", "times today", "Pictures of vae_decoder", "smallest that passes"):
        assert text in page
    assert page.count("data:image/png") >= 3
    report = (folder / "public" / "report.md").read_text(encoding="utf-8")
    assert "| text\\_encoder in float32 | passes |" in report
    assert "psnr" in report[report.index("## What mends it") : report.index("## Task metrics")]
