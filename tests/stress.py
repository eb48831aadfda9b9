"""What a library meets inside other people's programs: many threads, forks, signals, errors, and the end of it all.

    python -m tests.stress --seconds 60                        until the time is up; exit status 1 if a run failed
    python -m tests.stress --seconds 5 --only forks --seed 7   one scenario again

A scenario is a function below; its first sentence says what it would find. Each runs in a process of its own, for some
seconds at a time and with a new seed each time. A run fails if its process crashes, hangs, gets other bits than one
thread gets, or grows. A seed repeats what is asked for; in which order threads come to it is the system's choice.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import faulthandler
import gc
import importlib.util
import itertools
import multiprocessing
import os
import queue
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

import ndpool
from ndpool.engines import native
from ndpool.errors import PoolError

from .watch import watched

Array = np.ndarray[Any, Any]
Random = random.Random

TURN, LEAST = 10.0, 0.4  # seconds that one run of a scenario takes if there is time enough, and half a run at least
PATIENCE = 120.0  # seconds that a process may use after its time, before it is said to hang
GROWTH = 64 << 20  # bytes by which a process may grow over half a run

# Sanitizers need more memory than a process with a limit has, and hold on to what is freed.
SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")
# ThreadSanitizer ends a forked child that starts a thread with the id of one of its parent's.
FOLLOWS_THREADS = "libtsan.so" in os.environ.get("LD_PRELOAD", "")

# -- calls and what they must give -------------------------------------------------------------------------------------


class Wrong(Exception):
    pass


COUNT = itertools.count()  # of calls checked


@dataclass(frozen=True)
class Call:
    """A call, and the bits that it gave on one thread."""

    name: str
    run: Callable[[], Any]
    want: tuple[Array, ...]

    def check(self) -> None:
        self.compare(self.run())

    def compare(self, result: Any) -> None:
        if not all(map(np.array_equal, bits(result), self.want)):
            raise Wrong(f"{self.name} gave other bits than on one thread")
        next(COUNT)


def bits(result: Any) -> tuple[Array, ...]:
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(np.ascontiguousarray(part).view(np.uint8) for part in parts)


OPS: tuple[Any, ...] = (
    ndpool.MaxPool(2),
    ndpool.MaxPool(3, 2, 1, return_indices=True),
    ndpool.MaxPool(3, 1, 1, axes=(0, 1)),
    ndpool.MinPool(2, ties="split"),
    ndpool.AvgPool(3, 1, 1),
    ndpool.SumPool(9, 1),
    ndpool.SmoothMaxPool(3, 2, 1),
    ndpool.LpPool(2, 2),
    ndpool.AdaptiveAvgPool(7),
    ndpool.GlobalMaxPool(),
    ndpool.GlobalSumPool(axes=(0, 2)),
)
SMALL, MEDIUM, LARGE = (3, 9, 11), (5, 96, 160), (2, 300, 350)  # run under the interpreter's lock; not; memory is kept


def draw_calls(rng: Random, shapes: tuple[tuple[int, ...], ...] = (SMALL, MEDIUM, MEDIUM, LARGE)) -> list[Call]:
    """Some calls of every kind: ops, dtypes, shapes, values and derivatives."""
    with threads(1):
        return [draw_call(rng, shape) for shape in shapes for _ in range(4)]


def draw_call(rng: Random, shape: tuple[int, ...]) -> Call:
    op = rng.choice(OPS)
    whole = op.law.name in ("max", "min", "sum") and rng.random() < 0.2
    dtype = np.dtype("int32" if whole else rng.choice(("float32", "float32", "float64", "float16", ml_dtypes.bfloat16)))
    draw = np.random.default_rng(rng.getrandbits(32))
    x, dx = (draw.integers(-99, 99, shape).astype(dtype) for _ in range(2))
    dy = draw.integers(-9, 9, op.out_shape(shape)).astype(dtype)
    of_x = replace(op, return_indices=False) if hasattr(op, "return_indices") else op
    ways: dict[str, Callable[[], Any]] = {
        "": lambda: op(x),
        ".jvp": lambda: of_x.jvp(x, dx),
        ".vjp": lambda: of_x.vjp(x, dy),
        ".value_and_jvp": lambda: of_x.value_and_jvp(x, dx),
    }
    if of_x is not op and op.return_indices:
        y, indices = op(x)
        ways[", unpooled,"] = lambda: ndpool.max_unpool(
            y, indices, op.kernel_size, op.stride, op.padding, output_size=shape
        )
    way = "" if whole else rng.choice(list(ways))
    return Call(f"{op!r}{way} of {dtype} {shape}", ways[way], bits(ways[way]()))


def long_call(rng: Random, seconds: float, kinds: tuple[str, ...] = ("tiles", "line", "unit")) -> Call:
    """A call that takes about so long: of many tiles, of a line that is cut into pieces, or of one huge unit."""
    kind, row = rng.choice(kinds), np.random.default_rng(0).normal(size=1001).astype(np.float32)
    for n in (8 << i for i in range(99)):
        op, x = {
            "tiles": (ndpool.GlobalSmoothMaxPool(axes=(1, 2)), np.broadcast_to(row[:500], (n, 100, 500))),
            "line": (ndpool.GlobalSmoothMaxPool(axes=0), np.broadcast_to(row[0], 50_000 * n)),
            "unit": (ndpool.SmoothMaxPool((8 * n, 1000), 1), np.broadcast_to(row, (8 * n + 1, 1001))),
        }[kind]
        start = time.monotonic()
        op(x)
        if time.monotonic() > start + seconds:
            break
    with threads(1):
        return Call(f"{op!r} of {x.shape}", lambda: op(x), bits(op(x)))


def busy_call() -> Call:
    """Thousands of units of a microsecond each, so that locks are held often."""
    op, x = ndpool.GlobalMaxPool(), np.broadcast_to(np.uint8(7), (2000, 128, 128))
    return Call(f"{op!r} of uint8", lambda: op(x), bits(x[:, :1, :1]))


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = ndpool.threads()
    ndpool.set_threads(n)
    try:
        yield
    finally:
        ndpool.set_threads(before)


# -- the stage ---------------------------------------------------------------------------------------------------------


class Stage:
    """Threads that repeat their step until the time is up or one of them fails."""

    def __init__(self, seed: str, until: float):
        self.seed, self.until, self.rng = seed, until, Random(seed)
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    @cached_property
    def end(self) -> float:
        """When the time is up; some of it is left however long it took to get ready."""
        return max(self.until, time.monotonic() + LEAST)

    def goes_on(self) -> bool:
        return time.monotonic() < self.end and not self.errors

    def loop(self, step: Callable[[Random], Any], threads: int = 1) -> None:
        for _ in range(threads):
            rng = Random(f"{self.seed} {len(self.threads)}")
            self.threads.append(threading.Thread(target=self.repeat, args=(step, rng)))
            self.threads[-1].start()

    def repeat(self, step: Callable[[Random], Any], rng: Random) -> None:
        try:
            while self.goes_on():
                step(rng)
        except BaseException as error:
            self.errors.append(error)

    def finish(self) -> None:
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


def calling(calls: list[Call]) -> Callable[[Random], None]:
    return lambda rng: rng.choice(calls).check()


def forked(work: Callable[[], Any]) -> None:
    """Run `work` in a forked child, which must end, and end well."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    reap(child)


