"""What program a side ran: its imported sources, its settings, and how it reads its data.

Digests, settings and loaders are facts of the side, which are laid side by side. The sources themselves lie beside the dump,
in bounded size and without secrets, so that two sides whose sources differ can be shown line by line.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import sys
from contextlib import suppress
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Sequence, Tuple

import torch

from precflow.agent import intake, redaction
from precflow.agent.contract import DIGEST_SIZE, SOURCES_FILE
from precflow.agent.session.user_code import is_user_code

MOST_STEPS = 64  # whose batches are digested
_MOST_FILES, _LARGEST, _ALL = 200, 256_000, 2_000_000  # sources that are kept: how many, bytes of one, bytes of all
_MOST_SETTINGS, _LONGEST = 400, 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object in memory, which differs from run to run
_PLAIN = (str, int, float, bool, type(None))
_SEPARATORS = ("site-packages" + os.sep, "dist-packages" + os.sep)
# Keys of which a JSON file among the arguments has some if it configures DeepSpeed.
_DEEPSPEED = frozenset(("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"))


def find_sources(models: Iterable[torch.nn.Module], folders: Sequence[str] = ()) -> Dict[str, str]:
    """Return name -> path of the imported sources that the classes of models come from, without those of torch.

    Of an installed package the name begins with that of the package: ``transformers/models/clip/modeling_clip.py``.

    Args:
        models: The models.
        folders: All sources that were imported from below these are the user's, and belong to them.
    """
    roots = tuple(os.path.abspath(folder) + os.sep for folder in folders)
    names = {type(module).__module__ for model in models for module in model.modules()}
    sources: Dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        is_installed = _SEPARATORS[0] in path or _SEPARATORS[1] in path
        is_own = not is_installed and os.path.abspath(path).startswith(roots)  # nothing starts with one of no roots
        if (name in names or is_own) and is_user_code(path) and os.path.isfile(path):
            sources[_name_source(path)] = path
    return sources


def _name_source(path: str) -> str:
    path = os.path.abspath(path)
    for separator in _SEPARATORS:
        if separator in path:
            return path.rpartition(separator)[2].replace(os.sep, "/")
    below = os.path.relpath(path)
    return os.path.basename(path) if below.startswith("..") else below.replace(os.sep, "/")


def write_sources(folder: str, sources: Mapping[str, str]) -> Dict[str, str]:
    """Write the texts of sources beside a dump; return name -> digest of each, ``""`` if it cannot be read any more.

    Args:
        folder: Folder of the dump.
        sources: Name -> path.

    Raises:
        OSError: They cannot be written.
    """
    digests: Dict[str, str] = {}
    texts: Dict[str, str] = {}
    room = _ALL
    for name, path in sorted(sources.items())[:_MOST_FILES]:
        digests[name] = ""
        with suppress(OSError, ValueError):
            data = intake.read_bytes(path, 1 << 26)
            digests[name] = hashlib.blake2b(data, digest_size=DIGEST_SIZE).hexdigest()
            if len(data) <= min(_LARGEST, room):
                room -= len(data)
                texts[name] = _redact_source(data)
    with open(os.path.join(folder, SOURCES_FILE), "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(texts, file, ensure_ascii=False, indent=1)
    return digests


def _redact_source(data: bytes) -> str:
    """Return a source without its secrets; one that many dumps of a process carry is searched once."""
    key = (hashlib.blake2b(data, digest_size=DIGEST_SIZE).hexdigest(), redaction.learnt())
    if key not in _redacted:
        if sum(map(len, _redacted.values())) > _ALL:
            _redacted.clear()
        _redacted[key] = redaction.redact_text(data.decode("utf-8", "replace"))
    return _redacted[key]


_redacted: Dict[Tuple[str, FrozenSet[str]], str] = {}  # of a digest, and the secrets that were known


def find_settings(words: Sequence[str]) -> Dict[str, Any]:
    """Return the settings of a script that runs: those of argparse, Hydra, the Trainer and DeepSpeed, flat, without secrets.

    Args:
        words: Its command line, which may name a configuration of DeepSpeed.
    """
    settings: Dict[str, Any] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind.__name__ == "Namespace" and kind.__module__ == "argparse":
            if "hydra_help" in vars(each):  # Hydra's own command line, whose settings are in its configuration
                continue
            settings.update(_flatten(vars(each), "argparse"))
        elif kind.__name__ == "DictConfig" and kind.__module__.startswith("omegaconf"):
            with suppress(Exception):  # one that is not complete
                if each._get_parent() is None:  # noqa: SLF001  a node of another one is in that
                    settings.update(_flatten(sys.modules["omegaconf"].OmegaConf.to_container(each, resolve=True), "hydra"))
        elif any(base.__name__ == "TrainingArguments" and base.__module__.startswith("transformers") for base in kind.__mro__):
            with suppress(Exception):
                settings.update(_flatten({name: value for name, value in vars(each).items() if name[:1] != "_"}, "trainer"))
    for word in words:
        if word.endswith(".json") and os.path.isfile(word):
            with suppress(OSError, ValueError):
                config = intake.read_json(word)
                if isinstance(config, dict) and _DEEPSPEED & set(config):
                    settings.update(_flatten(config, "deepspeed"))
    return dict(sorted(settings.items())[:_MOST_SETTINGS])


def _flatten(value: Any, name: str) -> Iterator[Tuple[str, str]]:
    """Yield settings by dotted name, as text; what is no plain value is left out."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flatten(each, "%s.%s" % (name, key))
    elif isinstance(value, (list, tuple)) and all(isinstance(each, _PLAIN) for each in value):
        yield name, ", ".join(_show(each, name) for each in value)[:_LONGEST]
    elif isinstance(value, _PLAIN):
        yield name, _show(value, name)


