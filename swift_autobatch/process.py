"""The only place that starts children.

A child gets a session of its own, its output goes to a log file and line by line to the caller, a signal to
us stops it and all its descendants, and a guardian (``guardian.py``) does the same if we are killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import RawIOBase
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from swift_autobatch import guardian
from swift_autobatch.errors import Interrupted, MachineError

TimeoutExpired = subprocess.TimeoutExpired
GRACE_S = 5.0
_POLL_S = 0.2
_DRAIN_S = 2.0  # how long output is still read after the child ended while a descendant holds the pipe
_LINE_LIMIT = 1 << 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """How a child ended. ``exit_code`` is negative when a signal killed it (as ``subprocess`` has it)."""

    exit_code: int
    signal: int | None  # the signal that ended it, also when a wrapper passed it on as an exit code
    timed_out: bool
    seconds: float
    log_error: str | None = None  # why the log is incomplete; None: it is whole
    oom_kills: int | None = None  # processes that the kernel killed for lack of memory meanwhile; None: not counted


def signal_of(exit_code: int) -> int | None:
    """The signal behind an exit code: -9, 137 (a shell) and 247 (``sys.exit(-9)``: ``swift``) all mean SIGKILL."""
    for number in (-exit_code, exit_code - 128, 256 - exit_code):
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGINT):
            return int(number)
    return -exit_code if exit_code < 0 else None


def free_port() -> int:
    """A TCP port that nobody on this machine listens on now (another job may still take it before the engine does)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def engine_command(interpreter: str) -> tuple[str, ...]:
    """How to start ``swift``: the console script beside the interpreter, else the module."""
    script = Path(interpreter).parent / "swift"
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    return (interpreter, "-m", "swift.cli.main")


