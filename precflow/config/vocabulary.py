"""The words that a key may take, where it takes words: one table.

Keys are ``Dataclass.field``. A field that holds a list allows these words as its items.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from precflow.agent.contract import (
    CHECKED,
    COMPILED_CHOICES,
    DETAILS,
    DEVICE_KINDS,
    EXPORTERS,
    LEVELS,
    MIXED_LEVELS,
    MIXED_TYPES,
    NONE,
    OPTIMISATIONS,
    PHASES,
    RECORDED,
    RUNTIMES,
    UNCHECKED,
    WEIGHTS_CHOICES,
    WHEN_NEEDED,
)
from precflow.config.schema import CHECKS, SIDES
from precflow.config.sections import standards
from precflow.language import LANGUAGES
from precflow.metrics import LIMITED, METRICS

ESCALATING = "escalating"
COLUMNS = (*LIMITED, *(name for name, metric in METRICS.items() if not metric.example and not metric.dtype))

TASK_KINDS = (
    *("psnr", "ssim", "mean_abs_error", "mean_rel_error"),
    *("class_agreement", "accuracy", "token_agreement", "perplexity"),
    *("bleu", "chrf", "clip_score"),  # of other libraries
)

SEEDED = "seeded"  # what shipped workloads take in place of a file of weights
_OF_FILES = frozenset("weights tokenizer path file folder directory dir checkpoint".split())

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_STAGE = re.compile(r'^STAGE = Stage\(\s*name="([a-z_]+)[^"]*",\s*place=(\d+),', re.MULTILINE)

WORDS = {
    "Workload.mode": ("eval", "train"),
    "Workload.compile": ("eager", "kept"),
    "Requirements.checks": CHECKS,
    "Side.migration": ("", "transfer_to_npu"),
    "Side.device": DEVICE_KINDS,
    "Side.dtype": _DTYPES,
    "MixedPrecision.level": ("", *MIXED_LEVELS),
    "MixedPrecision.dtype": MIXED_TYPES,
    "Conversion.runtime": RUNTIMES,
    "Conversion.exporter": EXPORTERS,
    "Conversion.optimise": OPTIMISATIONS,
    "Determinism.algorithms": ("strict", "warn", "native", WHEN_NEEDED),
    "Determinism.random_numbers": ("cpu", "device"),
    "Determinism.dropout": ("removed", "kept"),
    "Determinism.data": ("script", RECORDED),
    "Determinism.observer": (UNCHECKED, CHECKED),
    "Determinism.as_is": (UNCHECKED, CHECKED),
    "Golden.dtype": ("", "float64", "float32"),
    "Scan.dtype": ("", *_DTYPES),
    "Capture.level": LEVELS,
    "Capture.phase": PHASES,
    "Capture.debug": ("", "blocking"),
    "Capture.device_log": ("", "debug", "info", "warning", "error"),
    "Capture.detail": (*DETAILS, ESCALATING),
    "Capture.weights": WEIGHTS_CHOICES,
    "Capture.compiled": COMPILED_CHOICES,
    "CaptureRule.level": LEVELS,
    "CaptureRule.phase": PHASES,
    "CaptureRule.detail": ("", *DETAILS, NONE),
    "ToleranceRule.phase": ("", *PHASES),
    "TaskMetric.kind": ("", *TASK_KINDS),
    "TaskMetric.direction": ("", "at_least", "at_most"),
    "PairingRule.pair_by": ("", "request"),
    "PairingRule.phase": ("", *PHASES),
    "Accepted.phase": ("", *PHASES),
    "Report.language": LANGUAGES,
    "Report.formats": ("html", "markdown", "json", "junit", "sarif", "csv", "xlsx", "parquet", "tensorboard"),
    "Executor.name": ("local", "dask"),
    "RunConfig.sides": SIDES,
    "RunConfig.output": ("auto", "terminal", "ci", "quiet"),
}


def allowed_words(field: str) -> tuple[str, ...] | None:
    """Return the words that ``Dataclass.field`` may take, or ``None`` where any text will do."""
    if field == "Curve.standard":
        return ("", *(name for name in standards.names() if standards.judges_losses(name)))
    if field == "RunConfig.stages":
        return list_stages()
    return standards.names() if field == "Tolerance.standards" else WORDS.get(field)


@lru_cache(maxsize=1)
def list_stages() -> tuple[str, ...]:
    """Return the names of all stages in the order in which they run.

    They are read from the text of ``precflow/stages``, which this package must not import: each file there says its own.
    """
    spec = find_spec("precflow.stages")
    folders = spec.submodule_search_locations if spec else None
    texts = [file.read_text(encoding="utf-8") for folder in folders or () for file in sorted(Path(folder).rglob("*.py"))]
    found = sorted((int(place), name) for text in texts for name, place in _STAGE.findall(text))
    return tuple(dict.fromkeys(name for _, name in found))


def names_file(key: str) -> bool:
    """Tell whether an argument of a factory always means a file or a folder, by the last word of its name.

    >>> names_file("weights"), names_file("vocabulary_file"), names_file("layers")
    (True, True, False)
    """
    return key.rpartition("_")[2] in _OF_FILES
