"""Copies of its weights that a script keeps for itself are found among its variables."""

import copy
import gc
import weakref

import pytest
import torch

from precflow.agent.capture.weight_copies import find_copies


class Average:
    def __init__(self, weights):
        self.shadow = dict(weights)


@pytest.fixture
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


@pytest.fixture
def weights(net):
    return dict(net.named_parameters())


def clone(weights, prefix=""):
    return {prefix + name: weight.detach().clone() for name, weight in weights.items()}


def test_a_variable_and_an_attribute_of_one_are_found_by_their_names(weights):
    average, helper = clone(weights), Average(clone(weights, "module."))
    found = dict(find_copies(weights))
    assert list(found) == ["copy_in_average", "copy_in_helper_shadow"]
    for name, tensors in (("copy_in_average", average), ("copy_in_helper_shadow", helper.shadow)):
        assert {key: value.data_ptr() for key, value in found[name].items()} == {
            id(weight): tensor.data_ptr() for weight, tensor in zip(weights.values(), tensors.values(), strict=True)
        }


def test_the_weights_themselves_and_what_is_no_copy_of_most_of_them_are_none(weights, net):
    own, state = dict(weights), net.state_dict()  # the same memory
    few = dict(list(clone(weights).items())[:1])
    others = {name: torch.zeros(7) for name in weights}
    counts = dict.fromkeys(weights, 1)
    numbers = dict(enumerate(clone(weights).values()))
    assert all((own, state, few, others, counts, numbers))
    assert find_copies(weights) == []


def test_one_dictionary_counts_once_and_not_too_many_do(weights):
    first = clone(weights)
    again, second, third, fourth = first, clone(weights), clone(weights), clone(weights)
    assert all((again, second, third, fourth))
    assert len(find_copies(weights)) == 3


def test_what_the_script_deletes_afterwards_is_gone(weights):
    batch = torch.zeros(3)
    kept = weakref.ref(batch)
    assert find_copies(weights) == []
    del batch
    gc.collect()
    assert kept() is None
    assert weights


def test_no_code_of_an_object_runs(weights):
    class Strange:
        @property
        def __class__(self):
            raise RuntimeError("asked for its class")

        def __getattribute__(self, name):
            raise RuntimeError("asked for " + name)

    strange = Strange()
    object.__setattr__(strange, "shadow", clone(weights))
    assert [name for name, _ in find_copies(weights)] == ["copy_in_strange_shadow"]


def test_tensors_of_other_kinds_are_no_copies(weights):
    class Shard(torch.Tensor):
        pass

    shards = {name: weight.as_subclass(Shard) for name, weight in clone(weights).items()}
    assert shards
    assert find_copies(weights) == []


class Keeper(torch.nn.Module):
    """Keeps a copy beside the module that is trained, as some libraries do."""

    def __init__(self, net):
        super().__init__()
        self.online, self.average = net, copy.deepcopy(net)


@pytest.mark.parametrize(
    "make",
    [
        copy.deepcopy,
        torch.optim.swa_utils.AveragedModel,
        Keeper,
        lambda net: [weight.detach().clone() for weight in net.parameters()],
        lambda net: tuple(weight.detach().clone() for weight in net.parameters() if weight.requires_grad),
        lambda net: {f"module.{name}": weight.detach().half() * 0.1 for name, weight in net.named_parameters()},
    ],
)
def test_a_copy_may_be_a_module_or_a_list_of_all_or_of_the_trained_weights(net, weights, make):
    for weight in net[0].parameters():
        weight.requires_grad = False
    kept = make(net)
    [(name, tensors)] = find_copies(weights)
    assert name == "copy_in_kept"
    assert list(tensors) == [id(weight) for weight in net[1].parameters()]
    values = zip(tensors.values(), net[1].parameters(), strict=True)
    assert all(torch.cosine_similarity(value.float().flatten(), weight.flatten(), 0) > 0.99 for value, weight in values)
    assert kept is not None


def test_a_module_that_is_recorded_anyway_is_no_copy(net, weights):
    teacher = copy.deepcopy(net)
    assert find_copies(weights, watched={id(weight) for weight in teacher.parameters()}) == []


def test_gradients_states_and_changes_of_weights_are_no_copies():
    net = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20))
    weights = dict(net.named_parameters())
    (net(torch.randn(5, 40)) - torch.randn(5, 20)).abs().sum().backward()
    gradients = {name: weight.grad.clone() for name, weight in weights.items()}
    momenta = [torch.zeros_like(weight) for weight in weights.values()]
    noise = [torch.randn_like(weight) for weight in weights.values()]
    assert gradients
    assert momenta
    assert noise
    assert find_copies(weights) == []


def test_a_module_that_holds_itself_and_one_that_was_not_initialized_are_no_trouble(net, weights):
    loop = torch.nn.Module()
    loop._modules["again"] = loop
    empty = object.__new__(Keeper)
    assert loop
    assert type(empty) is Keeper
    assert find_copies(weights) == []
