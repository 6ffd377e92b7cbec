"""Runs `precflow` and its agents in processes forked from one that has imported everything already.

A cold run of two sides spends most of its time importing torch and transformers three times. A test that is not about that
asks a `Warm` server instead. The server (this file, run as a program) imports the libraries once and forks for each command:

    pytest ---socket---> server ---fork---> precflow ...                (the judge)
                                                +---fork---> spare      (becomes the reference's agent)
                                                +---fork---> spare      (becomes the target's agent)

A judge is forked from the server before the server has done anything, and makes its spares before it has begun itself, so
each process starts with nothing of another run in it but imported modules. A judge that needs more agents than it has spares
asks the server for them, as a test does whose own process is the judge. What an interpreter reads as it starts (PYTHONPATH,
OMP_NUM_THREADS, another interpreter, a launcher) cannot be had of a fork: such a judge or agent is started as ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

AT_START = ("PYTHON", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "LD_", "LC_", "LANG", "TORCH_", "MALLOC_")  # read by interpreters
AT_LIBERTY = {"PYTHONUNBUFFERED", "PYTHONHASHSEED", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_PASS"}  # the last means nothing
HASH_SEED = "1234"  # determinism.seed of the recipes: agents of another seed are started as ever
OF_SERVER = {
    "PYTHONHASHSEED": HASH_SEED,
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pandas imports pyarrow where it is, and a fork has no such thread
}
LIBRARIES = (
    "torch",
    "torch.utils._python_dispatch",
    "transformers.models.clip.modeling_clip",
    "transformers.models.bert.modeling_bert",
    "transformers",
    "diffusers.models.unets.unet_2d_condition",
    "diffusers.models.autoencoders.autoencoder_kl",
    "diffusers.schedulers.scheduling_ddim",
    "diffusers.pipelines.stable_diffusion.safety_checker",
    "numba",
    "pandas",
    "s3fs",
)
KILLED_AT = "KILLED_AT"  # variable with the moment at which an agent is killed, see `_die_at`
_LONGEST = 1 << 20  # bytes of a message
COUNT_FROZEN = gc.get_freeze_count


def some_are_frozen():
    """Stand in for ``gc.get_freeze_count``: counting half a million objects takes 20 ms, and each capture asks for any."""
    return 1


class Warm:
    """The tests' end: starts the server at the first command; the server ends when all tests' ends are closed.

    Workers of pytest-xdist that name one file share a server: making two takes seconds. Each holds open the pipe that is the
    server's stdin, so that the server sees its end when the last of them is done.
    """

    def __init__(self, shared=None):
        self.folder = Path(_make_folder()) if shared is None else _find_shared_folder(shared)
        self.address = self.folder / "socket"
        self._alive = os.open(self.folder / "alive", os.O_RDWR)  # as a reader too: opening it does not wait for the server
        self._started, self._server = False, None

    def serves(self, environment):
        """Return whether a fork can stand in for an interpreter started with these variables."""
        return _at_start(environment) == _at_start(os.environ)

    def start(self):
        """Start the server, unless it runs, and wait until it answers."""
        if self._started:
            return
        with _locked(self.folder / "lock"):
            if not self.address.exists():
                alive = os.open(self.folder / "alive", os.O_RDONLY)
                self._server = subprocess.Popen(
                    [sys.executable, __file__, str(self.address)],
                    env={**os.environ, **OF_SERVER},
                    stdin=alive,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                os.close(alive)
                said = self._server.stdout.readline()
                assert said == b"ready\n", "the warm server did not start; what it said is on stderr"
        self._started = True

    def popen(self, words, *, cwd, env, out, err, module="precflow"):
        """Start ``python -m MODULE WORDS``, the judge or ``precflow.agent``; ``python WORDS`` where the module is ``""``."""
        self.start()
        return Started(self.address, words, cwd=cwd, env=env, files=(_null(), out, err), module=module)

    def agents(self):
        """Return what `precflow.sides.launch` may use in place of `subprocess`: its agents are forks of the server."""
        return _SubprocessOfServer(self)

    def run(self, words, *, cwd, env, timeout, module="precflow"):
        """Run ``python -m MODULE WORDS`` to its end and return exit code, stdout and stderr."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = self.popen(words, cwd=cwd, env=env, out=out.fileno(), err=err.fileno(), module=module)
            code = started.wait(timeout)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8").replace("\r\n", "\n"))
        return code, *texts

    def shim(self):
        """Return a folder with commands that a shell may call: ``precflow``, and ``python``, which forks for scripts alone."""
        self.start()
        folder = self.folder / f"bin-{os.getpid()}"  # workers that share the server write at any time
        folder.mkdir(exist_ok=True)
        for name, module in (("precflow", "precflow"), ("python", "")):
            text = _SHIM.format(file=__file__, address=str(self.address), module=module)
            (folder / name).write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
            (folder / name).chmod(0o755)
        return folder

    def close(self):
        """Do without the server; who started it waits until everybody does, and it has ended with what it forked."""
        os.close(self._alive)
        if self._server is not None:
            self._server.wait()
            self._server.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _find_shared_folder(file):
    """Return the folder that a file names; whoever asks first makes it."""
    with _locked(file.with_suffix(".lock")):
        if not file.exists():
            file.write_text(_make_folder(), encoding="utf-8")
    return Path(file.read_text(encoding="utf-8"))


