import pytest

from precflow.dumps.layout import own_files, rank_and_step_of, step_folders


@pytest.mark.parametrize(
    "name", ["records-0.jsonl", "rank0/records-0.jsonl", "a/rank0/step0/x", "rank0/step1x/x", "rankx/step1/y"]
)
def test_other_folders_are_no_steps(name):
    assert rank_and_step_of(name) is None


def test_folders_come_by_rank_and_step(tmp_path):
    for name in ("rank1/step0", "rank0/step10", "rank0/step9", "rank0/step9.dropped", "other/step1"):
        (tmp_path / name).mkdir(parents=True)
    assert [path.relative_to(tmp_path).as_posix() for path in step_folders(tmp_path)] == [
        "rank0/step9",
        "rank0/step10",
        "rank1/step0",
    ]


def test_own_files_are_those_that_were_finished(tmp_path):
    for name in ("records-0.jsonl", "tensors-12.safetensors", "tensors-1.safetensors.part", "step.json", "x.jsonl"):
        (tmp_path / name).write_text("")
    assert own_files(tmp_path) == ["records-0.jsonl", "tensors-12.safetensors"]
