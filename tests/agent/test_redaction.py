"""Secrets are hidden by name, by shape and by heart; what only resembles one stays as it is."""

import base64
import json
import random
import secrets

import pytest

from precflow.agent import redaction
from precflow.agent.variables import RECORDED, select_recorded
from precflow.errors import ConfigError

CANARY = "C4n4ryB1rd"


@pytest.fixture(autouse=True)
def _fresh():
    """No test learns from another, or from the machine."""
    redaction.forget()
    yield
    redaction.forget()


HIDDEN = [
    f"https://user:{CANARY}@host",
    f"https://user:{CANARY}/x@y@host/p?x=1",
    f"pulled https://{CANARY}abcdefghijk@github.com/a/b",
    f"http://host/p?X-Amz-Signature={CANARY}",
    f"http://host/p?a=1&X-Amz-Credential={CANARY}%2F2020&b=2",
    f"obs://b/k?AccessKeyId={CANARY}&Expires=1&Signature={CANARY}",
    f"https://account.blob.example/x?sv=1&sig={CANARY}",
    f"s3://AK{CANARY}:SK{CANARY}@bucket/x",
    f"mysql://root:{CANARY}@db:3306/x",
    f"Authorization: Bearer {CANARY}abc",
    f"Authorization: Basic {CANARY}abc",
    f"bearer {CANARY}123",
    f"password={CANARY}",
    f"ASCEND_AK={CANARY}",
    f"NPU_PASSPHRASE='{CANARY} with spaces'",
    f"'target.variables.API_PASSWORD={CANARY}'",
    f"{{API_PASSWORD:{CANARY},B:1}}",
    f'{{"password": "{CANARY}"}}',
    f'{{"password": "a\\"{CANARY}"}}',
    f"a: 1\nvariables:\n  HCCL_PWD: {CANARY}\n",
    f"--api-key {CANARY}",
    f"--password={CANARY}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
    f"hf_{CANARY}abcdefghijklmnop",
    f"github_pat_{CANARY}abcdefghijklmnop",
    f"eyJhbGciOiJIUzI1NiJ9.eyJ{CANARY}.{CANARY}",
    "AKIAIOSFODNNC4N4RYEX",
    "HST3J3YJ3NW4LYS3XPQF",
]
KEPT = """https://host:8080/path/@scope/pkg
git@github.com:org/repo.git
ssh://git@github.com/org/repo
/usr/local/lib/python3.11/site-packages/torch/nn/modules/linear.py:134 in forward
encoder.layers.0.self_attn.q_proj/linear.0/forward.output.0@2.0
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
sha256:9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08
550e8400-e29b-41d4-a716-446655440000
2.6.0+cu124, torch_npu 2.6.0.post5, CANN 8.0.RC3
meta-llama/Llama-3.1-8B-Instruct-Q4_K_M
CLIPTextModelWithProjectionForConditionalGeneration2
TransformerEncoderLayerBackward0
SentenceTransformersForSequenceClassificationHeadV2Large
_ZN2at6native12_GLOBAL__N_119scaled_dot_product_attentionERKNS_6TensorES4_
/tmp/pytest-of-root/pytest-60/test_a_run_folder_that_cannot_0/file
/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/tmpAb3dE5fG
/nix/store/0c3v9w7kq1q2x8m4z5d6f7g8h9j0k1l2-python3-3.11.7
/home/ann/Models/LLaMA3-8B-Q4K/model-00001-of-00004.safetensors
NVIDIA H100 80GB HBM3
CUBLAS_WORKSPACE_CONFIG=:4096:8
HCCL_CONNECT_TIMEOUT=1200 TASK_QUEUE_ENABLE=2 TOKENIZERS_PARALLELISM=false
pad_token=<pad>, token_ids=[1,2,3], key_dim=64, eos_token: </s>, num_key_value_heads=8, attention_key=q
expected key=value with a dotted key
line 12: expected a secret: none
KeyError: key: encoder.layers.0.self_attn.q_proj.weight is missing
'workload.model.weights=/models/sd 15/a=b'
tcp://10.0.0.1:8786
store/dump.reference-1c9f20ab34-a1b2c3
password=(redacted) and https://(redacted)@host""".splitlines()


@pytest.mark.parametrize("text", HIDDEN)
def test_secrets_are_hidden_by_their_shape(text):
    for shown in (redaction.redact_text(text), str(redaction.redact([text])), redaction.redact_word(text)):
        assert CANARY.upper() not in shown.upper()
        assert "HST3J3" not in shown
        assert redaction.REDACTED[:-1] in shown


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text):
    assert redaction.redact_text(text) == redaction.redact(text) == redaction.redact_word(text) == text


def test_what_was_hidden_is_not_hidden_again():
    for text in HIDDEN:
        once = redaction.redact(text)
        assert redaction.redact(once) == once
        assert redaction.redact_text(redaction.redact_text(text)) == redaction.redact_text(text)