def run_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    on_line: Callable[[str], object] = lambda line: None,
    timeout_s: float | None = None,
    idle_s: float | None = None,
    grace_s: float = GRACE_S,
    on_stop: Callable[[], float] = lambda: 0.0,
) -> ChildResult:
    """Runs a command to its end and leaves no process of it alive, whatever happens.

    Args:
        argv: program and arguments.
        env: the child's whole environment; a job marker is added to it.
        cwd: working folder of the child.
        log: file that receives stdout and stderr, merged, as they come; appended to.
        on_line: called with each line without its end; a carriage return ends a line too (progress bars).
        timeout_s: wall-clock seconds after which everything is stopped; None: no limit.
        idle_s: seconds without any output after which everything is stopped; None: no limit.
        grace_s: seconds between SIGTERM and SIGKILL.
        on_stop: called once when the first signal reaches us; asks the child to end by itself and returns how many
            seconds it may take. A second signal ends the patience.

    Raises:
        MachineError: the program or the log cannot be opened.
        Interrupted: a signal (SIGINT, SIGTERM, SIGHUP) reached us; the job has been stopped.
    """
    job = uuid.uuid4().hex
    with _log_file(log) as sink, _catch_signals() as caught, _guarded(job, grace_s, env), _stopped(job, grace_s):
        child = _start(argv, {**env, guardian.JOB_VARIABLE: job}, cwd)
        limits = _Limits(timeout_s=timeout_s, idle_s=idle_s, caught=caught, on_stop=on_stop)
        killed = _oom_kills()
        result = _follow(child, _Sink(sink, log, on_line), limits, job, grace_s)
        result = replace(result, oom_kills=_more(killed, _oom_kills()))
    if caught:
        raise Interrupted(caught[0], where=str(log))
    return result


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[RawIOBase]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = path.open("ab", buffering=0)
    except OSError as error:
        raise MachineError(
            f"the log file cannot be written: {error.strerror}",
            where=str(path),
            hints=("choose another folder with --output_dir",),
        ) from None
    with sink:
        yield sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a short program said. ``exit_code`` None: it could not be started, or took too long; ``err`` says which."""

    exit_code: int | None
    out: str
    err: str


def ask(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float) -> Answer:
    """Runs a short program that starts nothing itself and only answers; it is killed after ``timeout_s`` seconds."""
    try:
        done = subprocess.run(
            tuple(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return Answer(exit_code=None, out="", err=f"it took more than {timeout_s:.0f} s")
    except OSError as error:
        return Answer(exit_code=None, out="", err=error.strerror or str(error))
    return Answer(exit_code=done.returncode, out=done.stdout, err=done.stderr)


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collects signals instead of dying from them. Outside the main thread Python allows no handlers: no change."""
    caught: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {}
    try:
        for number in _SIGNALS:
            before[number] = signal.signal(number, remember)
    except ValueError:
        before = {}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _guarded(job: str, grace_s: float, env: Mapping[str, str]) -> Iterator[None]:
    """A guardian for the time of the block. Only we hold the pipe's write end: file descriptors are not inherited."""
    read_fd, write_fd = os.pipe()
    unmarked = {key: value for key, value in env.items() if key != guardian.JOB_VARIABLE}  # else it would end itself
    with subprocess.Popen(
        # -I: our own folder must not come before the standard library (it holds a trace.py); -S: no need of packages
        (
            sys.executable,
            "-I",
            *(("-S",) if sys.platform == "linux" else ()),
            guardian.__file__,
            str(read_fd),
            job,
            str(grace_s),
        ),
        pass_fds=(read_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=unmarked,
    ):
        os.close(read_fd)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.write(write_fd, b"\n")
            os.close(write_fd)


@contextlib.contextmanager
def _stopped(job: str, grace_s: float) -> Iterator[None]:
    """At the end of the block nothing of the job is alive, be it orphaned workers or a child we failed to follow."""
    try:
        yield
    finally:
        if guardian.members(job):
            guardian.stop(job, grace_s)


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            tuple(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(
            f"cannot start {argv[0]}: {error.strerror}",
            hints=("install the engine into this interpreter's environment: pip install 'ms-swift>=4.6,<4.7'",),
        ) from None


def start_piped(argv: Sequence[str], *, env: Mapping[str, str], stderr: BinaryIO) -> subprocess.Popen[bytes]:
    """Starts a helper that is spoken to through its standard input and output, in a session of its own.

    It must end when its input does: that is how it learns that we are gone, killed or not. See ``workers.py``.
    """
    try:
        return subprocess.Popen(
            tuple(argv),
            env=dict(env),
            cwd="/",  # nothing in the user's folder may stand for a module of ours
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"cannot start {argv[0]}: {error.strerror}", hints=("check the interpreter",)) from None


@dataclass(slots=True)
class _Sink:
    """The log and the lines; a log that cannot be written any more is said once and never stops the child."""

    file: RawIOBase
    path: Path
    on_line: Callable[[str], object]
    error: str | None = None
    rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = f"{error.strerror} ({self.path})"
        *lines, rest = (bytes(self.rest) + data).replace(b"\r", b"\n").split(b"\n")
        self.rest = bytearray(rest[-_LINE_LIMIT:])
        for line in lines:
            self._emit(line)

    def close(self) -> None:
        self._emit(bytes(self.rest))
        self.rest.clear()

    def _emit(self, line: bytes) -> None:
        if line.strip():
            self.on_line(line.decode("utf-8", errors="replace"))


@dataclass(slots=True)
class _Limits:
    """When a child has to be stopped."""

    timeout_s: float | None
    idle_s: float | None
    caught: Sequence[int]  # signals that reached us, in order
    on_stop: Callable[[], float]
    until: float | None = None  # how long a child that was asked to end may take

    def passed(self, now: float, began: float, heard: float) -> bool:
        """Whether the time is up; asks the child to end by itself at the first signal."""
        if self.caught:
            if self.until is None:
                self.until = now + self.on_stop()
            return now >= self.until or len(self.caught) > 1
        late = self.timeout_s is not None and now - began > self.timeout_s
        return late or (self.idle_s is not None and now - heard > self.idle_s)


def _follow(child: subprocess.Popen[bytes], sink: _Sink, limits: _Limits, job: str, grace_s: float) -> ChildResult:
    """Reads until the output ends, the child is gone, the time is up or a signal came."""
    began = heard = time.monotonic()
    ended: float | None = None
    stopped = timed_out = False
    assert child.stdout is not None  # we asked for a pipe
    with child.stdout, selectors.DefaultSelector() as selector:
        os.set_blocking(child.stdout.fileno(), False)
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            ready = bool(selector.select(_POLL_S))
            data = child.stdout.read(1 << 16) if ready else None
            now = time.monotonic()
            if data:
                sink.feed(data)
                heard = now
            elif ready and data == b"":
                break
            if child.poll() is not None:
                ended = ended or now
                if now - ended > _DRAIN_S:
                    break
            if ended is None and not stopped and limits.passed(now, began, heard):
                stopped, timed_out = True, not limits.caught
                guardian.stop(job, grace_s)
        sink.close()
    exit_code = child.wait(timeout=grace_s) if stopped else child.wait()
    return ChildResult(
        exit_code=exit_code,
        signal=signal_of(exit_code),
        timed_out=timed_out,
        seconds=time.monotonic() - began,
        log_error=sink.error,
    )


def _oom_kills() -> int | None:
    """The kernel's own count, since it started, of processes killed for lack of memory; None where it keeps none."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def disk_free_bytes(folder: Path) -> int:
    """Bytes an ordinary user may still write where ``folder`` (or its nearest existing parent) lies."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