def reap(child: int) -> None:
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise Wrong(f"a forked child ended with {code}")


# -- scenarios ---------------------------------------------------------------------------------------------------------

SCENARIOS: dict[str, Callable[[Stage], None]] = {}


def scenario(function: Callable[[Stage], None]) -> Callable[[Stage], None]:
    SCENARIOS[function.__name__] = function
    return function


@scenario
def callers(stage: Stage) -> None:
    """State of one job that another caller's job changes, or that a late worker reads after its end."""
    ndpool.set_threads(stage.rng.choice((2, 3, 8)))
    stage.loop(calling(draw_calls(stage.rng)), stage.rng.choice((8, 16, 32)))
    stage.finish()


@scenario
def same_call(stage: Stage) -> None:
    """The same in calls that follow one another fast, where a late worker meets the next job."""
    ndpool.set_threads(8)
    op, x = ndpool.MaxPool(2), np.zeros((16, 128, 128), np.float32)
    stage.loop(calling([Call("MaxPool(2) of zeros", lambda: op(x), bits(x[:, ::2, ::2]))]), stage.rng.choice((1, 8)))
    stage.finish()


@scenario
def settings(stage: Stage) -> None:
    """Workers that are missing, left over or counted twice when the number of threads changes under running calls."""

    def change(rng: Random) -> None:
        ndpool.set_threads(rng.choice((1, 2, 3, 5, 8, 64)))
        native.use(rng.choice(native.isas()))
        time.sleep(rng.random() * 0.005)

    stage.loop(calling(draw_calls(stage.rng)), stage.rng.choice((1, 4)))
    stage.loop(change)
    stage.finish()


