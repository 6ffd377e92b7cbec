"""Checks of the machine that a side runs on: toolkit, devices, memory, ports, locale, clock and what a plugin is built with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.environment.checks import Row
from precflow.environment.smi import Chip, read_npu_smi, read_nvidia_smi

NPU, CUDA = "npu", "cuda"
_VISIBLE = {NPU: "ASCEND_RT_VISIBLE_DEVICES", CUDA: "CUDA_VISIBLE_DEVICES"}
_SMI = {NPU: "npu-smi", CUDA: "nvidia-smi"}
_LEAST_SHARED = 1_000_000_000  # bytes; the workers of a DataLoader pass whole batches through it, containers have 64 MB
_LEAST_DISK = 1_000_000_000
_LARGEST_SKEW = 60.0  # seconds
_PORTS = range(1024, 65521)  # that HCCL_IF_BASE_PORT may be
_ADVICE = (  # what a tool of a driver prints when it fails -> what to do
    ("-8005", "load the driver on the host, and give the container /dev/davinci*, davinci_manager, devmm_svm and hisi_hdc"),
    ("-8020", "another container holds the devices: stop it, or give this one other devices"),
    ("version mismatch", "restart the machine, or load the kernel module of the installed driver"),
    ("communicate with the NVIDIA driver", "load the driver's kernel module (modprobe nvidia), or install the driver"),
    ("No devices were found", "give the container a GPU (docker run --gpus all), or look at dmesg"),
)


@dataclass(frozen=True)
class Wanted:
    """What is expected of a machine.

    Attributes:
        kinds: Kinds of devices that the side is to run on.
        checks: Checks that are required, by name; some of them matter to few and are problems only then.
    """

    kinds: Collection[str] = ()
    checks: Collection[str] = ()


def check_machine(
    state: Mapping[str, Any], variables: Mapping[str, str], wanted: Wanted, *, now: float | None = None
) -> list[Row]:
    """Judge what an agent says of its machine.

    Args:
        state: See ``precflow/agent/session/machine.py``.
        variables: Environment variables of the side.
        wanted: What is expected.
        now: Time of the judge's machine when the agent was asked, in seconds since 1970; ``None`` if that is not known.
    """
    return [
        *_check_toolkit(state, wanted),
        *(row for kind in (NPU, CUDA) for row in _check_devices(kind, state, variables, wanted)),
        *_check_device_memory(state),
        *_check_shared_memory(state, wanted),
        *_check_ports(state, wanted),
        *_check_disk(state),
        *_check_locale(state),
        *_check_clock(state, now),
        *_check_tools(state, wanted),
    ]


def _check_toolkit(state: Mapping[str, Any], wanted: Wanted) -> Iterator[Row]:
    toolkit = state["toolkit"]
    home = toolkit["home"]
    if NPU not in wanted.kinds and not home:
        return
    if not home:
        text = "no CANN toolkit: ASCEND_HOME_PATH is not set, and none lies in /usr/local/Ascend"
        yield Row("toolkit", text, problem=NPU in wanted.kinds, fix="install CANN, and source its set_env.sh")
    elif not toolkit["sourced"]:
        text = f"CANN {state['cann']} lies in {home}, and its set_env.sh was not sourced"
        fix = f"source the set_env.sh of {home}, or name it in SIDE.setup"
        yield Row("toolkit", text, problem=NPU in wanted.kinds, fix=fix)
    elif not toolkit["in_library_path"]:
        text = f"CANN {state['cann']} in {home} is named by its variables, and LD_LIBRARY_PATH has none of its folders"
        yield Row("toolkit", text, problem=NPU in wanted.kinds, fix="source its set_env.sh last; something has overwritten it")
    else:
        yield Row("toolkit", f"CANN {state['cann']} in {home}, sourced{', with ATB' if toolkit['atb'] else ''}")


def _check_devices(kind: str, state: Mapping[str, Any], variables: Mapping[str, str], wanted: Wanted) -> Iterator[Row]:
    answer, nodes, tool = state[f"{_SMI[kind].replace('-', '_')}"], state["nodes"][kind], _SMI[kind]
    is_wanted = kind in wanted.kinds
    chips = (read_npu_smi if kind == NPU else read_nvidia_smi)(answer.get("text", ""))
    if chips and answer.get("code") == 0:
        yield from (_describe_ill(kind, chip) for chip in chips if not chip.healthy)
        yield Row("devices", f"{kind} {_count(chips)}, {_list_use(chips)}")
        yield from _check_visible(kind, chips, variables)
    elif answer:
        said = next((line.strip() for line in answer["text"].splitlines() if line.strip()), "") or "it printed nothing"
        code = "it did not answer in time" if answer["code"] is None else f"exit code {answer['code']}"
        fix = next((advice for sign, advice in _ADVICE if sign in answer["text"]), f"run {tool} on the host, and read its log")
        yield Row("devices", f"{tool} does not show a device: {said} ({code})", problem=is_wanted or nodes > 0, fix=fix)
    elif nodes:
        yield Row("devices", f"{nodes} {kind} in /dev, and no {tool} that says whether they are healthy", unknown=True)
    elif is_wanted:
        fix = "give the container its devices, or run on a machine that has one"
        yield Row("devices", f"no {kind}: neither a device in /dev nor {tool}", problem=True, fix=fix)


def _describe_ill(kind: str, chip: Chip) -> Row:
    fix = f"take another one ({_VISIBLE[kind]}), and look into the log of the driver"
    return Row("devices", f"{kind} {chip.number}, {chip.name}: {chip.health}", problem=True, fix=fix)


def _count(chips: Sequence[Chip]) -> str:
    names = [chip.name for chip in chips]
    return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _list_use(chips: Sequence[Chip]) -> str:
    used = [chip for chip in chips if chip.total and chip.used / chip.total > 0.5]
    if used:
        shown = ", ".join(f"{chip.number}: {_gigabytes(chip.used)} of {_gigabytes(chip.total)}" for chip in used[:8])
        return f"memory in use on {shown}"
    return "memory free"


def _check_visible(kind: str, chips: Sequence[Chip], variables: Mapping[str, str]) -> Iterator[Row]:
    name = _VISIBLE[kind]
    if name not in variables:
        return
    value = variables[name].strip()
    numbers = [word.strip() for word in value.split(",")]
    beyond = [word for word in numbers if word.isdigit() and int(word) >= len(chips)]
    if not value or "-1" in numbers:
        yield Row(
            "visible devices", f"{name}={value!r} hides every device", problem=True, fix=f"unset {name}, or name a device"
        )
    elif beyond:
        text = f"{name}={value} names {', '.join(beyond)}, and there are {len(chips)} ({0} to {len(chips) - 1})"
        yield Row("visible devices", text, problem=True, fix="name devices that are there")
    elif len(set(numbers)) < len(numbers):
        yield Row("visible devices", f"{name}={value} names a device twice", problem=True, fix="name each device once")
    else:
        yield Row("visible devices", f"{name}={value}")


def _check_device_memory(state: Mapping[str, Any]) -> Iterator[Row]:
    memory = state["device_memory"]
    if memory:
        yield Row("device memory", f"{_gigabytes(memory['free'])} of {_gigabytes(memory['total'])} free on the current device")


def _check_shared_memory(state: Mapping[str, Any], wanted: Wanted) -> Iterator[Row]:
    shared = state["shared_memory"]
    if not shared:
        yield Row("shared memory", "there is none", unknown=True)
        return
    short = shared["free"] < _LEAST_SHARED
    matters = bool({NPU, CUDA} & set(wanted.kinds)) or "shared_memory" in wanted.checks
    text = f"{_gigabytes(shared['free'])} free of {_gigabytes(shared['total'])}"
    fix = "docker run --shm-size=16g, or num_workers=0" if short else ""
    yield Row("shared memory", text, problem=short and matters, fix=fix)


def _check_ports(state: Mapping[str, Any], wanted: Wanted) -> Iterator[Row]:
    """Ports on which HCCL listens on the host; only sides that run on NPUs use them."""
    if NPU not in wanted.kinds and "ports" not in wanted.checks:
        return
    ports = state["ports"]
    first, last = ports["first"], ports["first"] + ports["count"] - 1
    if ports["given"] and (not ports["given"].isdigit() or first not in _PORTS):
        text = f"HCCL_IF_BASE_PORT={ports['given']} is no port from {_PORTS[0]} to {_PORTS[-1]}"
        yield Row("ports", text, problem=True, fix="HCCL_IF_BASE_PORT=60000")
    elif ports["taken"]:
        text = f"HCCL listens on {first} to {last}, and {', '.join(map(str, ports['taken']))} are taken"
        yield Row("ports", text, problem=True, fix=f"HCCL_IF_BASE_PORT={first - 2 * ports['count']}, or end what holds them")
    elif ports["ephemeral"]:
        text = f"{first} to {last} are free for HCCL, and the kernel may give them to other connections"
        yield Row("ports", text, fix=f"sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}")
    else:
        yield Row("ports", f"{first} to {last} are free for HCCL")


def _check_disk(state: Mapping[str, Any]) -> Iterator[Row]:
    space = state["temporary"]
    short = bool(space) and space["free"] < _LEAST_DISK
    text = f"{_gigabytes(space['free'])} free for temporary files" if space else "free space is not known"
    yield Row(
        "disk", text, problem=short, unknown=not space, fix="make room, or name another folder in TMPDIR" if short else ""
    )


def _check_locale(state: Mapping[str, Any]) -> Iterator[Row]:
    encoding, decimal = state["locale"]["encoding"], state["locale"]["decimal"]
    wrong = [] if encoding.upper().replace("-", "") == "UTF8" else [f"text is read as {encoding}"]
    wrong += [] if decimal in {".", "unknown locale"} else [f"numbers are written with {decimal!r}"]
    wrong += ["LANG or LC_ALL names a locale that is not installed"] if decimal == "unknown locale" else []
    if wrong:
        yield Row("locale", ", ".join(wrong), problem=True, fix="export LC_ALL=C.UTF-8")
    else:
        yield Row("locale", f"{encoding}, decimal point")


def _check_clock(state: Mapping[str, Any], now: float | None) -> Iterator[Row]:
    clock = state["clock"]
    skews = {"this machine": None if now is None else clock["now"] - now}
    skews["the disk of the run"] = None if clock["disk"] is None else clock["now"] - clock["disk"]
    known = {name: skew for name, skew in skews.items() if skew is not None}
    wrong = {name: skew for name, skew in known.items() if abs(skew) > _LARGEST_SKEW}
    if wrong:
        text = ", ".join(f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} {name}" for name, skew in wrong.items())
        yield Row("clock", f"the side's clock is {text}", problem=True, fix="start its time service (chronyd, ntpd)")
    elif known:
        yield Row("clock", f"agrees with {' and '.join(known)}")
    else:
        yield Row("clock", "nothing to compare it with", unknown=True)


def _check_tools(state: Mapping[str, Any], wanted: Wanted) -> Iterator[Row]:
    """What a plugin is built with; only those who build one need it."""
    tools = state["tools"]
    missing = [name for name in ("cmake", "gcc", "g++") if not tools[name]]
    found = [f"{name} {version}" for name, version in tools.items() if version]
    text = ", ".join([*found, *(f"no {name}" for name in missing)])
    required = bool(missing) and "build_tools" in wanted.checks
    yield Row("build tools", text, problem=required, fix=f"install {', '.join(missing)}" if required else "")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
