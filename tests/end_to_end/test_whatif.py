"""What-ifs on the emulated device: what mends the run is confirmed, what does not is refuted; the table of its operators."""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("training")]
NORMED = (
    "workload.model._target_=normed.build",
    "workload.inputs._target_=normed.inputs",
    "reference.device=cpu",
    "target.device=emulated",
    "+emulate=layernorm_eps",
)


@pytest.fixture(scope="module")
def normed(precflow, tmp_path_factory):
    """Return a function that runs recipe ``minilm`` over ``workloads/normed.py`` with a layer_norm that has another epsilon."""
    cwd = tmp_path_factory.mktemp("normed")
    shutil.copy(Path(__file__).parent / "workloads" / "normed.py", cwd)

    def run(*words, recipe="minilm"):
        options = {"cwd": cwd, "recipe": recipe.strip("[]").replace(",", "+"), "timeout": 600}
        return precflow(f"+recipe={recipe}", *NORMED, *words, **options, PRECFLOW_TRUST="normed", OMP_NUM_THREADS="1")

    return run


def test_what_mends_the_run_is_confirmed_and_what_does_not_is_refuted(normed):
    ended = normed("whatif=[PF214,suspects_in_float64]")
    assert ended.code == 1, ended.err
    outcomes = {one["name"]: one for one in ended.result["whatifs"]}
    assert outcomes["written_out"]["outcome"] == "confirmed"
    assert outcomes["written_out"]["removed"] > 0.999
    assert set(outcomes["written_out"]["suspects"]) == {"0.norm / layer_norm", "1.norm / layer_norm"}
    assert outcomes["suspects_in_float64"]["outcome"] == "refuted"
    finding = ended.result["findings"][0]
    assert (finding["rule"], finding["certainty"]) == ("PF214", "certain")
    assert finding["evidence"][0]["what"] == "confirmed"
    assert "confirmed: with 2 layer_norm written out" in ended.said


def test_one_more_word_tries_only_that_one(normed):
    ended = normed("whatif=[PF214,suspects_in_float64,suspects_on_cpu]")
    states = {stage["name"]: stage["state"] for stage in ended.result["stages"]}
    assert [states[f"whatif.{name}"] for name in ("PF214", "suspects_in_float64", "suspects_on_cpu")] == ["kept", "kept", "run"]
    (on_cpu,) = [one for one in ended.result["whatifs"] if one["name"] == "suspects_on_cpu"]
    assert on_cpu["outcome"] == "confirmed"


def test_the_table_names_the_operator_that_is_wrong_and_is_laid_beside_the_next(normed):
    ended = normed(recipe="[minilm,operator_check]")
    assert ended.code == 1, ended.err
    rows = {(row["operator"], row["phase"]): row for row in ended.result["operators"]}
    norm = next(row for (operator, _), row in rows.items() if operator.endswith("native_layer_norm"))
    assert norm["faults"] > 0
    assert min(norm["in_run"], norm["alone"]) > 1000 * norm["reference"]
    assert sum(row["faults"] for row in rows.values() if row["phase"] == "forward") == norm["faults"]
    assert rows["sqrt", "all numbers"]["in_run"] <= 0.5001
    # A copy, as the documentation says: a run removes the report of the one before.
    table = shutil.copy(ended.folder / "public" / "operators.json", ended.folder.parent / "earlier.json")
    again = normed(f"operators.against={table}", recipe="[minilm,operator_check]")
    assert all(row["before"] == row["in_run"] for row in again.result["operators"])