@scenario
def first_calls(stage: Stage) -> None:
    """Whatever is made by the first call, made by many at once."""
    x = np.random.default_rng(stage.rng.getrandbits(32)).normal(size=(8, 96, 96)).astype(np.float32)
    blocks = x.reshape(8, 48, 2, 48, 2)
    repeated = np.ones((1, 1, 2, 1, 2), np.float32)

    def work() -> None:
        stage, ready = Stage("", 0), threading.Barrier(8)
        sums, tops = ndpool.SumPool(2), ndpool.MaxPool(2)
        dy = np.ascontiguousarray(x[:, ::2, ::2])
        spread = (dy[:, :, None, :, None] * repeated).reshape(x.shape)
        once = [
            Call("MaxPool(2)", lambda: tops(x), bits(blocks.max((2, 4)))),
            Call("SumPool(2).vjp", lambda: sums.vjp(x, dy), bits(spread)),
        ]

        def step(i: int) -> None:
            ready.wait()
            for call in once if i % 2 else reversed(once):
                call.check()

        def guarded(i: int) -> None:
            try:
                step(i)
            except BaseException as error:
                stage.errors.append(error)

        stage.threads = [threading.Thread(target=guarded, args=(i,)) for i in range(8)]
        for thread in stage.threads:
            thread.start()
        stage.finish()

    while stage.goes_on():
        ndpool.set_threads(stage.rng.choice((1, 2, 8)))
        forked(work)
        for _ in range(16):
            next(COUNT)


@scenario
def forks(stage: Stage) -> None:
    """Locks that a child gets locked, workers that it believes in, memory that two of them use."""
    calls = draw_calls(stage.rng, (SMALL, MEDIUM, LARGE))
    ndpool.set_threads(stage.rng.choice((1, 1, 4)))

    def descend(rng: Random, generations: int) -> None:
        for _ in range(3):
            rng.choice(calls).check()
        if generations:
            forked(lambda: descend(rng, generations - 1))
            rng.choice(calls).check()

    stage.loop(calling([*calls, *[busy_call()] * len(calls)]), 4)
    if FOLLOWS_THREADS:
        ndpool.set_threads(1)
    stage.loop(lambda rng: forked(lambda: descend(rng, rng.choice((0, 0, 2)))), 2)
    stage.finish()


@scenario
def processes(stage: Stage) -> None:
    """Process pools, forked and fresh, of a program whose threads are inside calls."""
    stage.loop(calling(draw_calls(stage.rng)), 2)
    methods = itertools.cycle(("fork", "fork", "spawn"))
    while stage.goes_on():
        seeds = [stage.rng.getrandbits(32) for _ in range(6)]
        with multiprocessing.get_context(next(methods)).Pool(2) as workers:
            got = workers.map(_bits_of, seeds)
        if any(any(map(np.not_equal, a, b)) for a, b in zip(got, map(_bits_of, seeds), strict=True)):
            raise Wrong("a process of a pool got other bits")
    stage.finish()


def _bits_of(seed: int) -> list[bytes]:
    return [part.tobytes() for part in draw_call(Random(seed), MEDIUM).want]


@scenario
def endings(stage: Stage) -> None:
    """An abort or a hang where the interpreter ends: daemon threads are inside calls, and its last acts are calls."""
    calls = draw_calls(stage.rng, (SMALL, MEDIUM))
    long = long_call(stage.rng, 0.2, ("unit",))
    while stage.goes_on():
        rng = Random(stage.rng.getrandbits(32))
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            _soon_end(rng, calls, long)
            sys.exit(0)  # up to the end of the interpreter, with all that belongs to it
        reap(child)
        next(COUNT)


