import json
import sys

import pytest
import torch
from safetensors.torch import save_file

from precflow.agent.failures import AgentError
from precflow.agent.workloads import diffusion, weights

pytestmark = pytest.mark.xdist_group("diffusion")  # importing diffusers takes six seconds: in one process only

PARTS = {
    "unet": diffusion.noisy_latents,
    "vae_encoder": diffusion.pictures,
    "vae_decoder": diffusion.latents,
    "safety_checker": lambda: diffusion.pictures(model="safety_checker"),
}


def build(name, **arguments):
    torch.manual_seed(1234)
    return getattr(diffusion, name)(**arguments).eval()


def run(model, inputs):
    with torch.no_grad():
        found = model(**inputs)
    return found if isinstance(found, torch.Tensor) else found.sample


@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs_and_has_the_same_weights_again(name):
    model = build(name)
    found = run(model, PARTS[name]())
    assert torch.isfinite(found).all()
    assert float(found.std()) > 0.1  # neither vanishes nor is it all alike
    again = build(name).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())
    assert not any("scaled_dot_product" in type(getattr(module, "processor", None)).__name__ for module in model.modules())


def test_the_full_size_is_the_published_one(monkeypatch):
    monkeypatch.setattr(weights, "fill_seeded", lambda _: None)  # drawing 1.3 billion numbers takes a while
    monkeypatch.setattr(diffusion, "_fill_buffers", lambda _: None)
    with torch.device("meta"):
        found = {name: sum(each.numel() for each in build(name, size="full").parameters()) for name in PARTS}
    assert found["unet"] == 859_520_964
    assert found["vae_encoder"] + found["vae_decoder"] == 83_653_863
    assert found["safety_checker"] == 303_179_776 + 768 * 1024 + 20 * 768  # CLIP's ViT-L/14, projection, concepts


def test_attention_is_computed_step_by_step():
    names = {type(processor).__name__ for processor in build("unet").attn_processors.values()}
    assert names == {"AttnProcessor"}  # AttnProcessor2_0 hides scores and softmax in one call


def test_every_part_acts_on_what_the_pipeline_returns():
    model, inputs = build("image_to_image"), diffusion.prompted_pictures([[49406, 320, 8853, 49407]])
    with torch.no_grad():
        before = model(**inputs)
        assert before["image"].shape == (1, 3, 32, 32)
        assert before["safety"].shape == (1, 20)
        for part, changed in (
            ("text_encoder", "image"),
            ("vae_encoder", "image"),
            ("unet", "image"),
            ("vae_decoder", "image"),
            ("safety_checker", "safety"),
        ):
            handle = getattr(model, part).register_forward_hook(lambda _, __, output: _scale(output))
            after = model(**inputs)
            handle.remove()
            # A picture is clamped, and a cosine does not see a factor: a tenth is enough to see both.
            assert float((after[changed] - before[changed]).abs().max()) > 1e-3, part


def _scale(output):
    """Move the first tensor of an output by a tenth of itself."""
    for key in ("last_hidden_state", "sample"):
        if hasattr(output, key):
            output[key] = output[key] * 1.1
            return output
    return output * 1.1


@pytest.mark.parametrize(("steps", "strength"), [(0, 0.5), (3, 0.0), (3, 1.5), (2, 0.4)])
def test_a_pipeline_without_a_step_is_refused(steps, strength):
    with pytest.raises(AgentError, match="run no step"):
        diffusion.image_to_image(steps=steps, strength=strength)


def test_weights_of_an_older_checkpoint(tmp_path):
    expected = build("vae_decoder").state_dict()
    torch.manual_seed(1234)
    whole = diffusion._build_vae("seeded", "small").state_dict()
    old = {new: before for before, new in diffusion._OLD_ATTENTION.items()}

    def rename(key):
        for new, before in old.items():
            key = key.replace(f".{new}.", f".{before}.") if "attentions" in key else key
        return key

    save_file({rename(key): value for key, value in whole.items()}, tmp_path / "diffusion_pytorch_model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**diffusion.VAE["small"], "_class_name": "AutoencoderKL"}))
    torch.manual_seed(1)
    found = diffusion.vae_decoder(weights=str(tmp_path)).state_dict()
    assert any("to_q" in key for key in found)
    assert all(torch.equal(value, found[key]) for key, value in expected.items())


def test_unknown_sizes_and_missing_libraries_are_named(monkeypatch):
    with pytest.raises(AgentError, match="size='huge'; expected one of small, full"):
        diffusion.unet(size="huge")
    with pytest.raises(AgentError, match="model='unet'; expected vae or safety_checker"):
        diffusion.pictures(model="unet")
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(AgentError, match="diffusers is not installed") as caught:
        diffusion.unet()
    assert "precflow[models]" in caught.value.next_step


def test_pictures_of_the_vae_are_centred_and_those_of_the_checker_are_not():
    assert float(diffusion.pictures()["images"].min()) < -0.5
    assert float(diffusion.pictures(model="safety_checker")["images"].min()) >= 0


def test_seeded_weights_do_not_depend_on_the_order_of_the_parameters():
    class Model(torch.nn.Module):
        def __init__(self, *names):
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Linear(50, 40))

    torch.manual_seed(3)
    one, other = Model("a", "b"), Model("b", "a")
    torch.manual_seed(3)
    weights.fill_seeded(one)
    weights.fill_seeded(other)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())
    assert float(one.a.weight.detach().std()) == pytest.approx(50**-0.5, rel=0.1)
    assert 0.0 < float(one.a.bias.detach().abs().mean()) < 0.1
