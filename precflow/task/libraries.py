"""Task metrics that other libraries compute: BLEU and chrF of texts (sacrebleu), the CLIP score of pictures (transformers).

Each is behind an extra and imported where it is used. What it reads is given by path, a tokenizer or a network; nothing is
downloaded.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precflow.config.schema import TaskMetric
from precflow.errors import ConfigError, MissingExtraError
from precflow.task.outputs import NotComputableError
from precflow.task.pictures import Picture

Tokens = Sequence[int]
ScoreTexts = Callable[[Tokens, Tokens], float]
ScorePictures = Callable[[Picture, Picture, int], tuple[float, float]]
_TOKENIZER = "tokenizer.json"
_ALIKE = 100.0  # BLEU and chrF of two texts that are the same


def load_texts(kind: str, metric: TaskMetric) -> ScoreTexts:
    """Return what scores the tokens that the target wrote against those of the reference, from 0 to 100.

    Args:
        kind: ``bleu`` (Papineni and others, 2002; of one text, so orders of which it has no words are left out) or ``chrf``
            (Popovic, 2015), as sacrebleu has them by default.
        metric: Its section: ``tokenizer`` makes words of tokens. Without one, the tokens are BLEU's words.

    Raises:
        MissingExtraError: sacrebleu or tokenizers is not installed.
        ConfigError: The file of the tokenizer is missing, or none.
    """
    library = _require("sacrebleu", "text")
    write = _load_tokenizer(metric.tokenizer) if metric.tokenizer else _write_numbers
    chosen = {"bleu": library.sentence_bleu, "chrf": library.sentence_chrf}[kind]
    options = {} if metric.tokenizer else {"tokenize": "none"}

    def score(reference: Tokens, target: Tokens) -> float:
        """Return the score of the target's text against the reference's."""
        here, there = write(reference), write(target)
        return _ALIKE if here == there else float(chosen(there, [here], **options).score)

    return score


def _write_numbers(tokens: Tokens) -> str:
    return " ".join(map(str, tokens))


def _load_tokenizer(given: str) -> Callable[[Tokens], str]:
    path = Path(given).expanduser()
    path = path / _TOKENIZER if path.is_dir() else path
    library = _require("tokenizers", "text")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more narrow
        expected = "a tokenizer.json, or a folder that has one"
        raise ConfigError(f"task_metrics: {path} is no tokenizer: {error}; expected {expected}") from error

    def write(tokens: Tokens) -> str:
        """Return tokens as text; those below 0 are padding."""
        return str(tokenizer.decode([token for token in tokens if token >= 0]))

    return write


def load_pictures(metric: TaskMetric) -> ScorePictures:
    """Return the CLIP score of both sides: 100 times the cosine between a picture and its prompt (Hessel and others, 2021).

    Args:
        metric: Its section: ``weights`` is a ``from_pretrained`` folder of CLIP with its processor, ``prompts`` has a text for
            each picture.

    Raises:
        MissingExtraError: transformers or Pillow is not installed.
        ConfigError: The folder has no CLIP.
    """
    folder = os.path.expanduser(metric.weights)  # noqa: PTH111  "~nobody" stays as it is, and is no folder
    if not Path(folder).is_dir():
        raise ConfigError(f"task_metrics: {folder} is no folder; expected one of CLIP, as from_pretrained reads it")
    torch, transformers, image = (
        importlib.import_module("torch"),
        _require("transformers", "clip"),
        _require("PIL.Image", "clip"),
    )
    try:
        model = transformers.CLIPModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        processor = transformers.CLIPProcessor.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever is wrong with the files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"task_metrics: no CLIP can be loaded from {folder}: {reason}") from error
    low, high = metric.range
    longest = int(model.config.text_config.max_position_embeddings)

    def embed(picture: Picture) -> Any:
        """Return the embedding of a picture, of length 1."""
        pixels = np.rint(np.clip((picture - low) / (high - low), 0, 1) * 255).astype(np.uint8)
        shown = image.fromarray(np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels)
        given = processor(images=[shown], return_tensors="pt")
        return _normalise(model.get_image_features(**given))

    def score(reference: Picture, target: Picture, sample: int) -> tuple[float, float]:
        """Return the scores of both sides' pictures against the prompt of this sample."""
        if sample >= len(metric.prompts):
            raise NotComputableError(f"there are {len(metric.prompts)} prompts, and none for picture {sample}")
        if reference.shape[2] not in {1, 3}:
            raise NotComputableError(f"a picture has {reference.shape[2]} channels, and CLIP takes 1 or 3")
        with torch.no_grad():
            given = processor(
                text=[metric.prompts[sample]], return_tensors="pt", padding=True, truncation=True, max_length=longest
            )
            text = _normalise(model.get_text_features(**given))
            here, there = (float(100 * (embed(side) * text).sum()) for side in (reference, target))
        return here, there

    return score


def _normalise(features: Any) -> Any:
    """Return features of length 1; transformers 5 has them inside of an output."""
    vector = getattr(features, "pooler_output", features)
    return vector / vector.norm(dim=-1, keepdim=True)


def _require(library: str, extra: str) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name or library).partition(".")[0], extra) from error