def _soon_end(rng: Random, calls: list[Call], long: Call) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def check() -> None:
        try:
            rng.choice(calls).check()
        except BaseException:  # at the end nobody else would report it
            traceback.print_exc()
            os._exit(3)

    def forever() -> None:
        while True:
            check()

    class Last:
        def __del__(self) -> None:
            calls[0].check()  # an error is no matter, half of Python is gone by then; a crash is

    ndpool.set_threads(rng.choice((1, 2, 8)))
    atexit.register(check)
    ndpool.last = Last()  # type: ignore[attr-defined]  # gone with the module, as the interpreter's last act
    for _ in range(rng.choice((0, 1, 6))):
        threading.Thread(target=forever, daemon=True).start()
    if rng.random() < 0.5:
        time.sleep(rng.random() * 0.05)
    else:  # workers may be inside a call that was interrupted until after the end
        signal.signal(signal.SIGALRM, interrupt)
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.2)  # it may ring at once
            long.run()
            while True:
                time.sleep(0.01)


@scenario
def errors(stage: Stage) -> None:
    """A run that ends in the middle: workers that go on with it, or errors that reach another caller."""
    ndpool.set_threads(stage.rng.choice((2, 8)))
    calls, op = draw_calls(stage.rng), ndpool.SumPool(3, 1)
    x = np.ones((16, 128, 128), np.int8)
    x[stage.rng.randrange(16), 50:53, 50:53] = 100

    def overflow(rng: Random) -> None:
        try:
            op(x)
        except PoolError:
            next(COUNT)
        else:
            raise Wrong("a sum that does not fit int8 raised no error")

    stage.loop(calling(calls), 4)
    stage.loop(overflow, 4)
    stage.finish()


@scenario
def little_memory(stage: Stage) -> None:
    """Anything but a MemoryError or the right result where there is no memory for results, scratch or threads."""
    calls = draw_calls(stage.rng, (SMALL, MEDIUM, LARGE))
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def step(rng: Random) -> None:
        with suppress(MemoryError):
            rng.choice(calls).check()

    def limit(rng: Random) -> None:
        ndpool.set_threads(rng.choice((1, 2, 8)))
        with open("/proc/self/statm") as f:
            now = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + rng.choice((0, 1 << 16, 1 << 20, 8 << 20)), unlimited[1]))
        time.sleep(rng.random() * 0.02)
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        time.sleep(rng.random() * 0.01)

    stage.loop(step, 4)
    stage.loop(limit)
    stage.finish()
    for call in calls:
        call.check()


