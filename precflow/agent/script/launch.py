"""Runs a script as ``python script.py`` would, with its output in a file of its own."""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import importlib.util
import os
import runpy
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping

from precflow.agent.capture.wrappers import compile_nothing
from precflow.agent.contract import DIGEST_SIZE, OUTPUT_FILE, OUTPUT_OF_RANK, script_module
from precflow.agent.failures import AgentError
from precflow.agent.ranks import rank_of
from precflow.agent.request import runs_eagerly
from precflow.agent.session import determinism, garbage
from precflow.agent.session.failed_call import describe_failure
from precflow.agent.session.user_code import describe_error

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.request import Request
    from precflow.agent.session.random_numbers import RandomNumbers

_UNNAMED = "_"  # the key of words that stand without a name
_PRINTED = "what it printed is in %s" % OUTPUT_FILE
_TRANSFER = "transfer_to_npu"
_INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages


def command_words(arguments: Mapping[str, Any]) -> List[str]:
    """Return the arguments of a recipe as words of a command line.

    ``true`` is a bare flag; ``false`` and ``null`` take an inherited one away. Words without a name are listed under ``_``.

    >>> command_words({"lr": "1e-4", "bf16": True, "debug": False, "layers": [1, 2], "v": 3, "_": ["train"]})
    ['train', '--lr', '1e-4', '--bf16', '--layers', '1', '2', '-v', '3']
    """
    unnamed = arguments.get(_UNNAMED, [])
    words = [str(each) for each in (unnamed if isinstance(unnamed, (list, tuple)) else [unnamed])]
    for name, value in arguments.items():
        if value is None or value is False or name == _UNNAMED:
            continue
        words.append(("--" if len(name) > 1 else "-") + name)
        if value is not True:
            words += [str(each) for each in (value if isinstance(value, (list, tuple)) else [value])]
    return words


class Stopped(SystemExit):
    """Ends the script after the last step that is looked at.

    No ``except Exception`` catches it, ``finally`` blocks run, and a process that it ends has the exit code 0.
    """


class Stopper:
    """Ends a script, again and again where it does not let itself be ended."""

    def __init__(self) -> None:
        self._stops = 0

    def stop(self) -> None:
        """End the script.

        Raises:
            Stopped: The first two times. A bare ``except:`` in a loop of the script catches that; then the process ends.
        """
        self._stops += 1
        if self._stops > 2:
            sys.stdout.flush()
            os._exit(0)
        raise Stopped(0)


def moves_draws(request: Request, device: Device) -> bool:
    """Tell whether random numbers or dropout are changed wherever they occur: a function mode is on for the whole run then."""
    settings = request.determinism
    return (settings.random_numbers == "cpu" and device.name != "cpu") or settings.dropout == "removed"


@contextmanager
def surroundings(request: Request, device: Device, numbers: RandomNumbers) -> Iterator[None]:
    """Hold everything that a script runs in, watched or plain: seeds, its output, no compiler, its migration, moved draws.

    Args:
        request: The request.
        device: The started device.
        numbers: The mode that draws random numbers; it has begun to list or move them, and may be stopped inside.
    """
    rank = rank_of(request)
    output = os.path.join(request.output, OUTPUT_FILE if not rank else OUTPUT_OF_RANK % rank)
    determinism.reseed(request.determinism, device)
    with garbage.collect_rarely(), redirected_output(output), compile_nothing(unless=not runs_eagerly(request)):
        migrate(str(request.workload.get("migration", "")), device)
        try:
            yield
        finally:
            numbers.stop()


def migrate(way: str, device: Device) -> None:
    """Import what lets a script that was written for CUDA run on the NPU, as Huawei's migration guide names it.

    Args:
        way: ``transfer_to_npu``, or ``""`` for nothing.
        device: The device of the side.

    Raises:
        AgentError: ``unsupported``: an unknown way, or one that this device or installation does not have.
    """
    if not way:
        return
    if way != _TRANSFER:
        raise AgentError("unsupported", "migration=%s; expected %s" % (way, _TRANSFER))
    if device.name != "npu":
        raise AgentError("unsupported", "migration=%s is for an NPU, and this side runs on %s" % (way, device.kind))
    try:
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
    except ImportError as error:
        message = "migration=%s cannot be imported on this side: %s" % (way, error)
        raise AgentError("unsupported", message, "it comes with torch_npu; without it, write the script for the NPU") from error


