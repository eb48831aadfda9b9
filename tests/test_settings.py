"""Settings: what is understood, what is named in one warning and by `ndpool doctor`, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import ndpool
from ndpool import PoolError, settings
from ndpool.doctor import report
from ndpool.engines import native

CORES = settings._cores()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No variable is set, nothing has been read and nobody has been told."""
    for variable in settings.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(settings.Held, "threads", 0)
    monkeypatch.setattr(settings, "_told", set())


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        (settings.THREADS, "3", 3),
        (settings.THREADS, " 3 ", 3),
        (settings.THREADS, "0", CORES),
        (settings.THREADS, "", CORES),
        (settings.THREADS, "1024", 1024),
        (settings.KEPT_MEMORY, "", 256 << 20),
        (settings.KEPT_MEMORY, "0", 0),
        (settings.KEPT_MEMORY, "1000", 1000),
        (settings.KEPT_MEMORY, "256MB", 256 * 1000**2),
        (settings.KEPT_MEMORY, "256 mib", 256 << 20),
        (settings.KEPT_MEMORY, "1GiB", 1 << 30),
        (settings.KEPT_MEMORY, "1.5G", 3 << 29),
        (settings.KEPT_MEMORY, "2k", 2048),
        (settings.KEPT_MEMORY, "9223372036854775807", 2**63 - 1),
        (settings.ENGINE, "", ""),
        (settings.ENGINE, "Portable", "portable"),
        (settings.ENGINE, "NATIVE", "native"),
    ],
)
def test_what_is_understood(variable, text, value, monkeypatch):
    monkeypatch.setenv(variable.name, text)
    assert variable.read() == (value, "")
    assert variable.value() == value  # without a warning, which would be an error here


