"""Training: what backward, gradients, optimizer and later steps depend on, so that only the first difference is a suspect."""

from dataclasses import is_dataclass, replace

import pytest
from msgspec import structs

from precflow.agent.contract import Identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.graph import build_graph, key_of
from precflow.diagnosis.localize import localize
from precflow.dumps.header import Header, RepeatCheck
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import Judged


class Training:
    """A dump of two linear layers in training, one line a call, as the agent writes them."""

    header = Header(dtype="float32", recipe="demo", repeat=RepeatCheck(checked=True))

    def __init__(self, steps=2, level="module", *, gradient_first=False):
        self.made = []
        self.level = level
        for step in range(steps):
            self.order = 0
            first = self.add(step, "first", "forward", [("0", None)])
            second = self.add(step, "second", "forward", [("0", (first, "0"))])
            whole = self.add(step, "", "forward", [("0", None)], source=(second, "0"))
            self.add(step, "", "backward", [("0", None)], outputs=(), forward=(whole,))
            left = self.order + gradient_first
            lines = [("second", "backward", [("0", None)], ("0",), (second,)), ("second", "gradient", [], ("weight",), ())]
            lines += [("first", "backward", [("0", (left, "0"))], (), (first,)), ("first", "gradient", [], ("weight",), ())]
            for number in (1, 0, 3, 2) if gradient_first else (0, 1, 2, 3):
                module, phase, inputs, outputs, forward = lines[number]
                self.add(step, module, phase, inputs, outputs=outputs, forward=forward)
            for module in ("first", "second"):
                self.add(step, module, "optimizer", [("weight", None)], outputs=("weight", "weight.exp_avg"))

    def calls(self):
        return self.made

    def add(self, step, module, phase, inputs, *, outputs=("0",), forward=(), source=None):
        order, self.order = self.order, self.order + 1
        self.made.append(
            Call(
                order=order,
                level="module",
                module=module,
                class_name="Linear",
                call=0,
                operator="",
                ordinal=0,
                phase=phase,
                step=step,
                rank=0,
                site="",
                movement=False,
                compiled=False,
                arguments={},
                inputs=tuple(record(module, phase, "input", index, step, order, found) for index, found in inputs),
                outputs=tuple(record(module, phase, "output", index, step, order, source) for index in outputs),
                forward=forward,
            )
        )
        return order

    def node(self, module, phase, step=0):
        nodes = build_graph(self.calls())
        (found,) = [
            node for node in nodes.values() if (node.call.module, node.call.phase, node.call.step) == (module, phase, step)
        ]
        return found


def remade(value, **changes):
    """Return a record or call with other values."""
    return (replace if is_dataclass(value) else structs.replace)(value, **changes)


def record(module, phase, role, index, step, order, source):
    identity = Identity(module, 0, "", 0, phase, role, index, step, 0)
    return Record.of(identity, order, "float32", (2, 3), f"{identity}", stored=True, source=source, weight="")


def judged(dump, failing):
    """Return measures and statuses of every output; ``failing`` tells by identity text."""
    measures, statuses = [], []
    for call in dump.calls():
        for each in call.outputs:
            measures.append(
                Measure(
                    each.text, call.name, call.module, "", "module", call.phase, call.order, "paired", counts={"elements": 6}
                )
            )
            bad = failing(each.text)
            statuses.append(Judged(each.text, "fail" if bad else "pass", ratio=9.0 if bad else 0.1))
    return measures, statuses


def region(failing, dump=None):
    dump = dump or Training()
    return localize(dump, dump, *judged(dump, failing))


def sources(node):
    return [(edge.source[0][1], edge.source[0][2], edge.source[1]) for edge in node.edges if edge.source]


def test_a_gradient_that_arrives_comes_from_what_left_the_module_after():
    assert (0, 4, "0") in sources(Training().node("first", "backward"))


def test_backward_depends_on_what_its_forward_was_given_and_made():
    assert (0, 0, "0") in sources(Training().node("second", "backward"))
    assert (0, 1, "0") in sources(Training().node("second", "backward"))


def test_the_first_backward_depends_on_the_end_of_the_forward():
    assert sources(Training().node("", "backward"))[-1] == (0, 2, "0")


