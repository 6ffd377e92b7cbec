"""Two stages at once: where that may be, what is shown, and what becomes of the second if the first fails."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from precflow.config.composition import compose
from precflow.errors import SideError
from precflow.run import at_once
from precflow.run.at_once import Beside, free_memory, may_follow
from precflow.run.jobs import make_job
from precflow.run.steps import Step
from precflow.sides.launch import Agents
from precflow.stages import dump, environment, noise

MUCH = 1 << 40


def meminfo(tmp_path, available="16000000 kB", limit=None, used="0"):
    memory, group = tmp_path / "meminfo", tmp_path / "group"
    memory.write_text(f"MemTotal:       32000000 kB\nMemAvailable:   {available}\n")
    if limit is not None:
        group.mkdir()
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
    return memory, group


def test_free_memory_is_that_of_the_machine_or_of_the_container(tmp_path):
    assert free_memory(*meminfo(tmp_path)) == 16_000_000 * 1024
    assert free_memory(*meminfo(tmp_path, limit="max")) == 16_000_000 * 1024
    (tmp_path / "group" / "memory.max").write_text("5000\n")
    (tmp_path / "group" / "memory.current").write_text("2000\n")
    assert free_memory(*meminfo(tmp_path)) == 3000


@pytest.mark.parametrize("text", ["", "MemTotal: 3 kB\n", "MemAvailable: much kB\n", "no colon\n", "MemAvailable:\n"])
def test_a_system_that_does_not_say_has_no_free_memory(tmp_path, text):
    (tmp_path / "meminfo").write_text(text)
    assert free_memory(tmp_path / "meminfo", tmp_path) == 0
    assert free_memory(tmp_path / "missing", tmp_path) == 0


class Run:
    """Environments of both sides and a reference's dump, as ``may_follow`` reads them."""

    def __init__(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        self.kinds = {"environment.reference": "cpu", "environment.target": "emulated"}
        self.elements, self.free = 1000, MUCH
        self.uploaded = ()
        self.second = Step(noise.STAGE.instance("reference", ("environment.reference", "dump.reference")), "run", "key")
        self.section, self.changes = "", {}
        monkeypatch.setattr(at_once, "_find_kind", lambda folder: self.kinds[folder])
        monkeypatch.setattr(at_once, "free_memory", lambda: self.free)
        monkeypatch.setattr(at_once, "open_dump", lambda folder: self._dump())

    def _dump(self):
        entries = {"weight": SimpleNamespace(shape=(self.elements, 2), dtype="bfloat16")}
        return SimpleNamespace(header=SimpleNamespace(weights=SimpleNamespace(entries=entries)))

    def may(self, first="dump.target"):
        job = make_job(compose(["+recipe=sd_text_encoder"]), command="")
        if self.section:
            section = replace(getattr(job.config, self.section), **self.changes)
            job = replace(job, config=replace(job.config, **{self.section: section}))
        names = ("environment.reference", "environment.target", "dump.reference")
        done = {name: SimpleNamespace(folder=name, upload=name in self.uploaded) for name in names}
        side = first.partition(".")[2]
        return may_follow(
            Step((environment if first.startswith("env") else dump).STAGE.instance(side), "run", "key"), self.second, job, done
        )


@pytest.fixture
def planned(monkeypatch, tmp_path):
    return Run(monkeypatch, tmp_path)


def test_the_floor_is_measured_while_the_target_is_recorded(planned):
    assert planned.may()


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("target", {"launcher": ("srun",)}),
        ("reference", {"launcher": ("srun",)}),
        ("target", {"ranks": 2}),
        ("target", {"dump": "there"}),
        ("workload", {"script": "train.py"}),
    ],
)
def test_not_where_the_sides_may_share_more_than_the_host(planned, section, changes):
    planned.section, planned.changes = section, changes
    assert not planned.may()


def test_not_on_the_same_kind_of_device(planned):
    planned.kinds["environment.target"] = "cpu"
    assert not planned.may()


def test_not_without_memory_for_both(planned):
    weights = planned.elements * 2 * 2
    planned.free = (2 << 30) + 8 * weights
    assert planned.may()
    planned.free -= 1
    assert not planned.may()


def test_not_what_is_kept_or_waits_or_is_to_be_downloaded(planned):
    planned.uploaded = ("dump.reference",)
    assert not planned.may()
    planned.uploaded = ()
    for second in (replace(planned.second, state="kept"), replace(planned.second, key="")):
        planned.second = second
        assert not planned.may()


def test_not_beside_the_reference(planned):
    assert not planned.may(first="dump.reference")


def test_the_environments_of_both_sides_are_read_at_once_unless_a_launcher_starts_them(planned):
    planned.free, planned.kinds = 0, {}
    planned.second = Step(environment.STAGE.instance("target"), "run", "key")
    assert planned.may(first="environment.reference")
    planned.section, planned.changes = "reference", {"launcher": ("srun",)}
    assert not planned.may(first="environment.reference")


def test_what_the_second_says_is_shown_once_it_is_waited_for(monkeypatch):
    monkeypatch.setattr(at_once, "replace", lambda job, **changes: SimpleNamespace(**{**vars(job), **changes}))
    shown, go_on, said_early = [], threading.Event(), threading.Event()

    def make(quiet):
        quiet.say("early")
        quiet.advance(1, 2, "steps")
        said_early.set()
        go_on.wait(10)
        quiet.say("late")
        return "sealed"

    with Beside(Agents()) as beside:
        step = Step(noise.STAGE.instance("reference", ("environment.reference", "dump.reference")), "run", "key")
        beside.begin(step, SimpleNamespace(say=shown.append, advance=lambda *_: shown.append("bar")), make)
        assert said_early.wait(10)
        assert (beside.find(noise.NAME), beside.find("compare")) == (step, None)
        threading.Timer(0.2, go_on.set).start()
        assert beside.take() == "sealed"
    assert shown == ["late"]


def test_if_the_first_fails_the_agent_of_the_second_is_ended(monkeypatch):
    monkeypatch.setattr(at_once, "replace", lambda job, **_: job)
    agents, ended = Agents(), threading.Event()
    monkeypatch.setattr(agents, "end_busy", ended.set)
    with pytest.raises(SideError, match="the target failed"), Beside(agents) as beside:
        beside.begin(
            Step(noise.STAGE.instance("reference", ("environment.reference", "dump.reference")), "run", "key"),
            SimpleNamespace(say=print, advance=print),
            lambda _: ended.wait(10),
        )
        raise SideError("the target failed")
    assert ended.is_set()


def test_if_the_first_fails_the_second_stops_where_it_says_how_far_it_is(monkeypatch):
    """A comparison runs in this process, where no agent can be ended."""
    monkeypatch.setattr(at_once, "replace", lambda job, **changes: SimpleNamespace(**{**vars(job), **changes}))
    steps, first_failed = [], threading.Event()

    def make(quiet):
        first_failed.wait(10)
        for number in range(1000):
            steps.append(number)
            quiet.advance(number, 1000, "tensors")

    agents = Agents()
    monkeypatch.setattr(agents, "end_busy", first_failed.set)
    with pytest.raises(SideError), Beside(agents) as beside:
        beside.begin(
            Step(noise.STAGE.instance("reference", ("environment.reference", "dump.reference")), "run", "key"),
            SimpleNamespace(say=print, advance=print),
            make,
        )
        raise SideError("the target failed")
    assert steps == [0]
