"""Task metrics of other libraries: the numbers are theirs, what is missing is named, and nothing is downloaded."""

import sys

import dump_builder as builder
import numpy as np
import pytest

from precflow.config.schema import TaskMetric
from precflow.dumps.formats import read_dump
from precflow.errors import ConfigError, MissingExtraError
from precflow.task import libraries
from precflow.task.outcome import examine, summarize

WORDS = {"[u]": 0, "[s]": 1, "[e]": 2, "a": 3, "cat": 4, "dog": 5, "sat": 6, "here": 7, "there": 8}
TEXTS = np.random.default_rng(0).integers(3, 9, (6, 9))
PICTURES = np.random.default_rng(1).random((3, 3, 20, 20)).astype(np.float32)
PROMPTS = ("a cat", "a dog sat here", "there a dog sat here a cat sat there a dog sat here")  # longer than the network reads


@pytest.fixture(scope="module")
def tokenizer():
    """Return a tokenizer that has one token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(WORDS, unk_token="[u]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(scope="module")
def clip(tmp_path_factory, tokenizer):
    """Return a folder with a small CLIP with seeded weights."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("clip")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 9, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, **small}
    vision = {"image_size": 16, "patch_size": 8, **small}
    torch.manual_seed(0)
    transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(
        folder
    )
    names = {"unk_token": "[u]", "bos_token": "[s]", "eos_token": "[e]", "pad_token": "[e]"}
    transformers.CLIPProcessor(
        image_processor=transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names),
    ).save_pretrained(folder)
    return folder


def write(folder, reference, target):
    return [
        read_dump(builder.DumpBuilder(folder / side, side=side).call("", "", {"0": values}).write())
        for side, values in (("reference", reference), ("target", target))
    ]


def change(texts, places):
    changed = texts.copy()
    for text, place in places:
        changed[text, place] = 3 + (changed[text, place] - 2) % 6
    return changed


@pytest.mark.parametrize("kind", ["bleu", "chrf"])
def test_scores_of_texts_are_those_of_sacrebleu(tmp_path, tokenizer, kind):
    import sacrebleu

    tokenizer.save(str(tmp_path / "tokenizer.json"))
    target = change(TEXTS, [(1, 8), (4, 0), (4, 5)])
    one = examine(kind, TaskMetric(tokenizer=str(tmp_path), limit=50.0), *write(tmp_path, TEXTS, target))
    spelt = [[" ".join(list(WORDS)[token] for token in text) for text in side] for side in (TEXTS, target)]
    theirs = {"bleu": sacrebleu.sentence_bleu, "chrf": sacrebleu.sentence_chrf}[kind]
    each = [theirs(there, [here]).score for here, there in zip(*spelt, strict=True)]
    assert [value for (value,) in one.each] == pytest.approx(each)
    assert (one.value, one.worst_sample, one.sample) == (pytest.approx(np.mean(each)), int(np.argmin(each)), "text")
    assert (one.state, one.test) == ("within", "sign flips")
    assert "could have shown a change of" in one.effect_text
    assert [text.first for text in one.texts[:2]] == [8, 0]


def test_without_a_tokenizer_the_tokens_are_the_words_of_bleu(tmp_path):
    import sacrebleu

    target = change(TEXTS, [(2, 4)])
    one = examine("bleu", TaskMetric(limit=99.0), *write(tmp_path, TEXTS, target))
    here, there = (" ".join(map(str, side[2])) for side in (TEXTS, target))
    assert one.worst == pytest.approx(sacrebleu.sentence_bleu(there, [here], tokenize="none").score)
    assert one.notes[0] == "without a tokenizer, each token is a word"
    assert one.state == "beyond"


def test_texts_that_are_alike_have_100_and_say_what_they_could_have_shown(tmp_path):
    one = examine("bleu", TaskMetric(limit=90.0), *write(tmp_path, TEXTS[:, :2], TEXTS[:, :2]))
    assert summarize(one) == "100, at least 90: within (6 texts: 24 % of them would show)"


@pytest.mark.slow
def test_the_clip_score_is_that_of_the_network_itself(tmp_path, clip):
    import torch
    import transformers

    target = np.clip(PICTURES + 0.2, 0, 1)
    metric = TaskMetric(range=(0.0, 1.0), weights=str(clip), prompts=PROMPTS, limit=1.0)
    one = examine("clip_score", metric, *write(tmp_path, PICTURES, target))
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    processor = transformers.CLIPProcessor.from_pretrained(clip)
    from PIL import Image

    expected = []
    for prompt, *sides in zip(PROMPTS, PICTURES, target, strict=True):
        images = [Image.fromarray(np.rint(side.transpose(1, 2, 0) * 255).astype(np.uint8)) for side in sides]
        given = processor(text=[prompt], images=images, return_tensors="pt", truncation=True, max_length=8)
        with torch.no_grad():
            expected.append((100 * model(**given).logits_per_image[:, 0] / model.logit_scale.exp()).tolist())
    assert one.each == tuple(pytest.approx(pair, rel=1e-5) for pair in expected)
    assert (one.state, one.sample) == ("not told", "picture")  # three are too few
    assert one.worse == pytest.approx(one.reference - one.target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"prompts": PROMPTS[:2]}, "there are 2 prompts, and none for picture 2"),
        ({"prompts": (*PROMPTS, "a")}, "there are 4 prompts, and 3 pictures"),
        ({"prompts": PROMPTS, "layout": "NHWC"}, "a picture has 20 channels, and CLIP takes 1 or 3"),
    ],
)
def test_pictures_that_have_no_score_are_named(tmp_path, clip, keys, said):
    metric = TaskMetric(range=(0.0, 1.0), weights=str(clip), **keys)
    one = examine("clip_score", metric, *write(tmp_path, PICTURES, PICTURES))
    assert (one.state, one.why) == ("not computed", said)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (lambda folder: libraries.load_texts("chrf", TaskMetric(tokenizer=str(folder))), "tokenizer.json is no tokenizer"),
        pytest.param(
            lambda folder: libraries.load_pictures(TaskMetric(weights=str(folder), range=(0, 1))),
            "no CLIP can be loaded from",
            marks=pytest.mark.slow,
        ),
        (lambda folder: libraries.load_pictures(TaskMetric(weights="openai/clip", range=(0, 1))), "openai/clip is no folder"),
    ],
)
def test_a_path_with_something_else_is_named(tmp_path, load, said):
    (tmp_path / "tokenizer.json").write_text("[]")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


@pytest.mark.parametrize(
    ("library", "load", "extra"),
    [
        ("sacrebleu", lambda: libraries.load_texts("bleu", TaskMetric()), "text"),
        ("tokenizers", lambda: libraries.load_texts("chrf", TaskMetric(tokenizer="x")), "text"),
        ("transformers", lambda: libraries.load_pictures(TaskMetric(weights=".")), "clip"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, load, extra):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=f"{library} is not installed") as caught:
        load()
    assert caught.value.next_step == f"pip install 'precflow[{extra}]'"
