"""A job gives its sides; a stage knows its kind."""

from precflow.stages.job import Made, Stage


def test_sides_by_name(pair, job_of):
    job = job_of(pair())
    assert job.side("target").dump.endswith("target")


def test_kind_is_the_name_without_its_side():
    stage = Stage(name="dump.target", needs=(), declare=lambda _: {}, make=lambda *_: Made())
    assert stage.kind == "dump"