def test_a_gradient_depends_on_what_arrives_at_its_module():
    assert (0, 4, "0") in sources(Training().node("first", "gradient"))


def test_a_gradient_that_is_there_before_its_module_is_done_depends_on_what_arrives_too():
    dump = Training(gradient_first=True)
    assert [call.phase for call in dump.made if call.module == "second"] == [
        "forward",
        "gradient",
        "backward",
        "optimizer",
    ] * 2
    assert (0, 1, "0") in sources(dump.node("second", "gradient"))
    assert (0, 5, "0") in sources(dump.node("first", "gradient"))
    assert (1, 1, "0") in sources(dump.node("second", "gradient", step=1))


@pytest.mark.parametrize("start", ["first/forward.output.0", "second/forward.output.0"])
def test_gradients_of_a_wrong_forward_inherit_whenever_their_line_comes(start):
    dump = Training(gradient_first=True)
    others = [each.text for call in dump.calls() if call.module or call.phase != "forward" for each in call.outputs]
    after = others[others.index(start) :]
    found = region(lambda text: text in after, dump)
    assert [suspect.record for suspect in found.suspects] == [start]


@pytest.mark.parametrize("left_out", [{"backward"}, {"backward", "gradient"}, {"gradient"}])
def test_phases_that_nobody_asked_for_make_no_new_suspects(left_out):
    dump = Training()
    dump.made = [call for call in dump.made if call.phase not in left_out]
    found = region(lambda text: text != "first/forward.output.0", dump)
    assert [suspect.record for suspect in found.suspects] == ["second/forward.output.0"]


def test_the_gradient_of_a_module_that_never_ran_comes_from_the_one_around_it():
    dump = Training(steps=1)
    dump.made = [inner(call) if (call.module, call.phase) == ("second", "gradient") else call for call in dump.made]
    assert (0, 1, "0") in sources(dump.node("second.inner", "gradient"))


def test_the_gradient_of_a_module_that_ran_twice_depends_on_both_backwards():
    dump = Training(steps=0)
    dump.order = 0
    used = [dump.add(0, "shared", "forward", [("0", None)]) for _ in range(2)]
    whole = dump.add(0, "", "forward", [("0", None)], source=(used[1], "0"))
    left = dump.add(0, "", "backward", [("0", None)], forward=(whole,))
    last = dump.add(0, "shared", "backward", [("0", (left, "0"))], forward=(used[1],))
    between = dump.add(0, "act", "backward", [("0", (last, "0"))])
    dump.add(0, "shared", "gradient", [], outputs=("weight",))
    dump.add(0, "shared", "backward", [("0", (between, "0"))], forward=(used[0],))
    found = sources(dump.node("shared", "gradient"))
    assert {(0, left, "0"), (0, between, "0")} <= set(found)


def test_a_gradient_of_the_first_of_two_backwards_waits_for_no_later_one():
    dump = Training(steps=0)
    dump.order = 0
    arrived = []
    for _ in range(2):
        whole = dump.add(0, "", "forward", [("0", None)])
        arrived.append(dump.add(0, "", "backward", [("0", None)], forward=(whole,)))
        dump.add(0, "norm", "backward", [("0", (arrived[-1], "0"))])
        dump.add(0, "norm", "gradient", [], outputs=("weight",))
        dump.made[-1] = remade(dump.made[-1], call=len(arrived) - 1)
    first, second = [node for node in build_graph(dump.calls()).values() if node.call.phase == "gradient"]
    assert (0, arrived[0], "0") in sources(first)
    assert (0, arrived[1], "0") not in sources(first)
    assert (0, arrived[1], "0") in sources(second)
    assert (0, arrived[0], "0") not in sources(second)


def inner(call):
    """Return the gradient of a module inside that is never called itself, such as attention's projections."""
    outputs = tuple(remade(each, whose=each.whose._replace(module="second.inner")) for each in call.outputs)
    return remade(call, module="second.inner", outputs=outputs)


def test_the_optimizer_depends_on_the_gradient_and_on_the_step_before():
    assert sources(Training().node("first", "optimizer")) == [(0, 7, "weight")]
    assert (0, 8, "weight.exp_avg") in sources(Training().node("first", "optimizer", step=1))


