"""Stable Diffusion v1.5 beside its text encoder: UNet, both halves of the VAE and safety checker, and all five as a pipeline.

Every model is that of diffusers or transformers, in one of two sizes: ``full`` is the published configuration of
``runwayml/stable-diffusion-v1-5``, ``small`` has the same blocks, fewer and narrower, and runs in seconds on a CPU. Attention
is computed step by step, so that softmax and scores can be recorded.

The pipeline is the one from image to image, in which every part acts on the picture::

    prompts -> text_encoder -.
    picture -> vae_encoder -> start -> [unet -> guided_step] x steps -> vae_decoder -> picture -> safety_checker -> scores

Its glue (adding noise, guidance, the scheduler) stands in modules too: a device can get that wrong as well.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from torch.nn import functional

from precflow.agent.failures import AgentError
from precflow.agent.workloads import stable_diffusion
from precflow.agent.workloads import weights as checkpoints
from precflow.agent.workloads.extras import require

SEEDED = stable_diffusion.SEEDED
SMALL, FULL = SIZES = ("small", "full")
SCALE = 0.18215  # of latents
_LATENT = 4  # channels of a latent
_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}  # names in older checkpoints
_DERIVED = "position_ids"

_Configuration = Mapping[str, Any]
_Sizes = Mapping[str, _Configuration]

UNET: _Sizes = {
    FULL: {
        "sample_size": 64,
        "block_out_channels": (320, 640, 1280, 1280),
        "layers_per_block": 2,
        "down_block_types": (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D"),
        "up_block_types": ("UpBlock2D", *("CrossAttnUpBlock2D",) * 3),
        "cross_attention_dim": 768,
        "attention_head_dim": 8,  # the number of heads, whatever diffusers calls it
        "norm_num_groups": 32,
    },
    SMALL: {
        "sample_size": 8,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 64,
        "attention_head_dim": 4,
        "norm_num_groups": 8,
    },
}
VAE: _Sizes = {
    FULL: {
        "sample_size": 512,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "norm_num_groups": 32,
        "latent_channels": _LATENT,
        "scaling_factor": SCALE,
    },
    SMALL: {
        "sample_size": 32,
        "block_out_channels": (16, 32, 32),
        "layers_per_block": 1,
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "norm_num_groups": 8,
        "latent_channels": _LATENT,
        "scaling_factor": SCALE,
    },
}
VISION: _Sizes = {
    FULL: {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
    },
    SMALL: {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
}
TEXT: _Sizes = {
    FULL: stable_diffusion.CONFIGURATION,
    SMALL: {
        **stable_diffusion.CONFIGURATION,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": 64,
    },
}
_PROJECTED = {FULL: 768, SMALL: 32}  # width of the embedding of an image
SCHEDULER: _Configuration = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}


# Models


def text_encoder(weights: str = SEEDED, size: str = SMALL) -> torch.nn.Module:
    """Build the text encoder in either size; recipe `sd_text_encoder` has the full one of `stable_diffusion.text_encoder`.

    See :func:`unet` for the arguments and errors.
    """
    if _is_small(size) and weights == SEEDED:
        transformers = require("transformers")
        configuration = transformers.CLIPTextConfig(**TEXT[size])
        configuration._attn_implementation = "eager"  # noqa: SLF001  as in `stable_diffusion`
        model: torch.nn.Module = transformers.CLIPTextModel(configuration)
        checkpoints.fill_seeded(model)
        return model
    return stable_diffusion.text_encoder(weights)


def unet(weights: str = SEEDED, size: str = SMALL) -> torch.nn.Module:
    """Build the UNet, which predicts the noise in latents, on the CPU in float32.

    Args:
        weights: ``seeded``, a ``.safetensors`` file of this size, or a ``from_pretrained`` folder with its own.
        size: ``small`` or ``full``.

    Returns:
        ``UNet2DConditionModel`` of diffusers.

    Raises:
        AgentError: ``workload``: diffusers is missing, there is no such size, or the weights do not fit.
    """
    model = require("diffusers").UNet2DConditionModel(**_read_configuration(weights, UNET, size))
    finished: torch.nn.Module = _finish(model, weights)
    return finished


def vae_encoder(weights: str = SEEDED, size: str = SMALL) -> torch.nn.Module:
    """Build the half of the VAE that makes latents of pictures; see :func:`unet` for the arguments and errors."""
    return VaeEncoder(_build_vae(weights, size))


def vae_decoder(weights: str = SEEDED, size: str = SMALL) -> torch.nn.Module:
    """Build the half of the VAE that makes pictures of latents; see :func:`unet` for the arguments and errors."""
    return VaeDecoder(_build_vae(weights, size))


def safety_checker(weights: str = SEEDED, size: str = SMALL) -> torch.nn.Module:
    """Build what tells how near a picture is to concepts that are not to be shown; see :func:`unet` for the arguments."""
    module = require("diffusers.pipelines.stable_diffusion.safety_checker")
    transformers = require("transformers")
    given = _read_configuration(weights, {name: {"vision_config": VISION[name]} for name in SIZES}, size)
    width = int(given.get("projection_dim", _PROJECTED[size]))
    text = given.get("text_config") or {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}  # has no model
    configuration = transformers.CLIPConfig(vision_config=given["vision_config"], text_config=text, projection_dim=width)
    configuration._attn_implementation = "eager"  # noqa: SLF001  as in `stable_diffusion`
    return SafetyChecker(_finish(module.StableDiffusionSafetyChecker(configuration), weights))


def image_to_image(
    weights: str = SEEDED, size: str = SMALL, steps: int = 3, strength: float = 0.75, guidance: float = 7.5
) -> torch.nn.Module:
    """Build the whole pipeline with the DDIM scheduler of diffusers.

    Args:
        weights: ``seeded``, or the ``from_pretrained`` folder of a pipeline, with one folder for each part.
        size: ``small`` or ``full``.
        steps: Steps that the scheduler divides the noise into.
        strength: Share of these steps that is run, from 0 (the picture as it is) to 1 (nothing of it is left).
        guidance: Weight of the prompt.

    Raises:
        AgentError: As :func:`unet`, or a number of steps or a strength that leaves nothing to run.
    """
    if steps < 1 or not 0 < strength <= 1 or int(steps * strength) < 1:
        message = "image_to_image: steps=%r, strength=%r run no step; expected steps * strength of at least 1"
        raise AgentError("workload", message % (steps, strength))
    folders = dict.fromkeys(("text_encoder", "unet", "vae", "safety_checker", "scheduler"), weights)
    if weights != SEEDED:
        folders = {part: os.path.join(os.path.expanduser(weights), part) for part in folders}
    vae = _build_vae(folders["vae"], size)
    return Pipeline(
        text_encoder(folders["text_encoder"], size),
        VaeEncoder(vae),
        unet(folders["unet"], size),
        VaeDecoder(vae),
        safety_checker(folders["safety_checker"], size),
        require("diffusers").DDIMScheduler(**SCHEDULER),
        (steps, strength, guidance),
    )


class VaeEncoder(torch.nn.Module):
    """Makes latents of pictures: the mean of their distribution, so that nothing is drawn.

    Takes float pictures of shape ``[pictures, 3, height, width]`` from -1 to 1, and returns
    ``[pictures, 4, height / 8, width / 8]`` (``/ 4`` in the small size).
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.encoder, self.quant_conv = vae.encoder, vae.quant_conv

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return latents."""
        mean: torch.Tensor = self.quant_conv(self.encoder(images)).chunk(2, dim=1)[0]
        return mean


class VaeDecoder(torch.nn.Module):
    """Makes pictures with values from 0 to 1 of latents; shapes as in :class:`VaeEncoder`."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = vae.post_quant_conv, vae.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return pictures."""
        image: torch.Tensor = self.decoder(self.post_quant_conv(latents))
        return (image / 2 + 0.5).clamp(0, 1)


