from precflow.agent.devices import cpu


def test_the_processor_has_a_name():
    found = cpu.Cpu().facts()
    assert found.description
    assert found.switches["threads"].isdigit()
    assert found.versions["instructions"]


def test_without_proc_the_machine_is_named(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", absent)
    assert cpu.Cpu().facts().description
