"""The tests of the emulated device run in a process of their own: installing it changes a process for good.

``pytest tests/agent/emulated`` (or any file below) installs the device and runs the tests right here. In a wider run, such as
``pytest tests``, only ``test_own_process.py`` is kept: it runs the above in one fork and passes if that passes.
No test is lost either way, and no other test ever sees an ``npu`` device.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
STARTER = "test_own_process.py"


def pytest_collection_modifyitems(config, items):
    """Keep either the starter or what it starts, whichever fits this process."""
    own, kept, dropped = _is_own_process(config), [], []
    for item in items:
        here = item.path.is_relative_to(HERE)
        if here:
            item.add_marker(pytest.mark.npu)
        (dropped if here and (item.path.name == STARTER) == own else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _is_own_process(config):
    asked = [Path(argument.split("::")[0]) for argument in config.args]
    paths = [(path if path.is_absolute() else config.invocation_params.dir / path).resolve() for path in asked]
    return all(path == HERE or HERE in path.parents for path in paths)


@pytest.fixture(scope="session")
def npu():
    """Install the emulated device into this process and return ``torch.npu``."""
    import torch

    from precflow.agent import emulated

    torch.set_num_threads(1)
    return emulated.install()


@pytest.fixture
def rules(npu):
    """Return the rules of the emulated device; exact again afterwards."""
    from precflow.agent.emulated import rules

    yield rules
    rules.configure([])


@pytest.fixture(scope="session")
def clip():
    """Return a function that builds a small CLIP text encoder with eager attention, always with the same weights."""
    import torch
    import transformers

    def build(layers=2, width=32):
        configuration = transformers.CLIPTextConfig(
            vocab_size=100,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=16,
            hidden_act="quick_gelu",
            bos_token_id=97,
            eos_token_id=98,
            pad_token_id=98,
            attn_implementation="eager",
        )
        torch.manual_seed(3)
        return transformers.CLIPTextModel(configuration).eval()

    return build


@pytest.fixture(scope="session")
def tokens():
    """Return token ids, int64 of shape [2, 12]."""
    import torch

    return torch.randint(0, 97, (2, 12), generator=torch.default_generator.clone_state())
