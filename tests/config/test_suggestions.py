import pytest

from precflow.config.suggestions import did_you_mean, find_near


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("bf16", ["float16", "bfloat16"], "bfloat16"),
        ("gpu", ["cpu", "cuda"], "cuda"),
        ("l2", ["relative_l2", "rmse"], "relative_l2"),
        ("devise", ["dtype", "device"], "device"),
    ],
)
def test_nearest_word(word, known, meant):
    assert find_near(word, known, most=1) == [meant]


def test_upper_case_is_no_difference():
    assert find_near("Float16", ["float16"]) == ["float16"]


def test_nothing_near_says_nothing():
    assert did_you_mean("banana", ["float16"]) == ""
    assert did_you_mean("flaot16", ["float16"]) == " Did you mean  float16 ?"


def test_how_much_alike_can_be_asked():
    assert find_near("sd_txt", ["sd_text_encoder"]) == []
    assert find_near("sd_txt", ["sd_text_encoder"], alike=0.5) == ["sd_text_encoder"]