@scenario
def interrupts(stage: Stage) -> None:
    """A Ctrl-C that a call swallows, that ends another thread's call, or after which calls go wrong."""
    calls = draw_calls(stage.rng, (SMALL, MEDIUM))
    ndpool.set_threads(stage.rng.choice((1, 2, 4)))
    long = long_call(stage.rng, 0.2)
    armed, interrupted = False, 0

    def interrupt(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def send() -> None:
        rng = Random(stage.seed)
        while stage.goes_on() or not interrupted:
            time.sleep(rng.random() * 0.1)
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    stage.loop(calling(calls), 3)
    stage.threads.append(threading.Thread(target=send))
    stage.threads[-1].start()
    while stage.goes_on() or not interrupted:
        try:
            armed = True
            (long if stage.rng.random() < 0.5 else stage.rng.choice(calls)).check()
            armed = False
        except KeyboardInterrupt:
            interrupted += 1
    stage.finish()
    while native.load()[0].workers():  # units that calls left behind hold their arrays until they end
        time.sleep(0.05)


@scenario
def handlers(stage: Stage) -> None:
    """A signal's handler that calls an op, or forks, in the middle of a call, which then goes on."""
    calls = draw_calls(stage.rng, (SMALL, MEDIUM, LARGE))
    ndpool.set_threads(stage.rng.choice((1, 2, 4)))
    long, handled, parent = long_call(stage.rng, 0.2), 0, os.getpid()

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1
        if stage.rng.random() < 0.7:
            stage.rng.choice(calls).check()
        elif (child := os.fork()) == 0:
            return  # the child goes on with the call that it was forked in
        else:
            reap(child)
        signal.setitimer(signal.ITIMER_REAL, stage.rng.random() * 0.05 + 1e-4)

    stage.loop(calling(calls), 2)  # before there are signals: a child has no second thread to wait for
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    rng = Random(stage.seed)
    while stage.goes_on() or not handled:
        try:
            (long if rng.random() < 0.2 else rng.choice(calls)).check()
        except BaseException:
            if os.getpid() != parent:
                traceback.print_exc()
                os._exit(1)
            raise
        if os.getpid() != parent:
            os._exit(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    stage.finish()


@scenario
def plans(stage: Stage) -> None:
    """Plans made, completed and dropped by several threads at once, while garbage is collected."""
    base = np.random.default_rng(stage.rng.getrandbits(32)).integers(-9, 9, (64, 2500)).astype(np.float32)
    ticket = itertools.count(stage.rng.randrange(1000) * 4)

    def step(rng: Random) -> None:
        n = 200 + next(ticket) // 4 % 1000  # a new plan, and three others are after it, too
        op, x = ndpool.SumPool((2,), dilation=1 + n % 2, stride=2), base[:, : 2 * n + 1]
        first, second = x[:, : 2 * n : 2], x[:, 1 + n % 2 :: 2][:, :n]
        dx = np.zeros_like(x)
        dx[:, : 2 * n : 2] += first
        dx[:, 1 + n % 2 :: 2][:, :n] += first
        Call(f"{op!r} of {x.shape}", lambda: op(x), bits(first + second)).check()
        Call(f"{op!r}.vjp of {x.shape}", lambda: op.vjp(x, first), bits(dx)).check()

    ndpool.set_threads(2)
    stage.loop(step, 8)
    stage.loop(lambda rng: gc.collect())
    stage.finish()


@scenario
def kept_memory(stage: Stage) -> None:
    """Results freed by other threads than made them, and memory handed to two results at once."""
    calls = draw_calls(stage.rng, (LARGE, (3, 300, 400)))
    made: queue.SimpleQueue[tuple[Call, Any]] = queue.SimpleQueue()

    def make(rng: Random) -> None:
        if made.qsize() < 20:
            made.put(((call := rng.choice(calls)), call.run()))
        else:
            time.sleep(0.001)

    def drop(rng: Random) -> None:
        with suppress(queue.Empty):
            call, result = made.get(timeout=0.01)
            call.compare(result)

    def change(rng: Random) -> None:
        ndpool.set_kept_memory(most := rng.choice((0, 1 << 20, 8 << 20, 64 << 20)))
        if ndpool.kept_memory() > most:
            raise Wrong("more memory is kept than is allowed")
        time.sleep(rng.random() * 0.01)

    stage.loop(make, 3)
    stage.loop(drop, 3)
    stage.loop(change)
    stage.finish()


@scenario
def torch(stage: Stage) -> None:
    """Calls from hooks inside a backward pass, from autograd's own threads, and from a loader's forked workers."""
    import torch
    from torch.utils.data import DataLoader

    import ndpool.torch.functional as F

    class Deep(torch.autograd.Function):  # so many backward passes inside one another go to a thread of torch's own
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            with torch.enable_grad():
                z = g.detach().requires_grad_()
                y = Deep.apply(z, ctx.depth - 1) if ctx.depth else F.avg_pool2d(z, 3, 1, 1)
            return *torch.autograd.grad(y, z, torch.ones_like(y)), None

    x = torch.arange(2 * 8 * 64 * 64).remainder(97.0).reshape(2, 8, 64, 64)

    def step(kernel: int, depth: int) -> tuple[Any, ...]:
        z = x.clone().requires_grad_()
        y = F.max_pool2d(z, kernel, 1)
        y.register_hook(lambda g: F.avg_pool2d(g, 3, 1, 1))
        Deep.apply(y, depth).sum().backward()
        return y.detach().numpy(), z.grad.numpy()

    def call(kernel: int, depth: int) -> Call:
        run = lambda: step(kernel, depth)  # noqa: E731
        return Call(f"max_pool2d of {kernel}, {depth} deep", run, bits(run()))

    with threads(1):
        calls = [call(kernel, depth) for kernel in (2, 3) for depth in (0, 0, 0, 70)]
        wants = torch.stack([F.max_pool2d(x[0] + i, 2) for i in range(8)])
    stage.loop(calling(calls), 4)
    while stage.goes_on():
        pooled = _Each(lambda i: F.max_pool2d(x[0] + i, 2))
        loader = DataLoader(pooled, num_workers=2, multiprocessing_context="fork")  # type: ignore
        if not torch.equal(torch.cat(list(loader)), wants):
            raise Wrong("a loader's workers got other bits")
        next(COUNT)
    stage.finish()


class _Each:
    def __init__(self, make: Callable[[int], Any]):
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


@scenario
def jax(stage: Stage) -> None:
    """Calls from threads of XLA's own, which come and go and of which several wait for one result."""
    import jax

    calls = draw_calls(stage.rng, (MEDIUM, MEDIUM))

    def step(rng: Random) -> None:
        call = rng.choice(calls)
        shapes = [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in call.want]
        got = jax.jit(lambda: jax.pure_callback(lambda: list(bits(call.run())), shapes))()
        call.compare(tuple(map(np.asarray, got)))

    stage.loop(step, 4)
    stage.loop(calling(calls), 2)
    stage.finish()


# -- running -----------------------------------------------------------------------------------------------------------


def act(name: str, seed: int, until: float) -> None:
    """A scenario in this process, in two halves: what is there after the first is what the second may need."""
    faulthandler.enable()
    if name in OTHERS:
        importlib.import_module(name)
    sizes = []
    for half, end in enumerate(((time.monotonic() + until) / 2, until)):
        SCENARIOS[name](Stage(f"{seed} {half}", end))
        sizes.append(_resident())
    if sizes[1] > sizes[0] + GROWTH and not SANITIZED:
        raise Wrong(f"the process grew from {sizes[0] >> 20} to {sizes[1] >> 20} MiB")
    print(f"{next(COUNT)} calls")


def _resident() -> int:
    """Bytes in use, without what is kept for later."""
    gc.collect()
    ndpool.set_kept_memory(0)
    ndpool.set_kept_memory(256 << 20)
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


OTHERS = ("torch", "jax")  # scenarios that take the library of that name


def missing(name: str) -> str:
    """Why a scenario cannot run here; nothing if it can."""
    if name in OTHERS and importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    if name in ("processes", "endings", "torch") and FOLLOWS_THREADS:
        return "ThreadSanitizer ends forked children that start threads"
    return "a sanitizer needs the memory" if name == "little_memory" and SANITIZED else ""


def perform(name: str, seed: int, seconds: float) -> tuple[str, int]:
    """What went wrong with one run of a scenario in a process of its own (nothing, if all is well), and its calls."""
    until = time.monotonic() + seconds
    command = [sys.executable, "-m", "tests.stress", "--only", name, "--seed", str(seed), "--until", str(until)]
    status, said = watched(command, seconds + PATIENCE)
    if status is None:
        return f"{said}the process hangs", 0
    if status:
        return f"{said}the process ended with {status}", 0
    return "", int(said.split()[-2])


def main(arguments: list[str] | None = None, out: Callable[[str], Any] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="the native engine among threads")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="not all scenarios, but this one")
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)  # set for a process of a scenario
    given = parser.parse_args(arguments)
    if not native.available():
        out(f"the native engine is not in use: {native.reason()}")
        return 1
    if given.until is not None:
        act(given.only[0], given.seed, given.until)
        return 0
    seed = time.time_ns() % 2**32 if given.seed is None else given.seed
    names = [name for name in given.only or SCENARIOS if not missing(name)]
    for name in given.only or SCENARIOS:
        if why := missing(name):
            out(f"{name}: skipped, {why}")
    passed = failed = total = 0
    end = time.monotonic() + given.seconds
    while time.monotonic() < end or not passed + failed:
        for i, name in enumerate(names):
            seconds = min(TURN, max(0.0, end - time.monotonic()) / (len(names) - i))
            wrong, calls = perform(name, seed, seconds)
            if wrong:
                out(f"{wrong}\nagain: python -m tests.stress --seconds {TURN:g} --only {name} --seed {seed}")
            out(f"{name}: {'failed' if wrong else f'{calls} calls'}, seed {seed}")
            passed, failed, total = passed + (not wrong), failed + bool(wrong), total + calls
        seed += 1
    out(f"{passed} passed, {failed} failed, {total} calls")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