def run_to_end(
    request: Request,
    count_steps: Callable[[], int],
    describe: Callable[[BaseException], Dict[str, Any]] = describe_failure,
) -> None:
    """Run the script of a request until it ends or is stopped.

    Args:
        request: Names the script and its arguments.
        count_steps: Returns how many steps it has made, for the error.
        describe: Returns where the script raised an exception.

    Raises:
        AgentError: ``workload``: it raised an exception, or ended with an exit code that is not 0.
    """
    path = str(request.workload["script"])
    name = name_script(path)

    def describe_progress() -> str:
        """Say how far the script came."""
        return " after %d step%s" % (count_steps(), "" if count_steps() == 1 else "s")

    try:
        run_script(path, command_words(request.workload.get("arguments", {})))
    except Stopped:
        return
    except AgentError:
        raise
    except SystemExit as left:
        if left.code not in (None, 0):
            code = left.code if isinstance(left.code, int) else "1 (%s)" % left.code
            message = "%s ended itself with exit code %s%s" % (name, code, describe_progress())
            raise AgentError("workload", message, _PRINTED, traceback.format_exc()) from left
    except (Exception, KeyboardInterrupt) as error:
        text = "%s raised %s%s" % (name, describe_error(error), describe_progress())
        traceback.print_exc()  # where the script's own output is, as Python would have printed it
        where = describe(error)
        kind = "memory" if where["memory"] else "unsupported" if where["missing"] else "workload"
        raise AgentError(kind, text, _PRINTED, traceback.format_exc(), where) from error


def name_script(script: str) -> str:
    """Return the name of a script for people: ``train.py``, or of a module ``package.train``."""
    return script_module(script) or os.path.basename(script)


def find_script(script: str, folder: str) -> str:
    """Return the file of a script that was started in a folder, as an absolute path; ``""`` if there is no such module."""
    module = script_module(script)
    if not module:
        return os.path.join(folder, script)
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(module + ".__main__")
    except ModuleNotFoundError as error:
        if not (module + ".").startswith("%s." % error.name):
            raise  # a package around it imports something that is missing
        return ""
    return os.path.abspath(spec.origin) if spec is not None and spec.origin else ""


def run_script(path: str, words: List[str]) -> None:
    """Run a script in this process until it ends; its exceptions pass through.

    Args:
        path: The script, or ``-m`` and a module.
        words: Its command line.

    Raises:
        AgentError: ``workload``: there is no such file or module.
    """
    module = script_module(path)
    if module:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it
        file = find_script(path, os.getcwd())
        if not file:
            message = "workload.script=-m %s: there is no such module, in %s or installed" % (module, os.getcwd())
            raise AgentError("workload", message, "name it as `python -m` takes it, from the folder that precflow runs in")
        sys.argv[:] = [file, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(path):
        message = "workload.script=%s: there is no such file in %s" % (path, os.getcwd())
        raise AgentError("workload", message, "give its path from the folder that precflow runs in, or an absolute one")
    full = os.path.abspath(path)
    sys.argv[:] = [path, *words]
    # In front: as `python script.py` has it. The agent's own place stays, since parts of it are imported later.
    sys.path.insert(0, os.path.dirname(full))
    runpy.run_path(full, run_name="__main__")


@contextmanager
def redirected_output(path: str) -> Iterator[None]:
    """Write what this process and its children print into a file until the block ends.

    The file descriptors are redirected, because libraries and child processes print too. The stack that Python prints when it
    crashes or is stopped still goes to the agent's own log.
    """
    _flush()
    saved = [os.dup(number) for number in (1, 2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    log = os.fdopen(os.dup(2), "w")
    try:
        with _stacks_to(log):
            for number in (1, 2):
                os.dup2(file, number)
            try:
                yield
            finally:
                _flush()
                for number, before in zip((1, 2), saved):
                    os.dup2(before, number)
    finally:
        for descriptor in (*saved, file):
            os.close(descriptor)
        log.close()


@contextmanager
def _stacks_to(log: Any) -> Iterator[None]:
    was_enabled = faulthandler.is_enabled()
    if was_enabled:
        faulthandler.enable(log)
        faulthandler.register(signal.SIGTERM, file=log, all_threads=False, chain=True)
    try:
        yield
    finally:
        if was_enabled:
            faulthandler.enable()
            faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a script may have closed or replaced it
            stream.flush()


def describe_modules(folder: str) -> Dict[str, str]:
    """Return ``file name -> path`` of every module that has been imported from below a folder.

    Packages that are installed there, in a virtual environment beside the script, are not the user's.
    """
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    root = os.path.abspath(folder) + os.sep
    inside = sorted({os.path.abspath(file) for file in files if isinstance(file, str) and file.endswith(".py")})
    below = {file[len(root) :]: file for file in inside if file.startswith(root)}
    # torch.ops says that it is in "_ops.py", and there is no such file.
    return {name: file for name, file in below.items() if not _INSTALLED & set(name.split(os.sep)) and os.path.isfile(file)}


def digest_modules(modules: Mapping[str, str]) -> Dict[str, str]:
    """Return ``file name -> 32 hex digits`` of modules that were imported; ``""`` for one that cannot be read any more.

    Args:
        modules: File name -> path.
    """
    digests = {}
    for name, path in modules.items():
        digests[name] = ""
        with suppress(OSError), open(path, "rb") as file:
            digests[name] = hashlib.blake2b(file.read(), digest_size=DIGEST_SIZE).hexdigest()
    return digests
