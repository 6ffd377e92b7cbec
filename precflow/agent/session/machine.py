"""The state of the machine that a side runs on: toolkit and drivers, what `npu-smi` and `nvidia-smi` say, memory, disk, ports.

Unlike the facts of the environment this changes from hour to hour, so it is asked for when it is needed and belongs to no key.
It names no person, host or process. Judging it is not the agent's business.
"""

from __future__ import annotations

import locale
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence

from precflow.agent import redaction

HCCL_PORT, HCCL_PORTS = 60000, 16  # the first port and how many: one for each device of a machine
_USUAL_TOOLKITS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # set by the toolkit's set_env.sh
_VERSION_FILES = (  # where CANN writes its version; which of them exist depends on its version and on what is installed
    "version.cfg",
    "compiler/version.info",
    "runtime/version.info",
    "share/info/runtime/version.info",
)
_DRIVERS = {
    "ascend_driver": "/usr/local/Ascend/driver/version.info",
    "ascend_firmware": "/usr/local/Ascend/firmware/version.info",
    "nvidia_driver": "/proc/driver/nvidia/version",
}
_NVIDIA_FIELDS = "index,name,driver_version,memory.total,memory.used,ecc.errors.uncorrected.volatile.total"
_SHARED = "/dev/shm"  # noqa: S108  not for our files: how much of it is free
_PATIENCE = 20.0  # seconds for a tool of the driver; one whose device hangs does not answer at all
_LONGEST = 16384  # characters of what a tool prints
_VERSION = re.compile(r"\d+(?:\.\d+)+")


def collect(output: str, *, started: bool = False) -> Dict[str, Any]:
    """Return the state of this machine as plain data.

    Args:
        output: The folder that the side writes to.
        started: torch has been imported and a device started, whose free memory is to be read.
    """
    variables = os.environ
    home = find_toolkit(variables)
    state: Dict[str, Any] = {
        "cann": read_cann(home),
        "toolkit": {
            "home": redaction.redact_text(home),
            "sourced": any(variables.get(name) for name in _HOMES),
            "in_library_path": bool(home) and _is_in_library_path(home, variables.get("LD_LIBRARY_PATH", "")),
            "atb": bool(variables.get("ATB_HOME_PATH")),
        },
        **{name: _read_driver(path) for name, path in _DRIVERS.items()},
        "ascend_firmware_range": _read_firmware_range(_DRIVERS["ascend_driver"]),
        "nodes": {name: _count_nodes(start) for name, start in (("npu", "davinci"), ("cuda", "nvidia"))},
        "npu_smi": _ask("npu-smi", ["info"]),
        "npu_board": _read_board(_ask("npu-smi", ["info", "-t", "board", "-i", "0"])),
        "nvidia_smi": _ask("nvidia-smi", ["--query-gpu=" + _NVIDIA_FIELDS, "--format=csv,noheader,nounits"]),
        "device_memory": _read_device_memory() if started else {},
        "memory": _read_memory(),
        "shared_memory": _read_space(_SHARED),
        "temporary": _read_space(tempfile.gettempdir()),
        "ports": _try_ports(variables.get("HCCL_IF_BASE_PORT", "")),
        "locale": {
            "encoding": locale.getpreferredencoding(do_setlocale=False),
            "files": sys.getfilesystemencoding(),
            "decimal": _read_decimal_point(),
        },
        "clock": _read_clock(output),
        "tools": {name: _read_version([name, "--version"]) for name in ("cmake", "gcc", "g++", "ninja")},
    }
    return state


def find_toolkit(variables: Mapping[str, str]) -> str:
    """Return the folder of the CANN toolkit: that which its set_env.sh names, else one at its usual place, else ``""``."""
    named = [variables[name] for name in _HOMES if variables.get(name)]
    return next((home for home in (*named, *_USUAL_TOOLKITS) if os.path.isdir(home)), "")