def _make_folder():
    folder = tempfile.mkdtemp(prefix="warm-")
    os.mkfifo(Path(folder) / "alive")
    return folder


@contextlib.contextmanager
def _locked(path):
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_SHIM = """
import importlib.util, os, sys
if not {module!r} and not sys.argv[1].endswith(".py"):  # python -c, python -m
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
spec = importlib.util.spec_from_file_location("warm", {file!r})
warm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warm)
given = dict(cwd=os.getcwd(), env=dict(os.environ), files=(0, 1, 2), module={module!r})
sys.exit(warm.Started({address!r}, sys.argv[1:], **given).wait(None))
"""


class Started:
    """A command that the server runs: its process id, and its exit code once it has ended."""

    def __init__(self, address, words, *, cwd, env, files, module="precflow", parent=None):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(address))
        job = {"words": [str(word) for word in words], "cwd": str(cwd), "env": env, "module": module, "parent": parent}
        job["address"] = str(address)
        _send(self._socket, job, files)
        self.pid = self.read_number()

    def wait(self, timeout):
        """Return the exit code, negative for a signal as `subprocess` has it; a command that takes longer is killed."""
        if not self.ends_within(timeout):
            self._socket.close()  # the server kills what nobody waits for
            raise subprocess.TimeoutExpired("precflow", timeout)
        code = self.read_number()
        self._socket.close()
        return code

    def ends_within(self, seconds):
        """Tell whether the command ends in that time; ``None`` waits for good."""
        return _is_readable_within(self._socket, seconds)

    def read_number(self):
        """Read a line byte by byte, so that the next one stays where `ends_within` sees it."""
        digits = b""
        while not digits.endswith(b"\n"):
            byte = self._socket.recv(1)
            if not byte:
                raise ConnectionError("the warm server has ended")
            digits += byte
        return int(digits)


def _null():
    if not _NULL:
        _NULL.append(os.open(os.devnull, os.O_RDWR))
    return _NULL[0]


_NULL: list[int] = []


def _at_start(environment):
    return {name: value for name, value in environment.items() if name.startswith(AT_START) and name not in AT_LIBERTY}


def _send(connection, message, files):
    data = json.dumps(message).encode()
    assert len(data) < _LONGEST
    socket.send_fds(connection, [len(data).to_bytes(8, "little")], list(files))
    connection.sendall(data)


def _receive(connection):
    """Return a message and the files sent with it; ``None`` where the other end has closed."""
    head, files, *_ = socket.recv_fds(connection, 8, 3)
    if not head:
        return None, []
    size, data = int.from_bytes(head, "little"), b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return json.loads(data), files


# ------------------------------------------------------------------ the server's end


def serve(address):
    """Fork a judge for each message until stdin is closed."""
    os.chdir(Path(address).parent)  # no shipped file is below it, so what is read is cached under the names that runs use
    _import_everything(Path(address).parent)
    if problem := _other_threads():
        sys.exit(problem)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    told, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _adopt_orphans()
    watched = selectors.DefaultSelector()
    for source in (0, told, listener):
        watched.register(source, selectors.EVENT_READ)
    judges = {}  # process id -> connection of who waits for it
    gc.freeze()  # or each child copies the pages of every object as it collects garbage
    gc.get_freeze_count = some_are_frozen
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in watched.select():
            if key.fileobj == 0:
                Path(address).unlink()  # who comes after the last one starts another server
                for pid in judges:
                    os.kill(pid, signal.SIGKILL)
                return
            if key.fileobj == told:
                os.read(told, 4096)
                _reap(judges, watched)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                pid = _fork(connection, [*judges.values(), connection, listener], (told, tells), watched)
                judges[pid] = connection
                connection.sendall(b"%d\n" % pid)
                watched.register(connection, selectors.EVENT_READ)
            else:
                _kill_unwanted(key.fileobj, judges, watched)


