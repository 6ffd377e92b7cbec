"""What is known of the links of a conversion."""

from types import SimpleNamespace

from precflow.diagnosis.evidence.of_run.conversion import gather


def test_what_is_to_be_kept_in_float32_is_kept_beside_what_is_already():
    kept = {"nodes": ["mul", "sin"], "before": 8e-3, "after": 2e-3}
    fault = {
        "nodes": [{"operator": "Sin", "name": "sin"}],
        "record": "r",
        "tensor": "t",
        "error": 0.1,
        "limit": 4e-3,
        "kept": kept,
    }
    link = {"link": "half", "state": "broken", "faults": [fault]}
    conversion = {"exporter": "dynamo", "links": [link], "keep_float32": ["cos", "mul"]}
    sides = {
        side: SimpleNamespace(header=SimpleNamespace(conversion=conversion if side == "target" else {}))
        for side in ("reference", "target")
    }
    found = gather(SimpleNamespace(**sides))
    assert found["half_keep"] == "target.conversion.keep_float32=[cos,mul,sin]"
    assert found["half_kept"].startswith("mul, sin: relative_l2 of the outputs 0.008 -> 0.002")