def read_cann(home: str) -> str:
    """Return the version of the CANN in a toolkit's folder; ``unknown`` if no file says it."""
    for name in _VERSION_FILES if home else ():
        path = os.path.join(home, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as stream:
                for line in stream:  # Version=8.0.RC3, or runtime_running_version=[7.3.0.1:8.0.0] (8.0.0)
                    key, _, value = line.partition("=")
                    if "version" in key.lower() and value.strip():
                        return value.strip().partition("]")[0].strip("[]").rpartition(":")[2]
            return "unknown"
    return "unknown"


def _is_in_library_path(home: str, path: str) -> bool:
    here = os.path.realpath(home)
    return any(os.path.realpath(folder).startswith(here) for folder in path.split(os.pathsep) if folder)


def _read_driver(path: str) -> str:
    """Return the version that a driver writes: ``Version=24.1.rc3``, or a line with ``Kernel Module  570.133.20``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_LONGEST).splitlines()
    except OSError:
        return ""
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key.strip().lower() in ("version", "package_version"):
            return value.strip()
    versions = _VERSION.findall(lines[0]) if lines else []
    return str(versions[0]) if versions else ""


def _read_firmware_range(path: str) -> List[str]:
    """Return the first and last version of the firmware that a driver works with, as it writes: ``[7.0.0,7.7.99]``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(_LONGEST)
    except OSError:
        return []
    found = re.search(r"^compatible_version_fw=\[([^,\]]+),([^\]]+)\]", text, re.MULTILINE)
    return [part.strip() for part in found.groups()] if found else []


def _read_board(answer: Mapping[str, Any]) -> Dict[str, str]:
    """Return what `npu-smi` says of a board, without its serial number: its firmware, and whether that and the driver fit."""
    lines = (line.partition(":") for line in str(answer.get("text", "")).splitlines())
    known = {name.strip().lower(): value.strip() for name, _, value in lines}
    return {name: known[name + end] for name, end in (("firmware", " version"), ("compatibility", "")) if name + end in known}


def _count_nodes(start: str) -> int:
    names = os.listdir("/dev") if os.path.isdir("/dev") else []
    return sum(name.startswith(start) and name[len(start) :].isdigit() for name in names)


def _ask(name: str, words: Sequence[str]) -> Dict[str, Any]:
    """Return what a tool prints and its exit code; ``{}`` if it is not installed. Lines about processes are left out."""
    program = shutil.which(name)
    if program is None:
        return {}
    try:
        answer = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"code": None, "text": ""}
    except OSError as error:
        return {"code": None, "text": str(error.strerror)}
    lines: List[str] = []
    for line in answer.stdout.decode("utf-8", "replace")[:_LONGEST].splitlines():
        if "Process" in line:  # from here on the table of processes, with names that are nobody's business
            break
        lines.append(line.rstrip())
    return {"code": answer.returncode, "text": redaction.redact_text("\n".join(lines))}


def _read_device_memory() -> Dict[str, int]:
    """Return free and total bytes of the current device, as torch says it; ``{}`` for a CPU."""
    import torch

    for name in ("npu", "cuda"):
        module: Any = getattr(torch, name, None)
        with suppress(Exception):  # not built in, not started, or too old to say it
            free, total = module.mem_get_info()
            return {"free": int(free), "total": int(total)}
    return {}


def _read_memory() -> Dict[str, int]:
    sizes: Dict[str, int] = {}
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii", errors="replace") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes["total" if name == "MemTotal" else "free"] = int(value.split()[0]) * 1024
    return sizes


def _read_space(path: str) -> Dict[str, int]:
    try:
        space = os.statvfs(path)
    except OSError:
        return {}
    return {"free": space.f_bavail * space.f_frsize, "total": space.f_blocks * space.f_frsize}


def _try_ports(first: str) -> Dict[str, Any]:
    """Return the ports that HCCL listens on, those of them that are taken, and those that the kernel may give to others."""
    start = int(first) if first.isdigit() else HCCL_PORT
    ports = range(start, start + HCCL_PORTS)
    return {
        "first": start,
        "count": HCCL_PORTS,
        "given": first,
        "taken": [port for port in ports if 0 < port < 65536 and not _is_free(port)],
        "ephemeral": [port for port in _list_ephemeral() if port in ports][:HCCL_PORTS],
    }


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that was just closed does not count
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def _list_ephemeral() -> Sequence[int]:
    """Return the ports that the kernel gives to outgoing connections, without those that are reserved."""
    try:
        low, high = map(int, _read_line("/proc/sys/net/ipv4/ip_local_port_range").split())
    except ValueError:
        return ()
    reserved = set()
    for part in _read_line("/proc/sys/net/ipv4/ip_local_reserved_ports").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            reserved |= set(range(int(first), int(last or first) + 1))
    return [port for port in range(low, high + 1) if port not in reserved]


def _read_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.readline()
    except OSError:
        return ""


def _read_decimal_point() -> str:
    """Return the decimal point of the locale that the variables of this process name."""
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, "")
        return str(locale.localeconv()["decimal_point"])
    except locale.Error:
        return "unknown locale"
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def _read_clock(output: str) -> Dict[str, Optional[float]]:
    """Return the time of this machine, and that of the disk of the output folder, which may be another machine's."""
    of_disk: Optional[float] = None
    with suppress(OSError), tempfile.TemporaryFile(dir=output) as stream:
        of_disk = os.fstat(stream.fileno()).st_mtime
    return {"now": time.time(), "disk": of_disk}


def _read_version(words: Sequence[str]) -> str:
    if shutil.which(words[0]) is None:
        return ""
    try:
        answer = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    versions = _VERSION.findall(answer.stdout.decode("utf-8", "replace").partition("\n")[0])
    return str(versions[-1]) if versions else ""