def _fork(connection, sockets, pipes, watched):
    """Return the process id of a judge, after reading from the connection what it is to do."""
    job, files = _receive(connection)
    assert not _other_threads(), _other_threads()
    pid = os.fork()
    if pid == 0:  # the child forgets what belongs to the server
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        watched.close()
        for each in sockets:
            each.close()
        for file in pipes:
            os.close(file)
        _judge(job, files)
    for file in files:
        os.close(file)
    return pid


def _other_threads():
    """Say which threads this process has besides its own, ``""`` for none: a lock that one holds is held for ever in a fork."""
    names = [(task / "comm").read_text(encoding="utf-8").strip() for task in Path("/proc/self/task").iterdir()]
    if len(names) == 1:
        return ""
    return f"it would fork with {len(names)} threads ({', '.join(names)}): what has it imported that starts one?"


def _kill_unwanted(connection, judges, watched):
    """Kill the judge of a connection whose other end has gone."""
    watched.unregister(connection)
    for pid in [pid for pid, other in judges.items() if other is connection]:
        os.kill(pid, signal.SIGKILL)


def _import_everything(answers):
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    for module in pkgutil.walk_packages(importlib.import_module("precflow").__path__, "precflow."):
        if not module.name.endswith("precflow.__main__"):
            importlib.import_module(module.name)
    importlib.import_module("precflow.sides.interpreter").subprocess = OneAnswer(answers)
    conf = importlib.import_module("precflow.resources").directory("conf")
    rules = importlib.import_module("precflow.diagnosis.advice.rule_files").load_rules([conf / "rule"])
    templates = importlib.import_module("precflow.diagnosis.advice.rule_templates")
    for rule in rules:
        for condition in filter(None, (rule.when, rule.likely_when, rule.certain_when, *(each.when for each in rule.against))):
            templates.compile_test(condition)
        for text in (rule.title, rule.where, rule.why, rule.fix, rule.try_it, rule.look):
            templates.compile_text(text)
    importlib.import_module("precflow.diagnosis.advice.whatif_files").load_whatifs([conf / "whatif"])
    pages = importlib.import_module("precflow.report.templating").load_templates()
    for name in pages.list_templates(extensions=["j2"]):
        pages.get_template(name)
    language = importlib.import_module("precflow.language")
    for _, _, source, *_ in language.load("zh")._patterns:
        language._compile(source)
    _fill_caches()


def _fill_caches():
    """Do once what each judge and agent would do again: read what is shipped, and list what is installed."""
    compose = importlib.import_module("precflow.config.composition").compose
    faults = ("reorder", "layernorm_eps", "mask_dropped", "scaled_linear", "nan_in_layer")
    chosen = [("+recipe=sd_text_encoder", f"+emulate={fault}") for fault in faults]
    chosen += [(f"+recipe={name}",) for name in ("sd_text_encoder", "minilm", "compare_dumps", "script")]
    chosen += [(f"+recipe={name}", "capture=escalating") for name in ("sd_text_encoder", "minilm")]
    with contextlib.suppress(importlib.import_module("precflow.errors").PrecflowError):  # of the user's own files
        for words in chosen:  # Hydra's order of the files is kept for each
            compose(words, complete=False)
    for of_agent in (True, False):
        importlib.import_module("precflow.run.steps").digest_own_code(of_agent=of_agent)
    pack = importlib.import_module("precflow.sides.pack")
    sources = pack._list_sources()
    pack._list_sources = lambda: sources  # or each start of an agent reads two hundred files
    importlib.import_module("precflow.environment.variables").find_misspelt(os.environ)
    list_packages_once()
    importlib.import_module("precflow.agent.session.environment").list_packages()


def list_packages_once():
    """Have this process, and those forked from it, read once what is installed: every dump asks for it."""
    environment = importlib.import_module("precflow.agent.session.environment")
    list_packages, known = environment.list_packages, {}

    def list_known_packages():
        folders = [folder for folder in sys.path if any(Path(folder).glob("*-info"))]
        asked = (importlib.metadata.distributions, *folders)
        if asked not in known:
            known[asked] = list_packages()
        return dict(known[asked])

    environment.list_packages = list_known_packages


def _adopt_orphans():
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: agents of a judge that was killed end as our children