@pytest.mark.parametrize(
    ("variable", "text", "rule", "instead"),
    [
        *((settings.THREADS, text, "from 0 (one per core) to 1024", f"{CORES} threads")
          for text in ("abc", "-1", "1025", "1000000000000", "2.0", "٣", "9" * 5000)),
        *((settings.KEPT_MEMORY, text, "like 268435456, 256MB or 1GiB", "268435456 bytes")
          for text in (str(2**70), "-5", "256XB", "1.5", "MB", "1e9", "9" * 5000)),
        *((settings.ENGINE, text, "native or portable", "native where it is built") for text in ("cuda", "portables")),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named_once(variable, text, rule, instead, monkeypatch):
    monkeypatch.setenv(variable.name, text)
    words = f"{variable.name}={text[:60]!r} is not "
    with pytest.warns(RuntimeWarning) as told:
        values = {variable.value() for _ in range(3)}
    (warning,) = told
    assert str(warning.message).startswith(f"ndpool: {words}")
    assert rule in str(warning.message)
    assert str(warning.message).endswith(f"using {instead} instead")
    assert values == {variable.default()}
    assert words in report()


def test_one_warning_names_all_that_is_wrong(monkeypatch):
    monkeypatch.setenv("NDPOOL_THREADS", "abc")
    monkeypatch.setenv("NDPOOL_KEPT_MEMORY", "much")
    with pytest.warns(RuntimeWarning, match=r"NDPOOL_THREADS='abc'.*NDPOOL_KEPT_MEMORY='much'"):
        assert ndpool.threads() == CORES
    assert settings.KEPT_MEMORY.value() == 256 << 20


def test_many_threads_at_once_get_one_warning(monkeypatch):
    monkeypatch.setenv("NDPOOL_THREADS", "abc")

    def ask():
        asking = [threading.Thread(target=ndpool.threads) for _ in range(16)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    with pytest.warns(RuntimeWarning) as told:
        ask()
    assert len(told) == 1


def test_where_warnings_are_errors_the_next_call_works(monkeypatch):
    monkeypatch.setenv("NDPOOL_THREADS", "abc")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="NDPOOL_THREADS='abc'"):
            ndpool.threads()
        assert ndpool.threads() == CORES


def test_the_report_lists_all_settings(monkeypatch):
    monkeypatch.setenv("NDPOOL_KEPT_MEMORY", "1GiB")
    lines = [line.strip() for line in report().splitlines()]
    assert f"NDPOOL_THREADS is not set: {CORES} threads" in lines
    assert "NDPOOL_KEPT_MEMORY=1GiB: 1073741824 bytes" in lines
    assert "NDPOOL_ENGINE is not set: native where it is built" in lines


def test_an_engine_that_is_asked_for_and_missing_is_named(monkeypatch):
    monkeypatch.setenv("NDPOOL_ENGINE", "native")
    monkeypatch.setattr(native, "_load", lambda: (None, "it was not built"))
    with pytest.warns(RuntimeWarning, match="NDPOOL_ENGINE=native cannot be used: it was not built; using portable"):
        assert native.reason.__wrapped__() == "it was not built"


# -- functions


@pytest.mark.parametrize("number", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers_of_any_kind_are_taken(number):
    ndpool.set_threads(number)
    assert ndpool.threads() == 2
    assert type(ndpool.threads()) is int
    ndpool.set_kept_memory(number)
    ndpool.set_kept_memory(256 << 20)


@pytest.mark.parametrize("value", [True, np.True_, 2.0, "2", None, np.zeros(2)])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(
        PoolError, match=r"set_threads: n=.* is not a whole number of threads; use an int >= 0"
    ) as threads:
        ndpool.set_threads(value)
    with pytest.raises(PoolError, match=r"set_kept_memory: n=.* is not a whole number of bytes; use an int >= 0"):
        ndpool.set_kept_memory(value)
    assert isinstance(threads.value, TypeError)


@pytest.mark.parametrize("value", [-1, 2**40, 2**70])
def test_a_number_of_threads_has_limits(value):
    with pytest.raises(PoolError, match=rf"set_threads: n={value} is not .* use an int from 0 to 1024"):
        ndpool.set_threads(value)
    assert ndpool.threads() == CORES


@pytest.mark.parametrize("value", [-1, 2**63])
def test_kept_memory_has_limits(value):
    with pytest.raises(PoolError, match=rf"set_kept_memory: n={value} is not a number of bytes; use an int from 0 to"):
        ndpool.set_kept_memory(value)


# -- a process of its own: the first call is where it shows

FIRST = """
import sys, threading, numpy as np, ndpool
sys.stderr = sys.stdout
calls = [threading.Thread(target=ndpool.max_pool, args=(np.zeros((8, n, 8)), 2)) for n in range(2, 10)]
for call in calls: call.start()
for call in calls: call.join()
print(ndpool.avg_pool(np.ones((4, 4)), 2).sum(), ndpool.threads())
"""


@pytest.mark.parametrize(("name", "text"), [("NDPOOL_THREADS", "abc"), ("NDPOOL_KEPT_MEMORY", str(2**70))])
def test_a_first_call_warns_once_and_works(name, text):
    env = {key: value for key, value in os.environ.items() if not key.startswith("NDPOOL_")} | {name: text}
    run = subprocess.run([sys.executable, "-c", FIRST], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.count("RuntimeWarning") == run.stdout.count(f"{name}='{text}'") == 1
    assert run.stdout.splitlines()[-1] == f"4.0 {CORES}"
    assert run.stderr == ""


def test_one_thread_here_and_as_many_as_were_elsewhere():
    ndpool.set_threads(3)
    seen = []

    def elsewhere():
        seen.append(settings.threads())

    with settings.on_one_thread():
        with settings.on_one_thread():
            assert settings.threads() == native.threads() == 1
        assert settings.threads() == 1
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        ndpool.set_threads(5)  # for everybody else, and for later
        assert settings.threads() == 1
    with pytest.raises(ZeroDivisionError), settings.on_one_thread():
        1 / 0  # noqa: B018
    assert (seen, settings.threads()) == ([3], 5)
