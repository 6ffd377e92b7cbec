"""Canaries: a dozen secrets are given to a run in every way there is, and none is in anything that it wrote or said."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("secrets")]
CANARIES = {
    name: f"Cn{number}ry7B1rd{number}x"
    for number, name in enumerate(
        "ASCEND_AK ASCEND_SK HCCL_PWD TORCH_PASS NPU_PASSPHRASE CUDA_PAT ACL_CRED PROXY SIGNED DEBUG LOOSE "
        "API_PASSWORD SITE_TOKEN SITE_ADDRESS STORE api_key address".split()
    )
}
SURROUNDINGS = {
    **{name: CANARIES[name] for name in "ASCEND_AK ASCEND_SK HCCL_PWD TORCH_PASS NPU_PASSPHRASE CUDA_PAT ACL_CRED".split()},
    "HTTP_PROXY": f"http://ann:{CANARIES['PROXY']}@proxy.example:3128",
    "ACL_DUMP_DATA": f"https://obs.example/dump?X-Amz-Signature={CANARIES['SIGNED']}&part=1",
    "NCCL_DEBUG_FILE": f"s3://{CANARIES['DEBUG']}:{CANARIES['DEBUG']}@bucket/log",
    "NPU_UNHEARD_OF": CANARIES["LOOSE"],
}
SITE = f"""# @package _global_
site: {{name: ours, paths: {{models: "https://ann:{CANARIES["SITE_ADDRESS"]}@models.example"}}}}
target: {{variables: {{SITE_TOKEN: {CANARIES["SITE_TOKEN"]}}}}}
"""
ADDRESS = f"https://ann:{CANARIES['address']}@weights.example/a?token={CANARIES['address']}"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a working directory with a workload and a site."""
    folder = tmp_path_factory.mktemp("secrets")
    shutil.copy(Path(__file__).parent / "workloads" / "secretive.py", folder)
    (folder / "conf" / "site").mkdir(parents=True)
    (folder / "conf" / "site" / "ours.yaml").write_text(SITE)
    return folder


@pytest.fixture(scope="module")
def ran(precflow, place):
    """Return a function that runs the workload with all canaries, some of them changed."""

    def run(*words, verb=(), cold=False, **changed):
        secrets = {**CANARIES, **changed}
        given = {"api_key": secrets["api_key"], "address": ADDRESS}
        checksum = hashlib.sha256("".join(given.values()).encode()).hexdigest()
        if changed:
            checksum = hashlib.sha256((CANARIES["api_key"] + ADDRESS).encode()).hexdigest()  # the same declaration
        workload = {"model._target_": "secretive.build", "inputs._target_": "secretive.inputs", "model.checksum": checksum}
        options = [f"workload.{key}={value}" for key, value in workload.items()]
        options += [f"workload.model.{key}='{value}'" for key, value in given.items()]
        options += [f"{side}.variables.API_PASSWORD={secrets['API_PASSWORD']}" for side in ("reference", "target")]
        devices = ("reference.device=cpu", "target.device=cpu")
        folders = () if verb else ("--config-dir", "conf")
        line = [*verb, *folders, "+recipe=minilm", "+site=ours", *devices, *options, *words]
        line += ["--config-dir", "conf"] if verb else []
        options = {"recipe": "minilm", "cwd": place, "cold": cold, "PRECFLOW_TRUST": "secretive", "OMP_NUM_THREADS": "1"}
        return precflow(*line, **options, **SURROUNDINGS)

    return run


def leaks(place, *ended):
    """Return where a canary is found: in any file but those that the user wrote, and in what was said."""
    own = {place / "secretive.py", place / "conf" / "site" / "ours.yaml"}
    texts = {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file() and file not in own}
    texts |= {f"stream {number}": (one.out + one.err).encode() for number, one in enumerate(ended)}
    return [f"{name} in {file}" for file, text in texts.items() for name, secret in CANARIES.items() if secret.encode() in text]


def test_no_secret_is_in_anything_that_a_run_writes_or_says(ran, place):
    half = ran("sides=[reference]")
    assert half.code == 0, half.err
    ended = ran(cold=True)  # the target's agent and the judge have the variables of real interpreters
    assert ended.code == 0, ended.err
    written = {file.name for file in place.rglob("*")}
    assert {
        "run.json",
        "sealed.json",
        "dump.json",
        "facts.json",
        "request.json",
        "agent.log",
        "report.html",
        "junit.xml",
    } <= written
    assert leaks(place, half, ended) == []
    (log, *_) = place.glob("runs/minilm/store/dump.target-*/agent.log")
    assert "the password is (redacted)" in log.read_text()
    facts = json.loads(next(place.glob("runs/minilm/store/environment.target-*/facts.json")).read_text())["variables"]
    assert facts["ACL_DUMP_DATA"] == "https://obs.example/dump?X-Amz-Signature=(redacted)&part=1"
    assert facts["NPU_UNHEARD_OF"] == "(redacted)"
    command = json.loads((place / "runs/minilm/run.json").read_text())["runs"][-1]["command"]
    assert "'target.variables.API_PASSWORD=(redacted)'" in command


def test_another_password_makes_nothing_again(ran, place):
    planned = ran("--json", verb=("plan",), api_key="An0therK3yEntirely", API_PASSWORD="An0therPassw0rd")
    assert planned.code == 0, planned.err
    assert {row["state"] for row in json.loads(planned.out)["stages"]} == {"kept"}
    assert leaks(place, planned) == []


def test_no_secret_is_in_what_a_failure_leaves(ran, place):
    ended = ran("workload.model.how=raise", "sides=[reference]")
    assert ended.code == 2
    assert "ValueError: no access to https://(redacted)@weights.example/a?token=(redacted) with (redacted)" in ended.said
    refused = ran(f"store=s3://AK:{CANARIES['STORE']}@bucket/x")
    assert refused.code == 2
    shown = ran(verb=("show",))
    assert shown.code == 0
    assert leaks(place, ended, refused, shown) == []
