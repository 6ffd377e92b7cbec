import ast
import json
import os
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_own_model"


def test_it_imports_nothing_of_precflow():
    tree = ast.parse((EXAMPLE / "minilm_workload.py").read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules
    assert not any(module.startswith("precflow") for module in modules)


def test_the_readme_names_the_recipe_and_the_functions():
    text = (EXAMPLE / "README.md").read_text()
    for word in ("+recipe=minilm", "PRECFLOW_TRUST=minilm_workload", "minilm_workload.build", "minilm_workload.sentences"):
        assert word in text


@pytest.mark.slow
def test_an_agent_dumps_the_pretrained_model(tmp_path, warm_server):
    request = {
        "schema": 1,
        "action": "dump",
        "output": str(tmp_path),
        "workload": {
            "model": {"_target_": "minilm_workload.build"},
            "inputs": {"_target_": "minilm_workload.sentences", "texts": ["two words", "一只戴着帽子的猫"]},
        },
        "trusted": ["minilm_workload"],
        "import_paths": [str(EXAMPLE)],
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    code, _, said = warm_server.run([path], module="precflow.agent", cwd=tmp_path, env=dict(os.environ), timeout=300)
    assert code == 0, said
    header = json.loads((tmp_path / "dump.json").read_text())
    assert list(header["inputs"]["entries"]) == ["input_ids", "attention_mask"]
    assert header["inputs"]["entries"]["input_ids"]["shape"][0] == 2
    assert len(header["weights"]["entries"]) > 100
    assert header["repeat"]["different"] == []
