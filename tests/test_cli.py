"""The door: what leaves with which exit code, and what is said."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from precflow import cli
from precflow.errors import ConfigError, PrecflowError


@pytest.fixture(autouse=True)
def quiet_place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("PRECFLOW_RECIPES", "PRECFLOW_SITES", "PRECFLOW_TRUST", "PRECFLOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def runs(monkeypatch):
    """Put a runner in place that remembers what it ran and leaves with the codes it is given."""
    ran, codes, shown = [], [], []

    def run(composed, *, command):
        ran.append((composed, command))
        code = codes.pop(0) if codes else 0
        if isinstance(code, BaseException):
            raise code
        verdict = {1: "misaligned", 3: "inconclusive"}.get(code)
        furthest = "12 times its limit" if code == 1 else ""
        report = f"report {len(ran)}"
        return types.SimpleNamespace(
            verdict=verdict,
            exit_code=code,
            folder="runs/x",
            report=report,
            furthest=furthest,
            worst=12.0,
            finding="",
            finding_shown="",
        )

    def publish(outcome):
        shown.append(outcome.report)

    runner = types.SimpleNamespace(run=run, publish=publish, publish_job=lambda _: None)
    monkeypatch.setitem(sys.modules, "precflow.run.runner", runner)
    return types.SimpleNamespace(ran=ran, codes=codes, shown=shown)


def test_no_arguments_say_how_to_begin(capsys):
    assert cli.main([]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "+recipe=sd_text_encoder" in said.err
    assert all(f"precflow {verb}" in said.err for verb in cli.list_verbs())


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "precflow 0.1.0\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_runs_exit_code_is_ours(runs, code):
    runs.codes.append(code)
    assert cli.main(["+recipe=sd_text_encoder", "tolerance.max_rel_error=2^-10"]) == code
    ((composed, command),) = runs.ran
    assert composed.config.tolerance.max_rel_error == 2.0**-10
    assert command == "precflow +recipe=sd_text_encoder 'tolerance.max_rel_error=2^-10'"


@pytest.mark.parametrize(("codes", "worst"), [((0, 1, 0), 1), ((0, 3, 0), 3), ((3, 1, 0), 1), ((1, 2, 3), 2), ((0, 0, 0), 0)])
def test_of_several_jobs_every_one_runs_and_the_worst_counts(runs, capsys, codes, worst):
    runs.codes.extend(codes)
    assert cli.main(["-m", "+recipe=sd_text_encoder", "target.dtype=float16,bfloat16,float32"]) == worst
    assert [composed.config.target.dtype for composed, _ in runs.ran] == ["float16", "bfloat16", "float32"]
    assert f"3 jobs, exit {worst}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        ((1, 0, 0), ["report 1"]),
        ((0, 3, 0), ["report 2"]),
        ((3, 1, 1), []),
        ((0, 0, 0), []),
        ((1, PrecflowError("x"), 0), ["report 1"]),
        ((0, 3, PrecflowError("x")), ["report 2"]),
        ((0, 0, PrecflowError("x")), ["report 1"]),
        ((PrecflowError("x"), PrecflowError("x"), PrecflowError("x")), []),
    ],
)
def test_of_several_jobs_in_one_folder_the_worst_has_the_report(runs, codes, shown):
    runs.codes.extend(codes)
    cli.main(["-m", "+recipe=sd_text_encoder", "target.dtype=float16,bfloat16,float32"])
    assert runs.shown == shown


def test_a_job_without_a_verdict_is_not_called_aligned(runs, capsys):
    runs.codes.extend([0, 1])
    assert cli.main(["-m", "+recipe=sd_text_encoder", "sides=[reference]", "target.dtype=float16,float32"]) == 1
    said = capsys.readouterr().err
    rows = [" ".join(row.split()) for row in said.split("2 jobs, exit 1\n")[1].splitlines()[:2]]
    assert rows == [
        "1 exit 0 done, not judged target.dtype=float16",
        "2 exit 1 misaligned 12 times its limit target.dtype=float32",
    ]
    assert " aligned" not in said


def test_each_job_is_told_by_its_number_and_exit_code(runs, capsys):
    runs.codes.extend([0, PrecflowError("no disk"), 3])
    assert cli.main(["-m", "+recipe=sd_text_encoder", "target.dtype=float16,bfloat16,float32"]) == 2
    rows = capsys.readouterr().err.split("3 jobs, exit 2\n")[1].splitlines()
    assert [row.split() for row in rows[:3]] == [
        ["1", "exit", "0", "done,", "not", "judged", "target.dtype=float16"],
        ["2", "exit", "2", "could", "not", "be", "done", "target.dtype=bfloat16"],
        ["3", "exit", "3", "inconclusive", "target.dtype=float32"],
    ]


def test_a_job_that_cannot_be_done_does_not_stop_the_others(runs, capsys):
    runs.codes.extend([PrecflowError("the disk is full"), 0])
    assert cli.main(["-m", "+recipe=sd_text_encoder", "target.dtype=float16,float32"]) == 2
    assert len(runs.ran) == 2
    assert "the disk is full" in capsys.readouterr().err


def test_every_job_is_checked_before_the_first_one_runs(runs):
    assert cli.main(["-m", "+recipe=sd_text_encoder", "target.dtype=float16,flaot32"]) == 2
    assert runs.ran == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PrecflowError("no npu here", next_step="target.device=emulated"), "no npu here\n   target.device=emulated"),
        (KeyboardInterrupt(), "the same command goes on from here"),
        (ZeroDivisionError("oops"), "precflow itself failed: ZeroDivisionError: oops"),
    ],
)
def test_whatever_stops_a_run_is_two_and_no_traceback(runs, capsys, error, said):
    runs.codes.append(error)
    assert cli.main(["+recipe=sd_text_encoder"]) == 2
    written = capsys.readouterr().err
    assert said in written
    assert "Traceback" not in written


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_verdict(closed):
    command = f"{sys.executable} -m precflow nosuch {closed}"
    assert subprocess.run(command, shell=True, check=False).returncode == 2  # 1 would say misaligned
    assert subprocess.run(command.replace("nosuch", "ls"), shell=True, check=False, stdout=subprocess.PIPE).returncode == 0


def test_tracebacks_are_there_for_those_who_ask(runs, capsys, monkeypatch):
    monkeypatch.setenv("PRECFLOW_DEBUG", "1")
    runs.codes.append(ZeroDivisionError("oops"))
    assert cli.main(["+recipe=sd_text_encoder"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["valdate"], "Did you mean  validate ?"),
        (["sd_text_encodr"], "precflow +recipe=sd_text_encoder"),
        (["sd_text_encoder"], "is a recipe, not a verb\n precflow +recipe=sd_text_encoder"),
        (["--foo"], "no such option"),
        (["+recipe=nope"], "no recipe of this name"),
        (["+recipe=sd_text_encoder", "sd_text_encoder"], "is a recipe: +recipe=sd_text_encoder"),
        (["+recipe=sd_text_encoder", "target.devise=npu"], "target.device"),
        (["+recipe=sd_text_encoder", "tolerance.relative_l2=5parsec"], "got `5parsec`"),
        (["+recipe=sd_text_encoder", "determinism.repeat=3"], "expected true or false"),
        (["+recipe=minilm"], "minilm_workload.build is not trusted"),
        (["+recipe=sd_text_encoder", "--cfg", "nothing"], "invalid choice"),
        (["ls", "--nothing"], "no such option: --nothing"),
    ],
)
def test_what_cannot_be_done_is_two_and_says_why(capsys, arguments, said):
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_config_dir_may_stand_before_the_verb(capsys, tmp_path):
    (tmp_path / "team" / "recipes").mkdir(parents=True)
    (tmp_path / "team" / "recipes" / "ours.yaml").write_text("about: {title: ours alone}")
    assert cli.main(["--config-dir", "team", "ls"]) == 0
    assert "ours alone" in capsys.readouterr().out
    assert cli.main(["show", "ours", "--config-dir", "team"]) == 0


def test_json_errors_are_one_object_on_stdout(capsys):
    assert cli.main(["show", "nope", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["problems"][0]["key"] == "+recipe=nope"


@pytest.mark.parametrize("verb", ["ls", "show", "cp", "validate", "plan", "open", "agent"])
def test_every_verb_has_help(capsys, verb):
    assert cli.main([verb, "--help"]) == 0
    assert f"precflow {verb}" in capsys.readouterr().out


def test_a_reader_who_leaves_is_no_failure():
    done = subprocess.run(f"{sys.executable} -m precflow ls metric | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.fixture
def unusable(tmp_path):
    """Return a command that prints an answer and means exit 2."""
    (tmp_path / "bad.yaml").write_text("capture: {scope: []}\n")
    return ["validate", "bad.yaml", "--json"]


@pytest.mark.parametrize("place", ["a reader who left", "a closed stream"])
def test_the_exit_code_is_that_of_the_answer_whoever_reads_it(unusable, place, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        if place == "a closed stream":
            os.close(writing)
            os.dup2(os.open(os.devnull, os.O_RDONLY), writing)  # a number that cannot be written to
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(unusable) == 2
        assert cli.main(["ls", "metric"]) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_an_answer_that_did_not_fit_on_its_disk_is_no_answer(capsys, monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(["ls", "metric"]) == 2
    assert "the answer could not be written to stdout: No space left on device" in capsys.readouterr().err


def test_nobody_who_reads_what_is_said_changes_no_code(unusable, monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert cli.main(["valdate"]) == 2
        assert cli.main(["validate", "sd_text_encoder"]) == 0


def test_behind_a_closed_pipe_a_shell_sees_the_code_of_the_answer(unusable):
    """The real thing, once: Python writes its buffers at its end, and leaves with 120 where that fails."""
    precflow = f"{sys.executable} -m precflow"
    script = f"set -o pipefail; {precflow} {' '.join(unusable)} | true; echo $?; {precflow} ls metric > /dev/full; echo $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2"]
    assert done.stderr.strip() == "the answer could not be written to stdout: No space left on device"


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "+recipe=sd_text_encoder", "target.\x1b[31mred=1"],
        ["validate", "+recipe=sd_text_encoder", "target.dtype=\x1b]0;title\x07"],
        ["validate", "+recipe=sd_text_encoder", "target.variables.\u202eA=1", "target.dtype=\u202efp16"],
        ["show", "+recipe=sd_text_encoder", "target.variables.A=\x1b[2J\u2067"],
        ["show", "+recipe=sd_text_encoder", "target.variables.A=\x1b[2J\u2067", "--json"],
        ["ls", "\x1b[2J"],
        ["ls", "--\x1b[2J"],
        ["inspect", "\x1b[2Jnowhere"],
        ["convert", "\x9b2Jnowhere", "\x1b[2J", "--to", "\x1b[2J"],
        ["\x1b[2J"],
        ["+recipe=\x1b[2J\u202e"],
        ["--\x1b[2J"],
        ["+recipe=sd_text_encoder", "--cfg", "\x1b[2J"],
    ],
)
def test_nothing_that_was_typed_can_act_on_a_terminal(words, capsys):
    cli.main(words)
    said = capsys.readouterr()
    assert [letter for letter in said.out + said.err if not letter.isprintable() and letter != "\n"] == []


def test_nobody_writes_past_the_one_door():
    package = Path(cli.__file__).parent
    allowed = {"streams.py"}  # and what holds the text of programs that run elsewhere, below
    files = [file for file in package.rglob("*.py") if "agent" not in file.relative_to(package).parts[:1]]
    past = re.compile(r"sys\.(stdout|stderr)\.write|(?<![.\w])print\(")
    found = [
        f"{file.name}:{number}"
        for file in files
        if file.name not in allowed and file.name not in {"pack.py", "interpreter.py", "notebook.py"}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if past.search(line)
    ]
    assert found == []


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from precflow.cli import main; main(['ls']);"
        "print([name for name in ('torch', 'hydra', 'omegaconf', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_a_terminal_cannot_show_does_not_stop_the_door():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "precflow", "+recipe=一只猫"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "no recipe of this name" in done.stderr


def test_worst_of_nothing_is_nothing():
    assert cli.worst([]) == 0


def test_guarded_passes_codes_on():
    def refuse():
        raise ConfigError("no")

    assert cli.guarded(lambda: 3) == 3
    assert cli.guarded(refuse) == 2


@pytest.mark.parametrize("verb", cli.list_verbs())
def test_every_verb_is_completed(verb, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", f"precflow {verb[:-1]}")
    assert cli.main(["-sc", "query=bash"]) == 0
    assert verb in capsys.readouterr().out.split()


LONG = "层" * 100


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", LONG],
        ["compare", LONG, LONG, "--json"],
        ["plan", "+recipe=sd_text_encoder", f"runs={LONG}"],
        ["plan", "+recipe=sd_text_encoder", f"store={LONG}"],
        ["convert", LONG, "a", "--to", "npy"],
    ],
    ids=["inspect", "compare", "runs", "store", "convert"],
)
def test_names_beyond_what_a_file_may_be_called_are_explained(words, capsys):
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "300 bytes are too long for the name of a file or folder: 层" in said
    assert "itself failed" not in said
