import torch
from torch.nn import functional

from precflow.agent.capture.arguments import LONGEST, Signatures, format_argument, split_arguments

ONE, TWO = torch.zeros(1), torch.zeros(2)


def test_tensors_go_by_place_and_others_by_name():
    tensors, others = split_arguments((ONE, 3, "same"), {"mask": TWO, "dim": -1}, ("input", "repeats"))
    assert tensors == [("0", ONE), ("mask", TWO)]
    assert others == {"repeats": "3", "2": "'same'", "dim": "-1"}


def test_values_beside_tensors_go_by_path():
    tensors, others = split_arguments(((slice(None), TWO, None),), {"state": {"k": ONE, "n": 2}}, ("key",))
    assert [path for path, _ in tensors] == ["0.1", "state.k"]
    assert others == {"0.0": "slice(None, None, None)", "0.2": "None", "state.n": "2"}


def test_no_two_tensors_have_the_same_path():
    tensors, _ = split_arguments((ONE, {"0": TWO}), {"0": TWO, "a.b": ONE, "a": {"b": TWO}})
    assert [path for path, _ in tensors] == ["0", "1.'0'", "'0'", "'a.b'", "a.b"]


def test_containers_without_tensors_are_one_argument():
    _, others = split_arguments(([1, 2], ()), {"shape": torch.Size([3, 4]), "options": {"a": 1}})
    assert others == {"0": "[1, 2]", "1": "()", "shape": "torch.Size([3, 4])", "options": "{'a': 1}"}


def test_addresses_are_masked():
    assert format_argument(object()) == "<object object at 0x>"
    assert format_argument(torch.Generator()) == format_argument(torch.Generator())
    assert "0x>" in format_argument(iter(()))


def test_long_texts_are_cut_and_stay_different():
    one, other = format_argument("a" * 500 + "b"), format_argument("a" * 500 + "c")
    assert len(one) == len(other) == LONGEST
    assert one != other
    assert format_argument(list(range(10**5))) == "list of 100000"


def test_a_failing_repr_is_no_failure():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    class Wrong:
        def __repr__(self):
            return 3

    assert format_argument(Hostile()).endswith("Hostile without repr: RuntimeError>")
    assert format_argument(Wrong()).endswith("Wrong without repr: TypeError>")


def test_names_come_from_python_functions_only():
    signatures = Signatures()
    assert signatures.parameter_names(functional.softmax)[:2] == ("input", "dim")
    assert signatures.parameter_names(torch.softmax) == ()
    assert signatures.parameter_names(torch.Tensor.__getitem__) == ()
    assert signatures.parameter_names(torch.Tensor.__pow__) == (), "a wrapper in Python around what is in C"
    assert signatures.parameter_names(lambda x, *rest, flag=1: x) == ("x",)


def test_names_are_looked_up_once_for_a_method():
    signatures, linear = Signatures(), torch.nn.Linear(1, 1)
    assert signatures.parameter_names(linear.forward) == ("input",)
    assert signatures.parameter_names(torch.nn.Linear(2, 2).forward) == ("input",)
    assert len(signatures._names) == 1