def _reap(judges, watched):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = judges.pop(pid, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            with contextlib.suppress(KeyError):
                watched.unregister(connection)
            connection.close()


def _become(files, environment, cwd, name):
    """Take on streams, variables and directory, as an interpreter that is started does."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[0] = name
    sys.path[0] = cwd if name.endswith("__main__.py") else name  # of a server it is the folder of this file


def _judge(job, files):
    """Be ``python -m precflow``, with some spare processes at hand that become its agents."""
    from precflow.sides import launch
    from precflow.verbs import is_verb

    words, module = job["words"], job["module"]
    if job["parent"] is not None:
        _agent_of_test(job, files)
    runs = 2 * ("capture=escalating" in words)
    without = module != "precflow" or (words and is_verb(words[0]) and words[0] != "plan")
    spares = [] if without else _spares(2 + runs, files)
    launch.subprocess = _Subprocess(spares, job["address"])
    if not module:
        _become(files, job["env"], job["cwd"], str(Path(job["cwd"]) / words[0]))
        sys.path[0] = str(Path(sys.argv[0]).parent)
        sys.argv[1:] = words[1:]
        _leave(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
    _become(files, job["env"], job["cwd"], importlib.util.find_spec(module + ".__main__").origin)
    sys.argv[1:] = words

    def run():
        sys.modules.pop(f"{module}.__main__", None)  # or runpy warns that it has been imported
        runpy.run_module(module, run_name="__main__")

    _leave(run)


def _agent_of_test(job, files):
    """Be the agent of a process that is not its parent."""
    os.setsid()  # a group of its own, which the judge ends
    agent, getppid = os.getpid(), os.getppid  # the server is its parent, and it would take its judge for dead
    os.getppid = lambda: job["parent"] if os.getpid() == agent else getppid()
    _be_agent(job["words"], job, files)


def _leave(run):
    """End this process as Python would, but for taking its modules apart."""
    code = 0
    try:
        kept = run()  # noqa: F841  # the names of a script, or they go here: a process group may wait for ever as it goes
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _spares(count, files):
    """Return the processes that wait to become agents: (process id, socket); the judge's files are not theirs."""
    spares = []
    for _ in range(count):
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            here.close()
            for _, other in spares:
                other.close()
            for file in files:
                os.close(file)
            os.setsid()  # a group of its own, which the judge ends
            _agent(there)
        there.close()
        spares.append((pid, here))
    return spares


def _agent(connection):
    """Wait, then be ``python precflow-agent.pyz ...``."""
    job, files = _receive(connection)
    connection.close()
    if job is None:  # the judge has ended without need of this process
        os._exit(0)
    _be_agent(job["words"], job, files)


def _be_agent(words, job, files):
    """Be the command line ``words``, the first of which are interpreter and packed agent."""
    from precflow.agent import __main__ as door

    _become(files, job["env"], job["cwd"], words[1])
    if moment := os.environ.pop(KILLED_AT, ""):
        _die_at(*moment.split(":"))
    sys.argv[1:] = words[2:]
    sys.stdout.reconfigure(write_through=True)
    sys.stderr.reconfigure(write_through=True)
    _leave(lambda: sys.exit(door.main(sys.argv[1:])))


def _die_at(stage, action, phase):
    """Have this agent killed, as the system does where memory is short, in a phase of what one stage asks of it.

    Args:
        stage: Name of the instance that asks.
        action: As the request says.
        phase: ``first``: before it has said anything. ``between``: before its second word, ``last``: after the last one, when
            the result lies there.
    """
    from precflow.agent import events, worker

    run, send = worker.run, events.Events._send
    working = []

    def run_and_die(request, said):
        if f"/.making/{stage}-" in request.output and request.action == action:
            working.append(0)
            if phase == "first":
                os.kill(os.getpid(), signal.SIGKILL)
        run(request, said)
        if working and phase == "last":
            os.kill(os.getpid(), signal.SIGKILL)

    def send_or_die(self, event):
        if working and phase == "between":
            if working[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            working[0] += 1
        send(self, event)

    worker.run, events.Events._send = run_and_die, send_or_die


class OneAnswer:
    """The module `subprocess`, as `precflow.sides.interpreter` sees it here: this interpreter answers a question once.

    What is installed does not change while tests run, and each stage of each run asks for it, in a tenth of a second. Answers
    are files of one folder, so that processes which were forked before a question was asked find its answer too.
    """

    def __init__(self, folder):
        self._folder = Path(folder)

    def __getattr__(self, name):
        return getattr(subprocess, name)

    def run(self, command, **options):
        if command[0] != sys.executable or "[]" not in command:  # another one, or folders of PYTHONPATH besides
            return subprocess.run(command, **options)
        answer = self._folder / f"answer-{hashlib.sha256(json.dumps(command).encode()).hexdigest()}"
        if not answer.exists():
            done = subprocess.run(command, **options)
            written = answer.with_suffix(f".{os.getpid()}")
            written.write_text(done.stdout, encoding="utf-8")
            written.replace(answer)
        return subprocess.CompletedProcess(command, 0, answer.read_text(encoding="utf-8"), "")


class _Subprocess:
    """The module `subprocess`, as `precflow.sides.launch` sees it in a judge: agents are its spares, or forks of the server."""

    def __init__(self, spares, address):
        self._spares, self._address = spares, address

    def __getattr__(self, name):
        return getattr(subprocess, name)

    def Popen(self, words, **options):  # noqa: N802
        same = words[0] == sys.executable and _at_start(options["env"]) == _at_start(os.environ)
        agent = len(words) > 2 and words[1].endswith(".pyz") and options["env"].get("PYTHONHASHSEED") == HASH_SEED
        if not (same and agent):
            return subprocess.Popen(words, **options)
        if not self._spares:
            return _AgentOfServer(self._address, words, **options)
        return _Forked(*self._spares.pop(0), words, **options)


class _Forked:
    """What `subprocess.Popen` offers, of a spare."""

    def __init__(self, pid, connection, words, *, env, stdin, stdout, stderr, start_new_session):
        assert stdout == subprocess.PIPE
        assert start_new_session
        self.pid, self.returncode, self.stdin = pid, None, None
        self._reaping = threading.Lock()  # a run that fails ends the agent of another thread, which waits for it too
        theirs, self.args = _null(), words
        if stdin == subprocess.PIPE:
            theirs, ours = os.pipe()
            self.stdin = os.fdopen(ours, "wb", buffering=0)
        read, write = os.pipe()
        self.stdout = os.fdopen(read, "rb")
        _send(connection, {"words": words, "env": dict(env), "cwd": str(Path.cwd())}, (theirs, write, stderr.fileno()))
        connection.close()
        os.close(write)
        if theirs != _null():
            os.close(theirs)

    def poll(self):
        with self._reaping:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout=None):
        with contextlib.suppress(ProcessLookupError):  # another thread has reaped it
            if self.returncode is None and not _ends_within(self.pid, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()


class _SubprocessOfServer:
    """The module `subprocess`, as `precflow.sides.launch` sees it in a test that is the judge: agents are forks of a server.

    Whatever is not a plain agent of this interpreter is started as ever: one behind a launcher, say.
    """

    def __init__(self, server):
        self._server = server

    def __getattr__(self, name):
        return getattr(subprocess, name)

    def Popen(self, words, **options):  # noqa: N802
        is_agent = words[0] == sys.executable and len(words) > 2 and words[1].endswith(".pyz")
        if not (is_agent and self._server.serves(options["env"])):
            return subprocess.Popen(words, **options)
        self._server.start()
        return _AgentOfServer(self._server.address, words, **options)


class _AgentOfServer:
    """What `subprocess.Popen` offers, of an agent that a server has forked."""

    def __init__(self, address, words, *, env, stdin, stdout, stderr, start_new_session):
        assert stdout == subprocess.PIPE
        assert start_new_session
        self.returncode, self.stdin, self.args = None, None, words
        self._reaping = threading.Lock()  # as above
        theirs = _null()
        if stdin == subprocess.PIPE:
            theirs, ours = os.pipe()
            self.stdin = os.fdopen(ours, "wb", buffering=0)
        read, write = os.pipe()
        self.stdout = os.fdopen(read, "rb")
        self._started = Started(
            address,
            words,
            cwd=Path.cwd(),
            env=dict(env),
            files=(theirs, write, stderr.fileno()),
            module="precflow.agent",
            parent=os.getpid(),
        )
        self.pid = self._started.pid
        os.close(write)
        if theirs != _null():
            os.close(theirs)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and not self._started.ends_within(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._reaping:
            if self.returncode is None:
                self.returncode = self._started.read_number()
        return self.returncode


def _ends_within(pid, seconds):
    descriptor = os.pidfd_open(pid)
    try:
        return _is_readable_within(descriptor, seconds)
    finally:
        os.close(descriptor)


def _is_readable_within(file, seconds):
    with selectors.DefaultSelector() as watched:
        watched.register(file, selectors.EVENT_READ)
        return bool(watched.select(seconds))


if __name__ == "__main__":
    serve(sys.argv[1])