def test_nearly_every_random_text_is_recognized_and_no_checksum_is():
    draws = [secrets.token_urlsafe(32) for _ in range(500)] + [
        base64.b64encode(secrets.token_bytes(30)).decode() for _ in range(500)
    ]
    assert sum(redaction.redact_text(draw) != draw for draw in draws) > 850
    sums = [secrets.token_hex(random.randrange(16, 64)) for _ in range(500)]
    assert [one for one in sums if redaction.redact_text(one) != one or redaction.redact(one) != one] == []


def test_the_name_of_a_module_is_hardly_ever_random():
    """Nor is it ever hidden in a record: names go through no door."""
    words = (
        "Clip Text Model Encoder layer self attn Q proj MLP fc1 Conv2d LSTM GELU v2 down_blocks 0 resnets norm to_out".split()
    )
    draw = random.Random(5)
    names = ["".join(draw.choice(words) for _ in range(draw.randrange(6, 14))) for _ in range(3000)]
    assert sum(redaction.redact_text(name) != name for name in names) < 100


def test_another_random_looking_value_is_another_value_and_another_password_is_not():
    """A checkpoint's id may look random and decide about the result; a password never does."""
    drawn = ["kD93hfXq7Lz0Pw2VbN8sTy4RmG6cJe1a", "aD93hfXq7Lz0Pw2VbN8sTy4RmG6cJe1k"]
    one, other = (redaction.redact({"variant": value}) for value in drawn)
    assert one != other
    assert drawn[0] not in str(one)
    assert redaction.redact({"password": drawn[0]}) == redaction.redact({"password": drawn[1]})
    assert redaction.redact(f"https://a:{drawn[0]}@h/x") == redaction.redact(f"https://b:{drawn[1]}@h/x")


def test_names_of_secrets_and_of_other_things():
    names = (
        "ASCEND_AK ASCEND_SK HCCL_PWD TORCH_PASS NPU_PASSPHRASE CUDA_PAT ACL_CRED HCCL_AUTH_FILE MY_APIKEY HFTOKEN "
        "password db_password api_key apiKey x-amz-signature access-key-id hf_token client_secret"
    )
    assert [name for name in names.split() if not redaction.is_secret(name)] == []
    others = [*sorted(RECORDED), *"pad_token token_ids key_dim keys author MONKEY KEYBOARD bypass".split()]
    assert [name for name in others if redaction.is_secret(name)] == []


def test_a_switch_is_no_secret_whatever_it_is_called():
    assert redaction.redact({"USE_KEY": "1", "MY_SECRET": "false", "token_ids": [1, 2], "api_key": ""}) == {
        "USE_KEY": "1",
        "MY_SECRET": "false",
        "token_ids": [1, 2],
        "api_key": "",
    }


def test_what_was_learnt_is_hidden_wherever_it_stands():
    redaction.learn(
        {"HCCL_PWD": "correcthorse", "PROXY": "http://ann:battery7@proxy", "MODE": "eval", "MY_KEY": "/tmp", "A_PIN": "12"}
    )
    said = redaction.redact_text("login as correcthorse:battery7 to /tmp in eval failed 12 times; correcthorses")
    assert said == "login as (redacted):(redacted) to /tmp in eval failed 12 times; correcthorses"


def test_a_request_is_written_without_secrets_and_read_with_them():
    workload = {"model": {"_target_": "a.b", "api_key": CANARY, "layers": 2}, "inputs": {"urls": [f"s3://A:{CANARY}@b/x", "y"]}}
    clean, out = redaction.take_out(workload, "workload")
    assert CANARY not in json.dumps(clean)
    assert list(redaction.find_placeholders(clean, "workload")) == ["workload.model.api_key", "workload.inputs.urls.0"]
    assert redaction.put_back(json.loads(json.dumps(clean)), out, "workload") == workload
    assert redaction.read_handed_over({redaction.VARIABLE: json.dumps(out)}) == out
    assert redaction.read_handed_over({redaction.VARIABLE: "["}) == redaction.read_handed_over({}) == {}


def test_variables_are_recorded_where_they_matter_and_can_be_no_password():
    given = {
        "OMP_PLACES": "cores",
        "HCCL_NEW_SWITCH": "true",
        "HCCL_PWD": "1",
        "TORCH_PASS": "hunter",
        "ACL_WHATEVER": "hunter",
        "NCCL_DEBUG_FILE": f"https://user:{CANARY}@host/log",
        "MY_TOKEN": "hush",
    }
    assert select_recorded(given) == {
        "ACL_WHATEVER": "(redacted)",
        "HCCL_NEW_SWITCH": "true",
        "HCCL_PWD": "(redacted)",
        "NCCL_DEBUG_FILE": "https://(redacted)@host/log",
        "OMP_PLACES": "cores",
        "TORCH_PASS": "(redacted)",
    }


def test_what_stands_for_a_secret_is_not_taken_for_one(clean):
    from precflow.config.composition import compose

    with pytest.raises(ConfigError, match="stands for a secret, which is never written down"):
        compose(["+recipe=sd_text_encoder", "target.variables.API_PASSWORD=(redacted)"])
