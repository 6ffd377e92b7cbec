import pytest
import torch


def drawn(device, seed=7):
    torch.manual_seed(seed)
    return torch.randn(5, device=device).cpu()


def test_the_device_has_a_stream_of_its_own(npu):
    assert torch.equal(drawn("npu"), drawn("npu"))
    assert not torch.equal(drawn("npu"), drawn("cpu"))
    assert not torch.equal(drawn("npu", 7), drawn("npu", 8))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(9, device="npu"),
        lambda: torch.randperm(9, device="npu"),
        lambda: torch.ones(9, device="npu").multinomial(3),
        lambda: torch.nn.functional.dropout(torch.ones(99, device="npu"), 0.5),
        lambda: torch.ones(9, device="npu").bernoulli_(0.5),
    ],
    ids="randn randperm multinomial dropout bernoulli".split(),
)
def test_drawing_on_the_device_repeats_by_seed_and_never_moves_the_cpu_stream(npu, draw):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = draw().cpu(), draw().cpu()
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    npu.manual_seed_all(5)
    assert torch.equal(draw().cpu(), first)


def test_drawing_on_the_cpu_never_moves_the_device_stream(npu):
    before = npu.get_rng_state()
    torch.randn(5)
    assert torch.equal(npu.get_rng_state(), before)


def test_the_state_is_kept_and_continued(npu):
    state = npu.get_rng_state("npu:1")
    first = torch.rand(3, device="npu:1").cpu()
    npu.set_rng_state(state, 1)
    assert torch.equal(torch.rand(3, device="npu:1").cpu(), first)
    states = npu.get_rng_state_all()
    assert len(states) == 2
    first = torch.rand(3, device="npu").cpu()
    npu.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="npu").cpu(), first)


def test_fork_rng_gives_the_stream_back(npu):
    before = npu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.rand(3, device="npu")
        assert not torch.equal(npu.get_rng_state(), before)
    assert torch.equal(npu.get_rng_state(), before)


def test_seeds_are_answered_as_they_were_given(npu):
    npu.manual_seed(11)
    assert npu.initial_seed() == 11
    npu.seed_all()
    assert npu.default_generators[0].initial_seed() == npu.default_generators[1].initial_seed() != 11
    npu.seed()
    assert npu.initial_seed() >= 0


def test_a_generator_of_the_device(npu):
    generator = torch.Generator(device="npu:1").manual_seed(3)
    assert generator.device == torch.device("npu:1")
    assert generator.initial_seed() == 3
    first = torch.randn(4, device="npu:1", generator=generator).cpu()
    assert torch.equal(torch.randn(4, device="npu:1", generator=generator.manual_seed(3)).cpu(), first)


def test_a_cpu_generator_still_works_on_the_cpu_and_is_refused_on_the_device(npu):
    generator = torch.Generator().manual_seed(3)
    assert generator.device.type == "cpu"
    assert generator.initial_seed() == 3
    assert torch.randn(2, generator=generator).shape == (2,)
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.randn(2, device="npu", generator=generator)


def test_plain_generators_are_still_instances(npu):
    assert isinstance(torch.default_generator, torch.Generator)
    assert isinstance(torch.Generator(device="npu"), torch.Generator)
    assert not isinstance("npu", torch.Generator)
