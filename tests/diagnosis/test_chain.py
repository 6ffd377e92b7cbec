from dataclasses import replace
from types import SimpleNamespace

import pytest

from precflow.comparison.measure import Measure
from precflow.diagnosis.chain import describe_parts, hold_to_parts, judge_parts, name_starts, write_inputs
from precflow.judgement.verdicts import Judged, Verdict

PARTS = ("text", "unet", "vae")


def row(part, status, ratio, call="", operator=""):
    record = f"{part}{call}{operator and f'/{operator}.0'}/forward.output.0"
    measure = Measure(record, part, part, operator, "api" if operator else "module", "forward", 0, "paired")
    return measure, Judged(record, status, "relative_l2", ratio * 1e-3, 1e-3, ratio, reason="" if status == "pass" else "why")


def states(free, forced):
    return {part.name: part.state for part in judge_parts(PARTS, free, forced)}


def test_what_fails_forced_is_to_blame_and_what_fails_free_alone_inherits():
    free = [row("text", "pass", 0.5), row("unet", "fail", 20.0), row("vae", "fail", 9.0)]
    forced = [row("text", "pass", 0.5), row("unet", "fail", 12.0), row("vae", "pass", 0.1)]
    assert states(free, forced) == {"text": "fine", "unet": "to blame", "vae": "inherits"}


def test_several_may_be_to_blame_also_where_the_free_run_hides_it():
    free = [row(part, "pass", 0.9) for part in PARTS]
    forced = [row("text", "fail", 3.0), row("unet", "pass", 0.5), row("vae", "shape", 0.0)]
    assert states(free, forced) == {"text": "to blame", "unet": "fine", "vae": "to blame"}


def test_one_of_many_calls_is_enough_and_the_worst_is_shown():
    free = [row("unet", "fail", 2.0), row("unet", "fail", 5.0, "~1")]
    forced = [row("unet", "pass", 0.5), row("unet", "fail", 4.0, "~1")]
    (part,) = judge_parts(["unet"], free, forced)
    assert (part.state, part.calls) == ("to blame", 2)
    assert part.forced.record == "unet~1/forward.output.0"
    assert part.forced.error == pytest.approx(4e-3)


def test_an_operator_of_the_part_itself_is_not_its_output():
    (part,) = judge_parts(["unet"], [row("unet", "pass", 0.1)], [row("unet", "pass", 0.1), row("unet", "fail", 9.0, "", "add")])
    assert part.state == "fine"


@pytest.mark.parametrize(
    ("forced", "why"), [([], "none of its outputs was judged"), ([row("unet", "blind", 0.1)], "is blind: why")]
)
def test_what_is_not_known_is_not_fine(forced, why):
    (part,) = judge_parts(["unet"], [row("unet", "pass", 0.1)], forced)
    assert part.state == "unknown"
    assert why in part.why


def test_no_verdict_is_aligned_with_a_part_to_blame_or_unknown():
    fine = judge_parts(["unet"], [row("unet", "pass", 0.1)], [row("unet", "pass", 0.1)])
    blamed = judge_parts(["unet"], [row("unet", "pass", 0.1)], [row("unet", "fail", 3.0)])
    unknown = judge_parts(["unet"], [row("unet", "pass", 0.1)], [], "the tensors are missing")
    aligned = Verdict("aligned")
    assert hold_to_parts(aligned, fine) == aligned
    assert hold_to_parts(aligned, blamed) == Verdict("misaligned", ("unet exceeds its limit on the reference's inputs",))
    assert hold_to_parts(aligned, unknown).verdict == "inconclusive"
    assert "the tensors are missing" in hold_to_parts(aligned, unknown).reasons[0]
    worse = Verdict("misaligned", ("2 records fail",))
    assert hold_to_parts(worse, unknown) == worse


def test_parts_in_a_line_with_the_first_suspect_inside():
    free = [row("text", "pass", 0.5), row("unet", "fail", 20.0), row("vae", "fail", 9.0)]
    forced = [row("text", "pass", 0.5), row("unet", "fail", 12.0), row("vae", "pass", 0.1)]
    parts = judge_parts(PARTS, free, forced)
    assert describe_parts(parts) == "to blame: unet · inherit: vae · fine: text"
    suspects = [("unet2.up/conv.0/forward.output.0", "other"), ("unet.up/conv.0/forward.output.0", "up / conv")]
    assert [part.starts for part in name_starts(parts, suspects)] == ["", "up / conv", ""]
    assert replace(parts[0], starts="") == parts[0]


def test_a_part_whose_suspect_does_not_show_in_what_it_returns_is_wrong_inside():
    free = [row("text", "pass", 0.5), row("unet", "fail", 2.0), row("vae", "pass", 0.1)]
    forced = [row("text", "pass", 0.5), row("unet", "pass", 0.5), row("vae", "pass", 0.1)]
    suspects = [(f"{part}.norm/layer_norm.0/forward.output.0", f"{part}.norm / layer_norm") for part in ("text", "unet")]
    parts = name_starts(judge_parts(PARTS, free, forced), suspects)
    assert describe_parts(parts) == "wrong inside: text · inherit: unet · fine: vae"
    assert [part.starts for part in parts] == ["text.norm / layer_norm", "", ""]


def test_inputs_that_were_not_kept_are_named(tmp_path):
    class Dump:
        def calls(self):
            return [SimpleNamespace(module="vae_decoder")]

    said = write_inputs(tmp_path / "inputs.json", Dump(), ["unet"])
    assert said == "the reference has recorded no call of unet"
    assert write_inputs(tmp_path / "inputs.json", Dump(), ["vae_decodr"]).endswith("vae_decodr. Did you mean  vae_decoder ?")
    assert not (tmp_path / "inputs.json").exists()
