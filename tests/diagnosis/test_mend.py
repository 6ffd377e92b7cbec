"""Which sets are tried, how a set is narrowed, and what a line says of it."""

from dataclasses import replace

from precflow.diagnosis.chain import PartError
from precflow.diagnosis.mend import MOST_RUNS, Mend, Raised, describe_mends, list_inside, list_sets, list_ways, narrow_part
from precflow.diagnosis.price import Price
from precflow.task.outcome import TaskValue

MODULES = ["", "unet", "unet.down", "unet.down.norm", "unet.down.conv", "unet.up", "unet.up.a", "unet.up.b", "vae"]


def narrowed(needed, suspects=(), modules=MODULES):
    """Return what a part is narrowed to if these modules, or some around them, have to be raised, and how many were tried."""
    tried = []

    def mends(asked):
        tried.extend(asked)
        return [all(any(f"{one}.".startswith(f"{name}.") for name in names) for one in needed) for names in asked]

    return narrow_part("unet", suspects, modules, mends), len(tried)


def test_each_part_is_tried_in_each_way_and_all_of_them_together():
    assert list_ways("float16") == ("float32", "unfused", "cpu")
    assert list_ways("float32")[0] == "float64"
    assert list_sets(["a"], ["cpu"]) == [(Raised("cpu", ("a",)),)]
    assert list_sets(["a", "b"], ["cpu"])[-1] == (Raised("cpu", ("a", "b")),)


def test_suspects_inside_are_tried_first_alone_and_together():
    assert list_inside("unet", ["vae.a", "unet.up.a", "unet2.a", "unet.up.b", "unet.up.a"]) == [
        ["unet.up.a"],
        ["unet.up.b"],
        ["unet.up.a", "unet.up.b"],
    ]
    assert narrowed(["unet.up.b"], ["unet.up.a", "unet.up.b"])[0] == ("unet.up.b",)
    assert narrowed(["unet.up.b", "unet.down.conv"], ["unet.down.conv", "unet.up.a", "unet.up.b"])[0] == (
        "unet.down.conv",
        "unet.up.b",
    )


def test_without_a_suspect_that_is_enough_it_goes_down_level_by_level():
    assert narrowed(["unet.down.norm"], ["unet.up.a"])[0] == ("unet.down.norm",)
    assert narrowed(["unet.down.norm", "unet.up.b"])[0] == ("unet.down.norm", "unet.up.b")


def test_a_part_that_nothing_inside_mends_stays_whole():
    assert narrowed(["unet"]) == (("unet",), 1)


def test_the_number_of_runs_is_bounded():
    many = ["unet", *(f"unet.{number}" for number in range(200))]
    kept, tried = narrowed([f"unet.{number}" for number in range(0, 200, 2)], modules=many)
    assert tried <= MOST_RUNS + 1
    assert set(kept) >= {f"unet.{number}" for number in range(0, 200, 2)}


def row(title, outcome, error, *, smallest=False, way="cpu"):
    end = PartError("(model)/forward.output.image", "relative_l2", error, 1e-3, error * 1e3)
    raised = (Raised(way, ("unet",)),) if way else ()
    return Mend(title, raised, outcome, end, "", Price(0.5, 1.3, 1.25, 1.4, 5), smallest)


def test_a_line_has_the_smallest_set_and_its_price_or_what_was_tried_in_vain():
    today, tried = row("as it is", "fails", 0.02, way=""), row("unet on the CPU", "fails", 0.01)
    assert describe_mends([]) == describe_mends([today]) == ""
    assert describe_mends([today, tried]) == "nothing that was tried passes: unet on the CPU"
    assert describe_mends([today, tried, row("unet in float32", "passes", 1e-4, smallest=True, way="float32")]) == (
        "unet in float32 passes, in 1.30 times the time (1.25 to 1.40): 20 -> 0.1 times its limit"
    )
    before, after = (replace(one, task=(TaskValue("psnr", shown, "within"),)) for one, shown in ((today, "41 dB"), (tried, "")))
    after = replace(after, smallest=True, raised=(Raised("unfused", ("a", "b", "c")),), end=None)
    assert describe_mends([before, after]) == (
        "a and 2 more unfused passes, in 1.30 times the time (1.25 to 1.40): psnr 41 dB -> not computed"
    )