def test_a_later_forward_depends_on_the_weights_that_the_optimizer_has_made():
    found = sources(Training().node("first", "forward", step=1))
    assert found == [(0, 7, "weight"), (0, 8, "weight"), (0, 8, "weight.exp_avg")]
    assert sources(Training().node("first", "forward", step=0)) == []


def test_weights_of_operators_come_from_the_optimizer_too():
    dump = Training()
    weight = remade(dump.made[0].inputs[0], weight="first.weight", source=None, content="")
    operator = remade(dump.made[10], order=-1, level="operator", operator="addmm", inputs=(weight,), step=1)
    nodes = build_graph([*dump.calls(), operator])
    assert sources(nodes[key_of(operator)])[0] == (0, 8, "weight")


def test_phases_do_not_contain_each_other():
    for node in build_graph(Training().calls()).values():
        assert all(key[1] == node.call.step for key in node.inside)
        inside = {call.phase for call in Training().calls() if (call.rank, call.step, call.order) in node.inside}
        assert inside <= {node.call.phase}


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("first/forward.output.0", "first"),
        ("second/forward.output.0", "second"),
        ("second/backward.output.0", "second (backward)"),
        ("first/gradient.output.weight", "first.weight (gradient)"),
        ("second/optimizer.output.weight", "second.weight (optimizer)"),
    ],
)
def test_what_comes_after_the_first_difference_inherits_it(start, name):
    dump = Training()
    texts = [each.text for call in dump.calls() for each in call.outputs]
    downstream = set(reached(dump, start))
    found = region(lambda text: text in downstream, dump)
    assert found.start == name
    assert [suspect.record for suspect in found.suspects] == [start]
    assert {found.roles[text] for text in downstream - {start}} <= {"inherits"}
    assert {found.roles[text] for text in set(texts) - downstream} <= {"agrees"}


def reached(dump, start):
    """Return every output that depends on one, by the graph."""
    nodes = build_graph(dump.calls())
    hit = {}
    for node in nodes.values():
        arrives = any(hit.get(edge.source) for edge in node.edges if edge.source)
        arrives = arrives or any(hit.get((key, each.identity.index)) for key in node.inside for each in nodes[key].call.outputs)
        for each in node.call.outputs:
            hit[(node.key, each.identity.index)] = arrives or each.text == start
    return [each.text for node in nodes.values() for each in node.call.outputs if hit[(node.key, each.identity.index)]]


def test_two_faults_in_two_phases_are_both_named():
    found = region(lambda text: text in {"second/backward.output.0", "second/optimizer.output.weight"})
    assert {suspect.name for suspect in found.suspects} == {"second (backward)", "second.weight (optimizer)"}


def test_without_module_lines_backward_hangs_on_the_end_of_the_forward():
    dump = Training()
    dump.made = [call for call in dump.made if (call.module, call.phase) != ("second", "forward")]
    assert (0, 2, "0") in sources(dump.node("second", "backward"))


class Transformer(Training):
    """A root that adds a parameter itself, before its blocks: its backward is given its tensor first, and has no outputs.

    Every backward's input is made by code that was not recorded, so that it has no source.
    """

    def __init__(self, *, passes=1, changed=""):
        super().__init__(steps=0)
        self.order = 0
        for number in range(passes):
            whole = self.add(0, "", "forward", [("0", None)])
            self.add(0, "", "backward", [("0", None)], outputs=(), forward=(whole,))
            self.number(number, "last", "backward", [("0", None)])
            self.number(number, "block.inner", "backward", [("0", None)])
            self.number(number, "block.gate", "gradient", [], outputs=("weight",))
            self.number(number, "", "gradient", [], outputs=("positions",))
            self.number(number, "embed", "backward", [("0", None)], outputs=())
            self.number(number, "embed", "gradient", [], outputs=("weight",))
        if changed:  # the target's inputs of these modules have other bits
            self.made = [self.change(call) if call.module in changed.split() else call for call in self.made]

    def number(self, number, *what, **more):
        self.add(0, *what, **more)
        call = self.made[-1]
        records = {
            role: tuple(
                Record.of(
                    each.identity._replace(call=number),
                    each.order,
                    "float32",
                    (2, each.order + 2),  # no edge can be guessed by shape
                    each.content,
                    stored=True,
                    source=None,
                    weight="",
                )
                for each in getattr(call, role)
            )
            for role in ("inputs", "outputs")
        }
        self.made[-1] = remade(call, call=number, **records)

    @staticmethod
    def change(call):
        return remade(call, inputs=tuple(remade(each, content="other") for each in call.inputs))


