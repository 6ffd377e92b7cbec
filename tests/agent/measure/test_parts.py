import pytest
import torch

from precflow.agent.measure.parts import choose_part, copy_part
from precflow.agent.sampling import BLOCK, FEWEST, part_of


def test_an_index_leaves_its_shape():
    tensor = torch.arange(60.0).reshape(3, 4, 5)
    kept = choose_part((3, 4, 5), "[0, :, -1]", 1.0)
    assert torch.equal(copy_part(tensor, kept), tensor[0, :, -1])
    assert kept.part.share == 4 / 60


def test_a_sample_is_flat_and_reaches_the_last_element():
    count = 200 * BLOCK + 17
    tensor = torch.arange(count, dtype=torch.float64)
    kept = choose_part((count,), "", 0.01)
    found = copy_part(tensor, kept)
    part = part_of((count,), "", 0.01)
    blocks = [tensor[number * BLOCK : (number + 1) * BLOCK] for number in part.blocks]
    assert torch.equal(found, torch.cat([*blocks, tensor[part.tail :]]))
    assert found[-1] == count - 1
    assert found.numel() == round(part.share * count) >= FEWEST * BLOCK


def test_a_part_is_a_copy_in_c_order():
    tensor = torch.arange(12.0).reshape(3, 4).t()
    found = copy_part(tensor, choose_part((4, 3), "[1:3]", 1.0))
    tensor.zero_()
    assert found.is_contiguous()
    assert found.tolist() == [[1.0, 5.0, 9.0], [2.0, 6.0, 10.0]]


@pytest.mark.parametrize(("slices", "sample"), [("[:, ::2]", 1.0), ("", 0.1), ("[1:]", 0.1)])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn_x2"])
def test_parts_are_taken_of_types_that_torch_cannot_join(name, slices, sample):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    bits = (torch.arange(3 * 100 * BLOCK) % 251).to(torch.uint8).view(3, -1)
    kept = choose_part(tuple(bits.shape), slices, sample)
    found = copy_part(bits.view(getattr(torch, name)), kept)
    assert found.dtype == getattr(torch, name)
    assert torch.equal(found.view(torch.uint8), copy_part(bits, kept))


def test_a_tensor_that_is_kept_whole_has_no_part():
    assert choose_part((3, 4), "", 0.5) is None
    assert choose_part((4,), "[0, 0]", 1.0) is None


def test_equal_rules_give_the_same_object():
    assert choose_part((3, 4), "[0]", 1.0) is choose_part((3, 4), "[0]", 1.0)
    assert choose_part((3, 4), "[0]", 1.0).name != choose_part((3, 4), "[1]", 1.0).name
