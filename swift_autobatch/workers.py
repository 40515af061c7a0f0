"""Worker processes that are handed one task after another and answer each; for counting what one core is too slow for.

A worker is a module of ours with a ``handler(setup)`` that returns a function from task to answer. Tasks and answers
are pickled over its pipes. It reads tasks until its input ends, so none outlives us, however we end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import IO, Any

from swift_autobatch.errors import MachineError
from swift_autobatch.process import TimeoutExpired, start_piped

_POLL_S = 0.2
_TAIL = 2000
_TO_END_S = 2.0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A fixed number of workers of one module; use it as a context manager."""

    def __init__(self, module: str, setup: Any, *, count: int, interpreter: str, variables: Mapping[str, str]) -> None:
        """``setup`` goes to every worker before its first task."""
        code = f"from swift_autobatch.workers import serve; serve({module!r})"
        env = {**variables, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._files = contextlib.ExitStack()
        self._over = False
        self._said = [self._files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]  # noqa: SIM115
        self._children = [start_piped((interpreter, "-c", code), env=env, stderr=said) for said in self._said]
        for child in self._children:
            with contextlib.suppress(OSError):  # it is dead already: the first task finds out and says why
                self._send(child.stdin, setup)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for child in self._children:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()
            child.wait()
        self._files.close()

    def map(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (index of the task, its answer) as they come.

        Raises:
            MachineError: a worker died.
            RuntimeError: a task failed, which is a bug of ours.
        """
        todo: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        for numbered in enumerate(tasks):
            todo.put(numbered)
        for at in range(len(self._children)):
            threading.Thread(target=self._work, args=(at, todo, done), daemon=True).start()
        for _ in tasks:
            index, answer, error = self._next(done)
            if error is not None:
                raise error
            yield index, answer

    @staticmethod
    def _next(done: queue.SimpleQueue[tuple[int, Any, BaseException | None]]) -> tuple[int, Any, BaseException | None]:
        while True:
            with contextlib.suppress(queue.Empty):  # a plain get() cannot be interrupted by Ctrl-C everywhere
                return done.get(timeout=_POLL_S)

    def _work(
        self,
        at: int,
        todo: queue.SimpleQueue[tuple[int, Any]],
        done: queue.SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> None:
        child = self._children[at]
        while True:
            try:
                index, task = todo.get_nowait()
            except queue.Empty:
                return
            try:
                self._send(child.stdin, task)
                fine, answer = pickle.load(child.stdout)  # type: ignore[arg-type]
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):
                if not self._over:
                    done.put((index, None, self._died(at)))
                return
            except Exception as error:  # what cannot be pickled: nobody else would ever hear of it
                done.put((index, None, error))
                return
            done.put((index, answer, None) if fine else (index, None, RuntimeError(answer)))

    def _died(self, at: int) -> MachineError:
        code = None
        with contextlib.suppress(TimeoutExpired):
            code = self._children[at].wait(_TO_END_S)
        said = self._said[at]
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
        last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return MachineError(
            f"a counting process ended by itself{f' with code {code}' if code is not None else ''}",
            figures=tuple(last),
            hints=("it may have run out of memory: free some and try again",),
        )

    @staticmethod
    def _send(pipe: IO[bytes] | None, message: Any) -> None:
        assert pipe is not None  # we asked for one
        pickle.dump(message, pipe)
        pipe.flush()


def serve(module: str) -> None:
    """The worker's side: answers tasks until its input ends."""
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever prints must not disturb the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle = import_module(module).handler(pickle.load(tasks))
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        try:
            answer = (True, handle(task))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
