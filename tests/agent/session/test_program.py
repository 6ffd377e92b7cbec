"""Settings of argparse, Hydra, the Trainer and DeepSpeed are read, loaders described, and sources kept in bounded size."""

import argparse
import functools
import gc
import json

import pytest
import torch

from precflow.agent.session import program
from precflow.agent.session.program import digest_batch, find_loaders, find_settings, find_sources, name_loaders, write_sources

TOKEN = "hf_" + "a1B2c3D4e5F6g7H8i9J0"


def test_argparse_without_secrets_and_without_folders():
    given = argparse.Namespace(
        lr=0.1, betas=[0.9, 0.99], data="/home/ann/pile", api_key="abcdefgh12", model=torch.nn.Linear(1, 1)
    )
    found = find_settings([])
    assert found["argparse.lr"] == "0.1"
    assert found["argparse.betas"] == "0.9, 0.99"
    assert found["argparse.data"] == ".../pile"
    assert found["argparse.api_key"] == "(redacted)"
    assert "argparse.model" not in found
    hydra = argparse.Namespace(hydra_help=False, overrides=["lr=1"])
    assert "argparse.overrides" not in find_settings([])
    del hydra
    del given


def test_hydra_and_deepspeed(tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"model": {"layers": 4, "width": "${model.layers}"}, "seed": 1})
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2}}), encoding="utf-8")
    other = tmp_path / "data.json"
    other.write_text(json.dumps({"samples": 8}), encoding="utf-8")
    found = find_settings(["--deepspeed", str(file), str(other), "missing.json"])
    assert (found["hydra.model.width"], found["hydra.seed"]) == ("4", "1")
    assert (found["deepspeed.train_batch_size"], found["deepspeed.zero_optimization.stage"]) == ("8", "2")
    assert not any("samples" in name for name in found)
    del config


def test_the_trainer():
    transformers = pytest.importorskip("transformers")
    arguments = object.__new__(transformers.TrainingArguments)  # to make one asks for accelerate
    arguments.__dict__.update(learning_rate=5e-5, warmup_steps=10, _private=1)
    found = find_settings([])
    assert (found["trainer.learning_rate"], found["trainer.warmup_steps"]) == ("5e-05", "10")
    assert "trainer._private" not in found


def test_loaders_say_how_they_read():
    class Syllables(torch.utils.data.TensorDataset):  # what other tests leave has other names
        transform = "Lower()"

    words = Syllables(torch.arange(10))
    loaders = [
        torch.utils.data.DataLoader(words, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(7)),
        torch.utils.data.DataLoader(words, batch_size=5, drop_last=True, worker_init_fn=functools.partial(print, 1)),
    ]
    found = name_loaders([each for each in find_loaders() if each["dataset"] == "Syllables"])
    assert found["Syllables"]["shuffle"] == "True"
    assert (found["Syllables"]["generator_seed"], found["Syllables"]["transform"]) == ("7", "Lower()")
    assert (found["Syllables#2"]["sampler"], found["Syllables#2"]["drop_last"]) == ("SequentialSampler", "True")
    assert (found["Syllables"]["worker_init"], found["Syllables#2"]["worker_init"]) == ("None", "print")
    words.transform = object()
    assert next(each for each in find_loaders() if each["dataset"] == "Syllables")["transform"] == "<object object>"
    del loaders


@pytest.mark.parametrize("sizes", [(2, 5), (5, 2)])
@pytest.mark.parametrize("collects", [False, True])
def test_loaders_have_the_same_names_whenever_garbage_was_collected(sizes, collects):
    class Letters(torch.utils.data.TensorDataset):
        pass

    kept = []
    for size in sizes:
        kept.append(torch.utils.data.DataLoader(Letters(torch.arange(10)), batch_size=size))
        if collects:
            gc.collect()
    found = name_loaders([each for each in find_loaders() if each["dataset"] == "Letters"])
    assert [found[name]["batch_size"] for name in ("Letters", "Letters#2")] == ["2", "5"]
    del kept


def test_a_batch_is_known_by_its_whole_numbers():
    tokens, scale = {"content": "a", "dtype": "int64"}, {"content": "b", "dtype": "float32"}
    other = {"content": "c", "dtype": "float32"}
    assert digest_batch({"x": tokens, "y": scale}) == digest_batch({"x": tokens, "y": other})
    assert digest_batch({"y": scale}) != digest_batch({"y": other})


def test_sources_are_kept_in_bounded_size_and_without_secrets(tmp_path, monkeypatch):
    (tmp_path / "small.py").write_text(f"login('{TOKEN}')\n", encoding="utf-8")
    (tmp_path / "large.py").write_text("x = 1\n" * 100, encoding="utf-8")
    monkeypatch.setattr(program, "_LARGEST", 100)
    sources = {name: str(tmp_path / name) for name in ("small.py", "large.py", "gone.py")}
    digests = write_sources(str(tmp_path), sources)
    assert (digests["gone.py"], len(digests["large.py"]), len(digests["small.py"])) == ("", 32, 32)
    kept = json.loads((tmp_path / "sources.json").read_text(encoding="utf-8"))
    assert list(kept) == ["small.py"]
    assert TOKEN not in kept["small.py"]


def test_the_classes_of_a_model_and_the_users_folder_count_and_torch_does_not():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

    found = find_sources([Net()])
    assert [path for path in found.values() if path.endswith("test_program.py")]
    assert not any("torch/nn" in path for path in found.values())
