"""The line about a side."""

from precflow.stages.environment import STAGE, describe


def test_a_side_in_one_line():
    facts = {
        "device": {"kind": "npu", "description": "910B3"},
        "torch": {"version": "2.6.0"},
        "python": {"version": "3.10.14"},
    }
    assert describe(facts) == "npu: 910B3, torch 2.6.0, Python 3.10.14"


def test_the_key_holds_device_and_machine_and_no_path(tmp_path, monkeypatch):
    from precflow.config.composition import compose
    from precflow.run.jobs import make_job

    monkeypatch.chdir(tmp_path)
    declared = STAGE.declare("target", make_job(compose(["+recipe=sd_text_encoder"]), command=""))
    assert declared["device"] == ["npu", "emulated"]
    assert str(tmp_path) not in str(declared)


def test_a_set_up_file_is_in_the_key_by_name_and_content_and_by_its_absence(tmp_path, monkeypatch):
    from precflow.config.composition import compose
    from precflow.run.jobs import make_job

    monkeypatch.chdir(tmp_path)

    def declared(*files):
        words = [f"target.setup=[{','.join(str(tmp_path / file) for file in files)}]"] if files else []
        return STAGE.declare("target", make_job(compose(["+recipe=sd_text_encoder", *words], complete=False), command=""))

    found = [declared(), declared("set_env.sh")]
    for content in ("export A=1", "export A=2"):
        (tmp_path / "set_env.sh").write_text(content)
        found.append(declared("set_env.sh"))
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
    assert str(tmp_path) not in str(found)
