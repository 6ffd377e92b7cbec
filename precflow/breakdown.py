"""Where a side broke: what is known of an exception, a crash, a hang or a full memory, for screens, pages and programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

FORMAT = "precflow-breakdown"  # of the result.json of a run that broke
KINDS = ("exception", "memory", "crash", "hang", "silence")
"""It raised an exception; had too little memory; was killed by a signal; did not end in time; ended without a result."""
_MOST_SHAPES = 4  # kinds of calls that a line names


@dataclass(frozen=True)
class GivenTensor:
    """A tensor that a call was given.

    Attributes:
        index: Its position or keyword.
        dtype: Element type.
        shape: As text, such as ``[2, 77]``.
        device: Where it lies; ``""`` if that is not known.
    """

    index: str
    dtype: str
    shape: str
    device: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.index, self.dtype, self.shape, self.device and f"on {self.device}")))


@dataclass(frozen=True)
class AliveTensor:
    """A tensor that was alive when memory ran out.

    Attributes:
        name: Weight, gradient, state of an optimizer, or a variable.
        dtype: Element type.
        shape: As text.
        bytes: Of its storage.
    """

    name: str
    dtype: str
    shape: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """What filled a memory.

    Attributes:
        device: Type of the device.
        asked: What was asked for last, as the allocator says it.
        tensors: How many tensors with a storage of their own were alive.
        bytes: What these held in all.
        largest: The largest of them.
    """

    device: str
    asked: str
    tensors: int
    bytes: int
    largest: tuple[AliveTensor, ...] = ()


@dataclass(frozen=True)
class DeviceLog:
    """The lines around the first error in a log of the device.

    Attributes:
        file: Name of the log, below the folder that it was collected into.
        line: Number of the line that says the error, from 1.
        lines: It and its neighbours.
        at: Which of them it is, from 0.
    """

    file: str
    line: int
    lines: tuple[str, ...]
    at: int = 0


@dataclass(frozen=True)
class Instead:
    """What a rule of the scan says about what is not there.

    Attributes:
        rule: The rule.
        found: What it was found by: the operator, the package, or the source.
        why: Why it does not run there.
        do: What takes its place.
    """

    rule: str
    found: str
    why: str
    do: str


@dataclass(frozen=True)
class Breakdown:
    """Everything that is known of it; what is not known is empty.

    Attributes:
        side: The side.
        kind: One of ``KINDS``.
        step: Number of the step, as text.
        phase: ``forward``, ``backward`` or ``optimizer``.
        module: The innermost module that ran.
        class_name: Its class.
        operator: The operator that ran.
        missing: The operator, function or package that is not there, as the message names it.
        missing_in: Where it is missing: a backend or an element type.
        file: Path of the innermost source of the user's; shown is its name.
        line: Line in it.
        source: The text of this line.
        site: Call site as records have it, where no line is known.
        inputs: What the operator was given.
        given: What the module was given.
        seen: Shapes that the module was given in calls that came to their end, as text, one for each kind of call.
        last: Identity of the last record that is complete.
        memory: What filled the memory, if that was why.
        instead: What rules know about what is missing.
        logs: Logs of the device.
        trace: Traceback of the exception, or the stack that Python printed.
    """

    side: str
    kind: str
    step: str = ""
    phase: str = ""
    module: str = ""
    class_name: str = ""
    operator: str = ""
    missing: str = ""
    missing_in: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    site: str = ""
    inputs: tuple[GivenTensor, ...] = ()
    given: tuple[GivenTensor, ...] = ()
    seen: tuple[str, ...] = ()
    last: str = ""
    memory: Memory | None = None
    instead: tuple[Instead, ...] = ()
    logs: tuple[DeviceLog, ...] = ()
    trace: str = ""

    @property
    def place(self) -> str:
        """The line of the user's source, without a folder; where none is known, the innermost one of the call site."""
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}" if name else self.site.partition(" <- ")[0]

    @property
    def is_new_shape(self) -> bool:
        """The module has been called before, and never with these shapes."""
        return bool(self.seen and self.given) and describe_shapes(self.given) not in self.seen

    def public(self) -> Breakdown:
        """Return the same without paths of this machine, for files that leave it."""
        return replace(self, file=self.file.replace("\\", "/").rpartition("/")[2], trace="")

    def rows(self) -> list[tuple[str, str]]:
        """Return what is known as pairs of label and text, in the order in which people ask for it."""
        where = " of ".join(filter(None, (self.phase, self.step and f"step {self.step}")))
        module = f"{self.module or 'one that is in no recorded model'} ({self.class_name})" if self.class_name else self.module
        place = f"{self.place}   {self.source}" if self.source else self.place
        lacking = f" (not in {self.missing_in})" if self.missing_in else ""
        rows = [
            ("phase", where),
            ("module", module),
            ("operator", self.operator),
            ("not there", f"{self.missing}{lacking}" if self.missing else ""),
            ("line", place),
            ("given", "; ".join(map(str, self.inputs or self.given))),
            ("shapes", self._describe_seen()),
            ("last record", self.last),
        ]
        rows += self._describe_memory()
        rows += [("instead", f"{one.found}: {one.do} ({one.rule})") for one in self.instead]
        rows += [("device log", f"{log.file}:{log.line}   {log.lines[log.at]}") for log in self.logs]
        return [(label, text) for label, text in rows if text]

    def _describe_seen(self) -> str:
        """Return the shapes of the module's inputs against those of its calls before."""
        if not (self.given and self.seen):
            return ""
        now = describe_shapes(self.given)
        more = len(self.seen) - _MOST_SHAPES
        before = ", ".join(self.seen[:_MOST_SHAPES]) + (f" and {more} more" if more > 0 else "")
        return f"{now}, new to this module; before: {before}" if self.is_new_shape else f"{now}, as in calls that went well"

    def _describe_memory(self) -> list[tuple[str, str]]:
        memory = self.memory
        if memory is None:
            return []
        asked = f", {memory.asked} more were asked for" if memory.asked else ""
        rows = [("memory", f"{memory.tensors} tensors on {memory.device} hold {format_bytes(memory.bytes)}{asked}")]
        labels = ("largest", *[""] * len(memory.largest))
        return rows + [
            (label or "then", f"{format_bytes(one.bytes)}   {one.name}, {one.dtype} {one.shape}")
            for label, one in zip(labels, memory.largest, strict=False)
        ]


def describe_shapes(tensors: tuple[GivenTensor, ...]) -> str:
    """Return the shapes of the inputs of a call as text.

    >>> describe_shapes((GivenTensor("0", "float32", "[2, 77]"), GivenTensor("mask", "bool", "[77]")))
    '[2, 77] [77]'
    """
    return " ".join(one.shape for one in tensors)


def format_bytes(count: int) -> str:
    """Return a number of bytes for people.

    >>> format_bytes(999), format_bytes(2_500_000)
    ('999 bytes', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
