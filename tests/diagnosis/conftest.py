"""Hand-made dumps: calls with data-flow edges, without any file."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from precflow.agent.contract import Identity
from precflow.comparison.measure import Measure
from precflow.dumps.header import Header, RepeatCheck
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import Judged


def header(**given):
    return Header(**{"dtype": "float32", "recipe": "demo", "repeat": RepeatCheck(checked=True), **given})


DEFAULTS = {
    "shape": (2, 3),
    "movement": False,
    "ordinal": 0,
    "call": 0,
    "arguments": {},
    "class_name": "Module",
    "rank": 0,
    "step": 0,
    "order": None,
    "phase": "forward",
    "returns": 1,
}


@dataclass
class HandMade:
    """A dump with the members that the diagnosis uses; ``operator`` and ``module`` append calls."""

    header: Header = field(default_factory=header)
    made: list = field(default_factory=list)
    tensors: dict = field(default_factory=dict)
    rank: int = 0

    def calls(self):
        return self.made

    def tensor(self, record):
        return self.tensors[record.text]

    def operator(self, module, operator, *inputs, **options):
        return self._call(module, operator, inputs, **options)

    def module(self, module, *inputs, **options):
        return self._call(module, "", inputs, **options)

    def _call(self, module, operator, inputs, **options):
        given = {**DEFAULTS, **options}
        order = len(self.made) if given["order"] is None else given["order"]
        self.rank = given["rank"]
        about = (module, given["call"], operator, given["ordinal"], given["phase"])
        made = Call(
            order=order,
            level="api" if operator else "module",
            module=module,
            class_name=given["class_name"],
            call=given["call"],
            operator=operator,
            ordinal=given["ordinal"],
            phase=given["phase"],
            step=given["step"],
            rank=self.rank,
            site=f"model.py:{order} in forward",
            movement=given["movement"],
            compiled=False,
            arguments=dict(given["arguments"]),
            inputs=tuple(
                self._record(about, order, "input", str(at), self._input(one), given["step"]) for at, one in enumerate(inputs)
            ),
            outputs=tuple(
                self._record(about, order, "output", str(at), given, given["step"]) for at in range(given["returns"])
            ),
        )
        self.made.append(made)
        return made

    def _record(self, about, order, role, index, given, step):
        own = np.asarray(given["value"]) if given.get("value") is not None else None
        identity = Identity(*about, role, index, step, self.rank)
        content = digest(own) if own is not None else f"{identity} {order}"
        made = Record.of(
            identity=identity,
            order=order,
            dtype=given.get("dtype") or (str(own.dtype) if own is not None else "float32"),
            shape=own.shape if own is not None else given.get("shape", (2, 3)),
            content=content if given.get("content") is None else given["content"],
            stored=own is not None,
            source=given.get("source"),
            weight=given.get("weight", ""),
            mark=given.get("mark", ""),
        )
        if own is not None:
            self.tensors[made.text] = own
        return made

    def _input(self, one):
        if isinstance(one, Call):
            output = one.outputs[0]
            value = self.tensors.get(output.text)
            return {
                "source": (one.order, "0"),
                "content": output.content,
                "mark": output.mark,
                "shape": output.shape,
                "value": value,
                "dtype": output.dtype,
            }
        return dict(one)


def digest(array):
    return hashlib.blake2b(array.tobytes() + str((array.dtype, array.shape)).encode(), digest_size=16).hexdigest()


def judge(dump, statuses, *, equal=(), shares=None):
    """Return measures and statuses for every output; those not named pass (movement is not judged)."""
    measures, judged = [], []
    for call in dump.made:
        text, name = call.outputs[0].text, call.name
        status = statuses.get(name, "not_judged" if call.movement else "pass")
        share = (shares or {}).get(name, 5.0 if status == "fail" else 0.1)
        join = status if status in {"shape", "unreadable", "unpaired_reference"} else "paired"
        measures.append(
            Measure(
                record=text,
                name=name,
                module=call.module,
                operator=call.operator,
                level=call.level,
                phase="forward",
                order=call.order,
                join=join,
                movement=call.movement,
                judged=not call.movement,
                reference_dtype="float32",
                target_dtype="float32",
                equal=name in equal,
            )
        )
        judged.append(Judged(record=text, status=status, ratio=share))
    return measures, judged


@pytest.fixture
def hand_made():
    return HandMade


@pytest.fixture
def make_header():
    return header


@pytest.fixture
def judge_calls():
    return judge
