"""What collectives carry: gradients by data flow, by equal bits, and the shares of a bucket by size."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from precflow.agent.contract import Identity
from precflow.dumps.collectives import find_carried, find_regrouped
from precflow.dumps.records import Call, Record
from precflow.dumps.views.aligned_collectives import find_numbers

PAIR = {"group": "[0, 1]", "reduction": "sum"}


@dataclass
class Calls:
    """Calls of one rank in one step; each method appends one and returns the source of its output."""

    made: list = field(default_factory=list)
    step: int = 0

    def add(
        self, operator, inputs=(), *, module="(outside)", shape=(4,), index="0", phase="forward", arguments=None, content=""
    ):
        order = len(self.made)

        def record(role, index, shape, content, source):
            identity = Identity(module, 0, operator, ordinal, phase, role, index, self.step, 0)
            return Record.of(identity, order, "float32", shape, content, stored=False, source=source, weight="")

        ordinal = sum((call.operator, call.module, call.phase) == (operator, module, phase) for call in self.made)
        given = tuple(record("input", str(at), *one) for at, one in enumerate(inputs))
        out = (record("output", index, shape, content, None),)
        names = {"level": "module", "module": module, "class_name": "", "call": 0, "operator": operator, "ordinal": ordinal}
        facts = {"step": self.step, "rank": 0, "site": "", "movement": False, "compiled": False, "arguments": arguments or {}}
        call = Call(order=order, **names, phase=phase, **facts, inputs=given, outputs=out)
        self.made.append(call)
        return (order, index)

    def gradient(self, name, shape, content=""):
        module, _, index = name.rpartition(".")
        return self.add("", module=module, shape=shape, index=index, phase="gradient", content=content)

    def update(self, name, shape):
        module, _, index = name.rpartition(".")
        return self.add("", module=module, shape=shape, index=index, phase="optimizer")

    def reduce(self, shape, *, content="", source=None, phase="forward", module="(outside)"):
        return self.add("all_reduce", [(shape, content, source)], shape=shape, phase=phase, arguments=PAIR, module=module)

    def carried(self):
        found = find_carried(self.made)
        return [found.get((0, call.step, call.order), ()) for call in self.made if call.operator == "all_reduce"]


def test_gradients_are_known_by_data_flow_and_by_their_bits():
    calls = Calls()
    weight = calls.gradient("norm.weight", (4,))
    calls.gradient("head.weight", (4,), content="h")
    calls.gradient("a.bias", (4,), content="zeros")
    calls.gradient("b.bias", (4,), content="zeros")
    copy = calls.add("clone", [((4,), "", weight)])
    norm = calls.add("linalg_vector_norm", [((4,), "", weight)], shape=())
    calls.reduce((4,), source=copy)
    calls.reduce((4,), content="h")
    calls.reduce((4,), content="zeros")
    calls.reduce((), source=norm)
    assert calls.carried() == [("norm.weight",), ("head.weight",), (), ()]


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([14], [("c.weight", "b.bias", "a.weight")]),
        ([6, 8], [("c.weight", "b.bias"), ("a.weight",)]),
        ([10, 4], [("a.weight", "b.bias"), ("c.weight",)]),  # filled in the other order
        ([5, 9], [(), ()]),
    ],
)
def test_a_bucket_has_the_gradients_that_fill_it(sizes, shares):
    calls = Calls()
    for name, size in (("c.weight", 4), ("b.bias", 2), ("a.weight", 8)):
        calls.gradient(name, (size,))
    for size in sizes:
        calls.reduce((size,), phase="backward")
    assert calls.carried() == shares


def train_with_unused(buckets):
    """Two steps of a wrapper that finds unused parameters: one branch is used in each, beside a norm that sums over ranks."""
    calls, sizes = Calls(), {"body.weight": 8, "even.weight": 3, "odd.weight": 3, "head.weight": 2}
    for calls.step, unused in enumerate(("odd.weight", "even.weight")):
        used = {name: size for name, size in sizes.items() if name != unused}
        for name, size in reversed(used.items()):
            calls.gradient(name, (size,))
        calls.reduce((2, 2), phase="backward")
        for size in buckets:
            calls.reduce((size,), phase="backward")
        for name, size in used.items():
            calls.update(name, (size,))
    return calls


def test_a_bucket_has_room_for_parameters_that_no_gradient_arrives_at():
    assert train_with_unused([8, 8]).carried() == [
        *((), ("head.weight", "even.weight"), ("body.weight",)),
        *((), ("head.weight", "odd.weight"), ("body.weight",)),
    ]
    assert train_with_unused([9, 7]).carried() == [()] * 6


def test_buckets_of_other_sizes_come_to_the_same_though_parameters_are_unused():
    reference, target = (train_with_unused(buckets).made for buckets in ([16], [8, 8]))
    moved = find_numbers(reference, target)
    new = {own: number for (_, own), number in moved.items()}
    assert new == {1: 4, 2: 5, 3: 2, 4: 7, 5: 8}, "the norm's sums have partners, and no bucket has one"
    buckets = [call for call in target if call.operator and call.inputs[0].shape == (8,)]
    apart = [replace(call, ordinal=9) if call in buckets else call for call in target]
    sent = {record.text for call in buckets for record in (*call.inputs, *call.outputs)}
    assert sent <= find_regrouped(reference, apart).keys()


def reduce_all(*names, shapes=None):
    calls = Calls()
    for name in names:
        calls.gradient(name, (shapes or {}).get(name, (4,)))
    for order, name in enumerate(names):
        calls.reduce((shapes or {}).get(name, (4,)), source=(order, name.rpartition(".")[2]))
    return calls.made


def numbers(reference, target):
    return {old: new for (_, old), new in find_numbers(reference, target).items()}


def test_collectives_are_numbered_by_the_parameter_that_they_carry():
    names = ("a.weight", "b.weight", "c.weight")
    assert numbers(reduce_all(*names), reduce_all(*names)) == {}
    assert numbers(reduce_all(*names), reduce_all("a.weight", "c.weight")) == {1: 2}
    assert numbers(reduce_all("a.weight", "c.weight"), reduce_all(*names)) == {1: 4, 2: 1}  # the extra one has no partner
    assert numbers(reduce_all(*names), reduce_all(*reversed(names))) == {0: 2, 2: 0}


def test_of_others_the_order_and_the_sizes_count():
    here, there, doubled = Calls(), Calls(), Calls()
    for shape in ((8,), (2, 2), (4,), (8,)):
        here.reduce(shape, module="block")
    for shape in ((8,), (4,), (8,)):
        there.reduce(shape, module="block")
        doubled.reduce((2 * shape[0],), module="block")
    assert numbers(here.made, there.made) == {1: 2, 2: 3}
    assert numbers(there.made, doubled.made) == {}  # as many of other sizes: the same ones


def test_a_bucket_that_is_reduced_again_carries_the_same():
    calls = Calls()
    for name, shape in {"b": (2,), "a": (3,)}.items():
        calls.gradient(name, shape)
    calls.reduce((5,), phase="backward")
    calls.reduce((5,), phase="backward")
    assert calls.carried() == [("b", "a"), ("b", "a")]


def test_the_last_reduction_of_gradients_is_the_partner_of_the_only_one():
    always, last = Calls(), Calls()
    for calls in (always, last):
        calls.gradient("a.weight", (3,))
        calls.reduce((3,), phase="backward")
    always.reduce((3,), phase="backward")
    name = ("(outside)", "all_reduce", "backward")
    numbers = find_numbers(last.made, always.made)
    assert {(place[2], place[4], place[5], own): number for (place, own), number in numbers.items()} == {
        (*name, 0): 2,
        (*name, 1): 0,
    }
