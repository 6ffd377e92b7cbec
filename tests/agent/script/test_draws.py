"""Random numbers that a script draws on a device: listed with file and line, moved if that is asked, and mended by a patch."""

import subprocess

import pytest

SCRIPT = """
import torch
device = torch.device("npu" if hasattr(torch, "npu") else "cpu")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    clean = torch.randn(8, 4).to(device)
    noise = torch.randn_like(clean)
    times = torch.randint(0, 9, (8,), device=device)
    loss = (model(clean + noise) * times[:, None]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


def losses(seen):
    return [float(line.split()[1]) for line in seen.printed.splitlines()]


def test_draws_on_a_device_are_listed_and_the_patch_makes_the_sides_alike(script, watch, tmp_path):
    path = script(SCRIPT)
    reference, apart = watch(path, folder="reference"), watch(path, device="emulated", folder="apart")
    assert (reference.code, apart.code) == (0, 0), (reference.error, apart.error, apart.printed)
    assert reference.dump.header.draws == ()
    assert not (reference.folder / "draws.patch").exists()
    sites = apart.dump.header.sites
    drawn = [(draw["operator"], sites[draw["site"]], draw["device"], draw["moved"]) for draw in apart.dump.header.draws]
    assert drawn == [
        ("randn_like", "train.py:9 in <module>", "npu", False),
        ("randint", "train.py:10 in <module>", "npu", False),
    ]
    assert max(abs(one - other) for one, other in zip(losses(reference), losses(apart), strict=True)) > 0.1
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "apart/draws.patch"], cwd=tmp_path, check=True)
    mended = [watch(path, device=device, folder=f"mended-{device}") for device in ("cpu", "emulated")]
    assert losses(mended[0]) == pytest.approx(losses(mended[1]), rel=1e-5)
    assert [seen.dump.header.draws for seen in mended] == [(), ()]


def test_draws_are_moved_to_the_cpu_in_every_step(script, watch):
    path = script(SCRIPT)
    reference, moved = (
        watch(path, device=device, folder=device, determinism={"random_numbers": "cpu"}, capture={"step": [1]})
        for device in ("cpu", "emulated")
    )
    assert moved.code == 0, moved.printed
    assert losses(moved) == pytest.approx(losses(reference), rel=1e-5)
    assert {draw["moved"] for draw in moved.dump.header.draws} == {True}


@pytest.mark.parametrize(("module", "acts"), [("1", True), ("7", False)])
def test_a_fault_of_one_module_is_emulated_in_a_script_or_refused(script, watch, module, acts):
    text = SCRIPT.replace("torch.nn.Linear(4, 4)", "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))")
    path = script(
        text.replace("noise = torch.randn_like(clean)", "noise = 0").replace(
            "torch.randint(0, 9, (8,), device=device)", "torch.ones(8, device=device)"
        )
    )
    rule = {"operator": "addmm", "rule": "scale", "factor": 2.0, "module": module}
    plain, faulty = watch(path, device="emulated"), watch(path, device="emulated", emulate=[rule], folder="faulty")
    assert plain.code == 0, plain.error
    assert (faulty.code == 0) == acts, faulty.error
    if acts:
        assert losses(faulty)[0] == pytest.approx(4 * losses(plain)[0], rel=1e-4)
    else:
        assert "none of that name; it has 1, 0" in faulty.error["message"]
        assert faulty.error["next_step"] == "choose one:  emulate.rules.0.module=1"
        assert len(losses(faulty)) == 1, "the script does not go on after its first step"


def test_a_fault_that_draws_weights_anew_is_refused_before_a_script_runs(script, watch):
    seen = watch(script(SCRIPT), device="emulated", emulate=[{"rule": "redraw", "parameter": "weight"}])
    assert seen.code == 2
    assert seen.error["message"] == "the emulated fault planted draws weight anew, and a script makes its own weights"
    assert not losses(seen)


def test_a_script_that_stays_on_the_cpu_says_nothing_of_the_device(script, watch):
    """It falls back to the CPU where it finds no CUDA, and everything would be aligned."""
    seen = watch(script(SCRIPT.replace('hasattr(torch, "npu")', "torch.cuda.is_available()")), device="emulated")
    assert seen.code == 2, seen.log
    assert "train.py computed on cpu, and the device of the target is npu" in seen.error["message"]
    assert "arguments.device=npu" in seen.error["next_step"]