def _show(value: Any, name: str) -> str:
    """Return a setting as text; of a path only its last part: folders are facts of a machine."""
    text = str(value)
    if isinstance(value, str) and text.startswith(("/", "~")):
        text = ".../" + text.rstrip("/").rpartition("/")[2]
    return str(redaction.redact(text, name=name))[:_LONGEST]


def find_loaders() -> List[Dict[str, str]]:
    """Return how each data loader that is alive reads its data.

    They are in order of what they say: the order of the garbage collector depends on when it ran, on either side.
    """
    loaders = []
    for each in gc.get_objects():
        if issubclass(type(each), torch.utils.data.DataLoader):
            with suppress(Exception):  # a class of the user's own may have left out what ours has
                loaders.append(_describe_loader(each))
    return sorted(loaders, key=lambda each: sorted(each.items()))


def name_loaders(loaders: Sequence[Dict[str, str]]) -> Dict[str, Dict[str, str]]:
    """Return loaders by the name of their dataset, with a number from the second one of a name on."""
    named: Dict[str, Dict[str, str]] = {}
    for each in loaders:
        number = sum(name.partition("#")[0] == each["dataset"] for name in named)
        named[each["dataset"] + ("#%d" % (number + 1) if number else "")] = each
    return named


def digest_batch(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a digest of what a model was given: of its whole numbers, or of all of it if there are none.

    Floating inputs may be computed on the device, where they differ by rounding.

    Args:
        entries: Of ``workload_model.hash_inputs``.
    """
    whole = {name: entry for name, entry in entries.items() if "float" not in str(entry.get("dtype"))} or entries
    text = json.dumps({name.rpartition(".")[2]: str(entry.get("content")) for name, entry in whole.items()}, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()


def _describe_loader(loader: Any) -> Dict[str, str]:
    dataset, sampler = loader.dataset, loader.sampler
    facts = {
        "dataset": type(dataset).__name__,
        "length": str(len(dataset)) if hasattr(type(dataset), "__len__") else "unknown",
        "batch_size": str(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)),
        "sampler": type(sampler).__name__,
        "shuffle": str(isinstance(sampler, torch.utils.data.RandomSampler) or getattr(sampler, "shuffle", False)),
        "workers": str(loader.num_workers),
        "drop_last": str(loader.drop_last),
        "collate": _name_function(loader.collate_fn),
        "worker_init": _name_function(loader.worker_init_fn),
    }
    generator = getattr(sampler, "generator", None) or loader.generator
    facts["generator_seed"] = str(generator.initial_seed()) if isinstance(generator, torch.Generator) else "none"
    for name in ("seed", "epoch", "num_replicas"):
        if isinstance(getattr(sampler, name, None), int):
            facts["sampler_" + name] = str(getattr(sampler, name))
    for name in ("transform", "transforms", "target_transform"):
        if getattr(dataset, name, None) is not None:
            facts[name] = _ADDRESS.sub("", " ".join(str(getattr(dataset, name)).split()))[:_LONGEST]
    return facts


def _name_function(function: Any) -> str:
    """Return the name of a function, of what a partial one calls, or of the class of a callable object."""
    function = getattr(function, "func", function)
    return "None" if function is None else getattr(function, "__name__", type(function).__name__)
