"""The benchmark of parts: its faults are such as a recipe may plant, and its table counts what is right."""

from benchmarks.parts import CLEAN, DTYPES, FAULTS, Case, plan, render
from precflow.config.signatures import check_fault_rules


def test_every_fault_is_one_that_a_recipe_may_plant():
    assert list(check_fault_rules([{**fault.rule, "module": fault.module or fault.place} for fault in FAULTS])) == []
    assert {fault.part for fault in FAULTS} == {"text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker"}
    planned = list(plan("", DTYPES))
    assert (
        len({case[:3] for case in planned})
        == len(planned)
        == sum(len(dtypes) for dtypes in (*CLEAN.values(), *(fault.dtypes for fault in FAULTS)))
    )
    assert {fault.part for *_, fault in plan("unet", ["float16"])} == {"unet"}


def test_the_table_counts_what_is_right():
    found = Case(
        "coarse SiLU", "unet.mid", "float32", "misaligned", ("unet",), (), "unet.mid / silu", "unet.mid unfused", right=True
    )
    hidden = Case("coarse SiLU", "unet.mid", "float16", "misaligned", (), ("unet",), "unet.mid / silu", "", right=True)
    missed = Case("mask left out", "unet.mid", "float16", "aligned", (), (), "", "", right=False)
    page = render([found, hidden, missed, Case("exact", "", "float32", "aligned", (), (), "", "", right=True)])
    assert "2 of 3 right, of which 1 are wrong inside" in page
    assert "no part to blame: 1 of 1" in page
    assert "| unet (wrong inside) |" in page
    assert "| none | `` | nothing | **no** |" in page