def transformer_region(failing, *, changed="", wrong=(), **options):
    """Return the region; inputs of the modules in ``changed`` differ in bits, and those in ``wrong`` are over their limit."""
    here, there = Transformer(**options), Transformer(changed=changed, **options)
    measures, statuses = judged(here, lambda text: text in failing)

    def judge_input(left, right):
        assert right.content == "other"
        return Judged(
            left.text, "fail" if left.identity.module in wrong else "pass", ratio=7.0 if left.identity.module in wrong else 0.1
        )

    return localize(here, there, measures, statuses, judge_input)


AFTER_BLOCK = ["block.inner/backward.output.0", "(model)/gradient.output.positions", "embed/gradient.output.weight"]


def test_gradients_that_pass_through_a_wrong_backward_inherit_from_it_by_execution_order():
    found = transformer_region(AFTER_BLOCK, changed="embed", wrong=("embed",))
    assert [suspect.name for suspect in found.suspects] == ["block.inner (backward)"]
    assert found.roles["(model)/gradient.output.positions"] == found.roles["embed/gradient.output.weight"] == "inherits"
    assert any(note.startswith("2 failing records: unknown which call made them") for note in found.notes)


def test_a_second_wrong_backward_whose_input_was_compared_and_agrees_is_named_too():
    found = transformer_region(["last/backward.output.0", *AFTER_BLOCK], changed="block.inner embed", wrong=("embed",))
    assert [suspect.name for suspect in found.suspects] == ["last (backward)", "block.inner (backward)"]


def test_a_gradient_whose_backward_is_given_a_right_tensor_introduces_its_error():
    found = transformer_region(["block.inner/backward.output.0", "embed/gradient.output.weight"], changed="embed")
    assert [suspect.name for suspect in found.suspects] == ["block.inner (backward)", "embed.weight (gradient)"]


def test_a_wrong_gradient_with_nothing_wrong_before_it_stays_the_suspect():
    wrong = ["(model)/gradient.output.positions", "embed/gradient.output.weight"]
    found = transformer_region(wrong, changed="embed", wrong=("embed",))
    assert [suspect.name for suspect in found.suspects] == ["positions (gradient)", "embed.weight (gradient)"]


def test_a_failure_inside_another_module_says_nothing_about_a_parameter():
    found = transformer_region(["last/backward.output.0", "block.gate/gradient.output.weight"])
    assert [suspect.name for suspect in found.suspects] == ["last (backward)", "block.gate.weight (gradient)"]


def test_a_failure_in_the_backward_of_an_earlier_batch_says_nothing_about_a_later_one():
    here = Transformer(passes=2)
    texts = [each.text for call in here.calls() for each in call.outputs]
    later = [text for text in texts if "embed" in text][1:]
    found = transformer_region(["block.inner/backward.output.0", *later], changed="embed", wrong=("embed",), passes=2)
    assert [suspect.record for suspect in found.suspects] == ["block.inner/backward.output.0", *later]


def test_a_guessed_maker_counts_less_than_the_comparison_of_the_input_itself():
    here, there = Training(steps=0), Training(steps=0)
    for dump in (here, there):
        dump.order = 0
        dump.add(0, "", "forward", [("0", None)])
        dump.add(0, "last", "backward", [("0", None)])
        dump.add(0, "first", "backward", [("0", None)])  # the only earlier output of its shape is that of `last`
    there.made[-1] = Transformer.change(there.made[-1])
    measures, statuses = judged(here, lambda text: "backward" in text)
    for status, names in (("pass", ["last (backward)", "first (backward)"]), ("fail", ["last (backward)"])):
        found = localize(here, there, measures, statuses, lambda left, _, status=status: Judged(left.text, status, ratio=0.2))
        assert [suspect.name for suspect in found.suspects] == names
