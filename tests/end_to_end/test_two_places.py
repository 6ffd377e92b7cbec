"""A reference made in one place and a target in another, with nothing between them but an S3 server."""

import json
import os
import shlex
from pathlib import Path

import object_store
import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("text encoder")]
WORDS = ["target.dtype=float32", "target.device=emulated", "capture.scope=[encoder.*]"]
CI = Path(__file__).parents[2] / "docs" / "ci"


@pytest.fixture(scope="module")
def store():
    """Return a store on a server of this module's own."""
    with object_store.serving() as endpoint, pytest.MonkeyPatch.context() as patch:
        object_store.set_credentials(patch)
        yield object_store.make_bucket(endpoint, "places")


@pytest.fixture
def small(small_encoder):
    """Return the words for a narrow encoder of one layer."""
    return [*WORDS, *small_encoder(layers=1)]


@pytest.fixture
def place(precflow, store, small, tmp_path):
    """Return a function that runs the recipe in a place of its own, with the store as all that it shares."""

    def run(name, *words):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        secrets = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return precflow("+recipe=sd_text_encoder", *small, "output=ci", *store.site, *words, cwd=folder, **secrets)

    return run


def list_texts(plain):
    """Return all texts in nested plain data."""
    inner = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    return [plain] if isinstance(plain, str) else [text for item in inner for text in list_texts(item)]


def test_the_second_place_finds_the_reference_and_a_lost_shard_is_unreadable(place, precflow, small, store, tmp_path):
    missing = place("target", "sides=[target]", "stages=[environment,dump,compare]")
    assert missing.problems(2, "no reference was sealed in s3://places/team/sd_text_encoder", "sides=[reference]") == []
    made = place("reference", "sides=[reference]")
    assert made.problems(0, "stage=upload side=reference state=done", "sealed s3://places/team/sd_text_encoder/dump.") == []
    judged = place("target", "sides=[target]")
    assert judged.problems(0, "stage=dump side=reference state=kept", "verdict=aligned") == []
    assert list((judged.folder / "store").glob("dump.reference-*/rank0"))  # downloaded

    # What the examples for build servers type, in a workspace of its own. A variable names the service behind s3://.
    typed = {}
    for name in ("github", "gitlab"):
        (command,) = [
            text for text in list_texts(yaml.safe_load((CI / f"{name}.yml").read_text())) if text.startswith("precflow +")
        ]
        typed[tuple(shlex.split(command.partition("||")[0].replace("$STORE", store.url))[1:])] = tmp_path / name
    for words, workspace in typed.items():  # once, as long as both type the same
        workspace.mkdir()
        secrets = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        built = precflow(*words, *small, cwd=workspace, AWS_ENDPOINT_URL_S3=store.endpoint, **secrets)
        assert built.problems(0, "verdict=aligned", "report=runs/sd_text_encoder/report.html") == []
        assert (workspace / "runs" / "sd_text_encoder" / "public" / "junit.xml").is_file()

    # A third place computes nothing, and needs no dump for that.
    read = place("reader", "sides=[]")
    assert read.problems(0, "verdict=aligned") == []
    assert "stage=download" not in read.err
    assert not list((tmp_path / "reader" / "runs" / "sd_text_encoder" / "store").glob("dump.*"))

    # Nothing that was uploaded or written down has the credentials in it.
    bucket = store.open()
    texts = [bucket.cat_file(f"{store.bucket}/team/{name}") for name in store.files() if not name.endswith(".safetensors")]
    texts += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert [text[:80] for text in texts if object_store.SECRET.encode() in text or object_store.KEY.encode() in text] == []

    shards = [name for name in store.files() if "dump.reference" in name and name.endswith(".safetensors")]
    bucket.rm_file(f"{store.bucket}/team/{shards[0]}")
    torn = place("fourth", "sides=[]", "coverage.minimum=0.5", 'pairing.rules=[{reference: ["*.no"], target: ["*.none"]}]')
    assert torn.problems(3, "verdict=inconclusive") == []
    assert torn.result["verdict"]["counts"]["unreadable"] > 0
    assert json.dumps(torn.result).count("cannot be read") > 0