class SafetyChecker(torch.nn.Module):
    """Returns the cosines between pictures (values from 0 to 1) and concepts, of shape ``[pictures, concepts]``.

    diffusers' own compares them with thresholds and blackens pictures; a yes or no would hide what led to it.
    """

    def __init__(self, checker: Any) -> None:
        super().__init__()
        self.vision_model, self.visual_projection = checker.vision_model, checker.visual_projection
        self.concepts = torch.nn.Parameter(torch.cat([checker.special_care_embeds, checker.concept_embeds]).detach())
        self.side = int(checker.config.vision_config.image_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the cosines."""
        pixels = functional.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)
        embedded = self.visual_projection(self.vision_model(pixels * 2 - 1)[1])
        return functional.normalize(embedded) @ functional.normalize(self.concepts).T


class Start(torch.nn.Module):
    """Adds the scheduler's noise of a step to latents."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        self.scheduler = scheduler

    def forward(self, latents: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Return noisy latents; the time step is an int64 of shape ``[1]``."""
        noisy: torch.Tensor = self.scheduler.add_noise(latents * SCALE, noise, timestep)
        return noisy


class GuidedStep(torch.nn.Module):
    """Takes one step of the scheduler with the noise that was predicted without and with the prompt."""

    def __init__(self, scheduler: Any, guidance: float) -> None:
        super().__init__()
        self.scheduler, self.guidance = scheduler, guidance

    def forward(self, predicted: torch.Tensor, latents: torch.Tensor, timestep: int) -> torch.Tensor:
        """Return latents with less noise."""
        without, prompted = predicted.chunk(2)
        guided = without + self.guidance * (prompted - without)
        stepped: torch.Tensor = self.scheduler.step(guided, timestep, latents).prev_sample
        return stepped


class Pipeline(torch.nn.Module):
    """From prompts, a picture and noise to another picture and what the safety checker says of it.

    Args:
        text_encoder: See above, as for the other parts.
        vae_encoder: Part.
        unet: Part.
        vae_decoder: Part.
        safety_checker: Part.
        scheduler: Of diffusers.
        course: Steps, strength and guidance, as :func:`image_to_image` takes them.
    """

    def __init__(  # noqa: PLR0913, PLR0917  five models and what holds them together
        self,
        text_encoder: torch.nn.Module,
        vae_encoder: torch.nn.Module,
        unet: torch.nn.Module,
        vae_decoder: torch.nn.Module,
        safety_checker: torch.nn.Module,
        scheduler: Any,
        course: Tuple[int, float, float],
    ) -> None:
        super().__init__()
        steps, strength, guidance = course
        scheduler.set_timesteps(steps)
        self.timesteps: List[int] = [int(step) for step in scheduler.timesteps][steps - int(steps * strength) :]
        self.text_encoder, self.vae_encoder, self.unet = text_encoder, vae_encoder, unet
        self.start, self.guided_step = Start(scheduler), GuidedStep(scheduler, guidance)
        self.vae_decoder, self.safety_checker = vae_decoder, safety_checker

    def forward(self, input_ids: torch.Tensor, images: torch.Tensor, noise: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Return ``image``, of shape ``[pictures, 3, height, width]`` with values from 0 to 1, and ``safety``.

        Args:
            input_ids: Tokens, of shape ``[2 * pictures, 77]``: first those of the negative prompts.
            images: Pictures to begin with, values from -1 to 1.
            noise: Of the shape of their latents.
        """
        text = self.text_encoder(input_ids=input_ids).last_hidden_state
        steps = torch.tensor(self.timesteps, dtype=torch.int64).to(images.device)
        latents = self.start(self.vae_encoder(images), noise, steps[:1])
        for number, step in enumerate(self.timesteps):
            twice = torch.cat([latents, latents])
            # A tensor, as in diffusers' own pipeline: of a number the UNet makes an int32 on an NPU, and else an int64.
            predicted = self.unet(sample=twice, timestep=steps[number], encoder_hidden_states=text).sample
            latents = self.guided_step(predicted, latents, step)
        image = self.vae_decoder(latents / SCALE)
        return {"image": image, "safety": self.safety_checker(image)}


# Inputs


def noisy_latents(size: str = SMALL, samples: int = 2, timestep: int = 500) -> Dict[str, Any]:
    """Return seeded inputs of the UNet: ``sample``, ``timestep`` and ``encoder_hidden_states``.

    Args:
        size: Size of the model.
        samples: Number of latents.
        timestep: Of the 1000 that the noise is divided into.
    """
    _is_small(size)
    side, width = UNET[size]["sample_size"], UNET[size]["cross_attention_dim"]
    return {
        "sample": _draw("sample", samples, _LATENT, side, side),
        "timestep": torch.tensor(timestep, dtype=torch.int64),
        "encoder_hidden_states": _draw("text", samples, stable_diffusion.POSITIONS, width),
    }


def latents(size: str = SMALL, samples: int = 1) -> Dict[str, Any]:
    """Return seeded ``latents``, the inputs of the VAE's decoder."""
    return {"latents": _draw("latents", samples, _LATENT, *_latent_shape(size))}


def pictures(size: str = SMALL, samples: int = 1, model: str = "vae") -> Dict[str, Any]:
    """Return ``images``: colours that run from side to side, with some noise, as a model wants them.

    Args:
        size: Size of the model.
        samples: Number of pictures.
        model: ``vae`` takes values from -1 to 1, ``safety_checker`` those from 0 to 1.

    Raises:
        AgentError: ``workload``: another word.
    """
    if model not in ("vae", "safety_checker"):
        raise AgentError("workload", "pictures: model=%r; expected vae or safety_checker" % model)
    _is_small(size)
    side = VAE[size]["sample_size"]
    across = torch.linspace(0, 3.0, side).repeat(side, 1)
    waves = [torch.sin(across * (1 + channel) + across.T + number) for number in range(samples) for channel in range(3)]
    images = (torch.stack(waves).reshape(samples, 3, side, side) + 0.1 * _draw("images", samples, 3, side, side)).clamp(-1, 1)
    return {"images": images if model == "vae" else images / 2 + 0.5}


def prompted_pictures(token_ids: Sequence[Sequence[int]], size: str = SMALL) -> Dict[str, Any]:
    """Return the inputs of the pipeline: one picture for each prompt, the empty prompt as the negative one, and noise.

    Args:
        token_ids: One list for each prompt, as `stable_diffusion.prompts` takes them.
        size: Size of the models.
    """
    empty = [stable_diffusion.CONFIGURATION["bos_token_id"], stable_diffusion.END]
    both = [empty] * len(token_ids) + [list(row) for row in token_ids]
    return {
        **stable_diffusion.prompts(both),
        **pictures(size, len(token_ids)),
        "noise": _draw("noise", len(token_ids), _LATENT, *_latent_shape(size)),
    }


# What models and inputs are made of


def _is_small(size: str) -> bool:
    if size not in SIZES:
        raise AgentError("workload", "size=%r; expected one of %s" % (size, ", ".join(SIZES)))
    return size == SMALL


def _latent_shape(size: str) -> Tuple[int, int]:
    _is_small(size)
    side = VAE[size]["sample_size"] // 2 ** (len(VAE[size]["block_out_channels"]) - 1)
    return side, side


def _read_configuration(weights: str, sizes: _Sizes, size: str) -> Dict[str, Any]:
    """Return the configuration of a folder, else that of a size."""
    from precflow.agent import intake

    _is_small(size)
    path = os.path.join(os.path.expanduser(weights), "config.json")
    if weights == SEEDED or not os.path.isfile(path):
        return dict(sizes[size])
    try:
        found = intake.read_json(path)
    except (OSError, ValueError) as error:
        raise AgentError("workload", "%s cannot be read: %s" % (path, error)) from error
    if not isinstance(found, dict):
        raise AgentError("workload", "%s is not the configuration of a model" % path)
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _build_vae(weights: str, size: str) -> Any:
    diffusers = require("diffusers")
    return _finish(diffusers.AutoencoderKL(**_read_configuration(weights, VAE, size)), weights)


def _finish(model: Any, weights: str) -> Any:
    """Give a model of diffusers its weights, and attention that is computed step by step."""
    if hasattr(model, "set_attn_processor"):
        model.set_attn_processor(require("diffusers.models.attention_processor").AttnProcessor())
    if weights == SEEDED:
        checkpoints.fill_seeded(model)
        _fill_buffers(model)
    else:
        checkpoints.load(model, weights, ignored=(_DERIVED,), renamed=_OLD_ATTENTION)
    return model


def _fill_buffers(model: torch.nn.Module) -> None:
    """Draw the concepts of a safety checker: a new one has ones, which are all alike."""
    for name in ("concept_embeds", "special_care_embeds"):
        stored = getattr(model, name, None)
        if isinstance(stored, torch.Tensor):
            with torch.no_grad():
                stored.normal_(generator=checkpoints.make_generator(name))


def _draw(name: str, *shape: int) -> torch.Tensor:
    """Return normal numbers in float32 that depend on torch's seed and a name alone."""
    return torch.randn(*shape, generator=checkpoints.make_generator("input " + name), device="cpu")
