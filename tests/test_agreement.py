"""One table: engine x law x window x scalar kind, each against the reference engine, which is the spec itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool.engines import choose, native, passes, portable, reference
from ndpool.spec import Window, adaptive, each, sliding, whole

from . import cases, examples
from .cases import (
    BFLOAT16,
    COMPLEX,
    DTYPES,
    EXTREMES,
    LAWS,
    NORMS,
    SMOOTH,
    SUMS,
    assert_close,
    assert_exact,
    assert_same_zeros,
)


@dataclass(frozen=True)
class Engine:
    """`forward`, `linearize` and `winners` of one engine, on one array library's arrays."""

    runs: Any
    array: Callable[[np.ndarray], Any]
    back: Callable[[Any], np.ndarray]
    dtypes: tuple[np.dtype, ...]

    def linearize(self, window: Window, law: Any, x: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            linear = self.runs.linearize(window, law, self.array(x))
        return SimpleNamespace(y=self.back(linear.y), jvp=self._map(linear.jvp), vjp=self._map(linear.vjp))

    def forward(self, window: Window, law: Any, x: np.ndarray) -> np.ndarray:
        return self._map(lambda a: self.runs.forward(window, law, a))(x)

    def winners(self, window: Window, law: Any, x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        y, places = self.runs.winners(window, law, self.array(x), axes)
        return self.back(y), self.back(places)

    def _map(self, f: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
        def call(x: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return self.back(f(self.array(x)))

        return call


def _portable(xp: Any) -> Any:
    """The engine on a library whose arrays do not say that they are its."""

    def runs(name: str) -> Callable[..., Any]:
        return lambda window, law, x, *rest: getattr(portable.plan_of(xp, window, law), name)(x, *rest)

    return SimpleNamespace(**{name: runs(name) for name in ("forward", "linearize", "winners")})


def _numpy() -> Engine:
    return Engine(_portable(np), np.asarray, np.asarray, DTYPES)


def _strict() -> Engine:
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict checks the array API standard")
    short = (np.dtype("float16"), BFLOAT16)
    return Engine(_portable(xp), xp.asarray, np.asarray, tuple(d for d in DTYPES if d not in short))


def _torch() -> Engine:
    torch = pytest.importorskip("torch", reason="torch is one of the array libraries of the portable engine")
    xp = pytest.importorskip("array_api_compat.torch", reason="array_api_compat gives torch the standard's names")

    def array(x: np.ndarray) -> Any:
        return torch.tensor(x.astype(np.float32)).to(torch.bfloat16) if x.dtype == BFLOAT16 else torch.tensor(x)

    def back(x: Any) -> np.ndarray:
        return x.to(torch.float32).numpy().astype(BFLOAT16) if x.dtype == torch.bfloat16 else x.numpy()

    wide_unsigned = tuple(map(np.dtype, ("uint16", "uint32", "uint64")))  # torch has no arithmetic for them
    return Engine(_portable(xp), array, back, tuple(d for d in DTYPES if d not in wide_unsigned))


def _native() -> Engine:
    if not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")

    def runs(name: str) -> Callable[..., Any]:
        def run(window: Window, law: Any, x: np.ndarray, *rest: Any) -> Any:
            served = has_work(window) and native.takes(law, x.dtype)
            assert native.supports(window, law, x) == served
            # what the engine leaves to others, as `choose` does
            plan = native.bind(window, law, x) if served else portable.bind(window, law, x)
            if name == "linearize" and not plan.differentiates:
                plan = choose(window, law, x, derivative=True)
            return getattr(plan, name)(x, *rest)

        return run

    every = SimpleNamespace(**{name: runs(name) for name in ("forward", "linearize", "winners")})
    return Engine(every, np.asarray, np.asarray, tuple(d for d in DTYPES if d not in COMPLEX))


def has_work(window: Window) -> bool:
    """Whether there is something to read, something to make, and an axis to pool."""
    return 0 not in window.shape + window.out_shape and bool(cases.pooled(window))


ENGINES = {"numpy": _numpy, "array_api_strict": _strict, "torch": _torch, "native": _native}

# The two ways in which the portable engine folds an axis, whatever its plan would find cheaper.
WAYS: dict[str, Callable[..., list[int]]] = {
    "direct": lambda longest, *_: [0] * (longest - 1),
    "doubling": lambda longest, *_: list(range((longest - 1).bit_length() - 1, -1, -1)),
}

ALL = {**LAWS, **cases.MODES}
each_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)
long = pytest.mark.long
PORTABLE = [
    *(("numpy", way) for way in WAYS),
    ("array_api_strict", "doubling"),
    ("torch", "direct"),
    pytest.param("array_api_strict", "direct", marks=long),
    pytest.param("torch", "doubling", marks=long),
]
NATIVE = ("native", "as planned")
each_engine_each_way = pytest.mark.parametrize(("engine", "way"), [*PORTABLE, NATIVE], indirect=True)
on_numpy_each_way = pytest.mark.parametrize(("engine", "way"), [*PORTABLE[:2], NATIVE], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param in WAYS:
        monkeypatch.setattr(passes, "_levels", WAYS[request.param])
    passes.forget()
    yield request.param
    passes.forget()


@dataclass(frozen=True)
class Case:
    """An input, a tangent, a cotangent, and what the reference makes of them."""

    window: Window
    x: np.ndarray
    dx: np.ndarray
    dy: np.ndarray
    y: np.ndarray
    jvp: np.ndarray | None
    vjp: np.ndarray | None


def case(law: Any, window: Window, dtype: np.dtype, seed: int, specials: bool) -> Case:
    rng = np.random.default_rng(seed)
    x = cases.values(rng, window.shape, dtype, specials)
    dx, dy = cases.tangents(rng, window.shape, dtype), cases.tangents(rng, window.out_shape, dtype)
    linear = reference.linearize(window, law, x)
    if law.no_derivative or (law.divides and dtype in cases.INTEGERS):
        return Case(window, x, dx, dy, linear.y, None, None)
    return Case(window, x, dx, dy, linear.y, linear.jvp(dx), linear.vjp(dy))


@cache
def table_case(law: str, counted: bool, window: str, dtype: np.dtype) -> Case:
    return case(ALL[law], cases.WINDOWS[counted][window], dtype, seed=len(window), specials=law in EXTREMES)


def check(engine: Engine, law: Any, want: Case, note: Any) -> None:
    """Bit for bit where a value is chosen; within the stated tolerance where floats are summed."""
    chosen = law.picks
    whole = law.name == "sum" or (chosen and law.params[0] != "split")  # tangents are whole numbers, and only added
    if law.no_derivative:
        assert_exact(engine.forward(want.window, law, want.x), want.y, note)
        return
    got = engine.linearize(want.window, law, want.x)
    (assert_exact if chosen else assert_close)(got.y, want.y, note)
    if chosen:
        assert_same_zeros(got.y, want.y, note)
    if want.jvp is not None:
        compare = assert_exact if whole else assert_close
        compare(got.jvp(want.dx), want.jvp, note)
        compare(got.vjp(want.dy), want.vjp, note)


@each_engine_each_way
@pytest.mark.parametrize("law", ALL)
def test_engine_agrees_with_the_reference(engine: Engine, way: str, law: str) -> None:
    for window, counted, _ in cases.told_apart(ALL[law]):
        want = table_case(law, counted, window, cases.usual(ALL[law]))
        check(engine, ALL[law], want, (window, counted))


@each_engine
@pytest.mark.parametrize("law", ALL)
def test_every_dtype_agrees_with_the_reference(engine: Engine, law: str) -> None:
    for dtype in (d for d in cases.KINDS[ALL[law].name] if d in engine.dtypes):
        for window, counted, _ in cases.told_apart(ALL[law], cases.FEW):
            want = table_case(law, counted, window, dtype)
            check(engine, ALL[law], want, (dtype.name, window, counted))


@each_engine_each_way
@pytest.mark.parametrize("law", EXTREMES)
def test_winners_agree_with_the_reference(engine: Engine, way: str, law: str) -> None:
    for name, window in cases.WINDOWS[False].items():
        x, axes = table_case(law, False, name, np.dtype("float64")).x, cases.pooled(window)
        want = reference.winners(window, LAWS[law], x, axes)
        got = engine.winners(window, LAWS[law], x, axes)
        assert_exact(got[0], want[0], name)
        assert np.array_equal(got[1], want[1]), (name, got[1], want[1])


def dtypes(engine: Engine, law: Any) -> st.SearchStrategy[np.dtype]:
    """Every dtype that both take, the usual one as often as all others."""
    both = [d for d in cases.KINDS[law.name] if d in engine.dtypes]
    return st.just(cases.usual(law)) | st.sampled_from(both)


@on_numpy_each_way
@pytest.mark.parametrize("law", ALL)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_any_window_agrees_with_the_reference(engine: Engine, way: str, law: str, data: st.DataObject) -> None:
    window = data.draw(cases.windows(counted=data.draw(st.sampled_from(cases.counted_choices(ALL[law])))))
    dtype, seed = data.draw(dtypes(engine, ALL[law])), data.draw(st.integers(0, 2**16))
    want = case(ALL[law], window, dtype, seed, specials=law in EXTREMES)
    check(engine, ALL[law], want, (window, dtype.name))
    if ALL[law].no_derivative:
        return
    forward, y = engine.forward(window, ALL[law], want.x), engine.linearize(window, ALL[law], want.x).y
    assert_exact(forward, y, (window, dtype.name))
    assert_same_zeros(forward, y, (window, dtype.name))


@on_numpy_each_way
@pytest.mark.parametrize("law", EXTREMES)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_any_window_has_the_winners_of_the_reference(engine: Engine, way: str, law: str, data: st.DataObject) -> None:
    window, dtype = data.draw(cases.windows()), data.draw(dtypes(engine, LAWS[law]))
    x = cases.values(np.random.default_rng(data.draw(st.integers(0, 2**16))), window.shape, dtype, specials=True)
    axes = tuple(range(len(window.axes)))
    got, want = (run(window, LAWS[law], x, axes) for run in (engine.winners, reference.winners))
    assert_exact(got[0], want[0], (window, dtype.name))
    assert np.array_equal(got[1], want[1]), (window, dtype.name, got[1], want[1])


@pytest.mark.parametrize("law", EXTREMES)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_extremes_of_padding_that_counts_agree_with_the_reference(law: str, data: st.DataObject) -> None:
    """Only a `Pool` of the max or min law with count_include_pad=True reads padding; its zeros may tie with taps."""
    window = data.draw(cases.windows(counted=True, ranks=(1, 2)))
    x = np.random.default_rng(data.draw(st.integers(0, 2**16))).integers(-1, 2, window.shape).astype(float)
    dy = np.ones(window.out_shape)
    got, want = (choose(window, LAWS[law], v).linearize(v) for v in (x, x.tolist()))
    assert_exact(got.y, np.array(want.y, float).reshape(window.out_shape))
    assert_close(got.vjp(dy), np.array(want.vjp(dy.tolist()), float).reshape(window.shape))


SPECIALS = {**SUMS, **SMOOTH, **NORMS}


@each_engine_each_way
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("law", SPECIALS)
def test_nan_and_infinity_agree_with_the_reference(engine: Engine, way: str, law: str, special: float) -> None:
    for window in (Window((sliding(6, 3, 1, (1, 1)),)), Window((adaptive(7, 3), each(2)))):
        rng = np.random.default_rng(3)
        x = rng.normal(size=window.shape)
        x.flat[4] = special
        dx, dy = (cases.tangents(rng, shape, float) for shape in (window.shape, window.out_shape))
        want, got = reference.linearize(window, LAWS[law], x), engine.linearize(window, LAWS[law], x)
        assert_close(got.y, want.y, "y")
        assert_close(got.jvp(dx), want.jvp(dx), "jvp")
        assert_close(got.vjp(dy), want.vjp(dy), "vjp")


SMEARS = {
    "sliding": Window((sliding(12, 5, 2, (2, 1)),)),
    "dilated": Window((sliding(14, 4, 1, (2, 3), 2),)),
    "uneven bins": Window((adaptive(13, 5),)),
    "plane": Window((adaptive(5, 3), sliding(6, 3, 2, (1, 1)))),
    "long": Window((sliding(40, 9, 3, (2, 3)),)),
    "behind the last window": Window((sliding(5, 2), sliding(7, 3, 2), each(2))),
}


def uncounted(window: Window) -> Window:
    return Window(tuple(replace(axis, margin=(0, 0)) for axis in window.axes))


@each_engine_each_way
@pytest.mark.parametrize("window", SMEARS)
@pytest.mark.parametrize("law", ["max first propagate", "max split ignore", *SUMS, *SMOOTH, *NORMS])
def test_nothing_smears_into_other_windows(engine: Engine, way: str, law: str, window: str) -> None:
    """A NaN or inf of x or dx shows in the outputs that read it and no others; one of dy in its own taps."""
    window = uncounted(SMEARS[window]) if law in EXTREMES else SMEARS[window]
    rng = np.random.default_rng(7)
    x, dx, dy = (rng.normal(size=shape) for shape in (window.shape, window.shape, window.out_shape))
    reads = np.zeros((dy.size, x.size), bool)
    for o, (taps, _) in enumerate(window):
        reads[o, taps] = True
    clean = engine.linearize(window, LAWS[law], x)
    clean_jvp, clean_vjp = clean.jvp(dx), clean.vjp(dy)

    def spoil(a: np.ndarray, i: int, special: float) -> np.ndarray:
        a = a.copy()
        a.flat[i] = special
        return a

    def assert_untouched(got: np.ndarray, want: np.ndarray, touched: np.ndarray, note: Any) -> None:
        assert np.array_equal(got.reshape(-1)[~touched], want.reshape(-1)[~touched]), note

    for special in (np.nan, np.inf):
        for i in range(0, x.size, 5):
            bad = spoil(x, i, special)
            assert_untouched(engine.forward(window, LAWS[law], bad), clean.y, reads[:, i], ("x", i))
            at_bad = engine.linearize(window, LAWS[law], bad)
            assert_untouched(at_bad.jvp(dx), clean_jvp, reads[:, i], ("jvp at x", i))
            beside = reads[reads[:, i]].any(axis=0)  # inputs of the same windows
            assert_untouched(at_bad.vjp(dy), clean_vjp, beside, ("vjp at x", i))
            assert_untouched(clean.jvp(spoil(dx, i, special)), clean_jvp, reads[:, i], ("dx", i))
        for o in range(0, dy.size, 3):
            assert_untouched(clean.vjp(spoil(dy, o, special)), clean_vjp, reads[o], ("dy", o))


UNREAD = {
    "behind the last window": Window((sliding(5, 2),)),
    "behind the last window, padded": Window((sliding(8, 3, 4, (1, 0)),)),
    "behind a window alone": Window((sliding(9, 4, 7),)),
    "between windows": Window((sliding(11, 2, 4, (1, 0)),)),
    "between taps": Window((sliding(9, 2, 4, (0, 0), 2), each(2))),
    "behind a long window": Window((sliding(22, 17, 4),)),
    "between long windows": Window((sliding(45, 11, 17, (3, 0)),)),
    "plane": Window((sliding(5, 2), each(2), sliding(7, 2, 3))),
    "beside bins": Window((adaptive(5, 3), sliding(5, 2))),
    "under whole windows": Window((sliding(5, 2), whole(4))),
}


@each_engine_each_way
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("law", LAWS)
def test_inputs_that_no_output_reads_change_nothing(engine: Engine, way: str, law: str, special: float) -> None:
    """Nor have they a cotangent: a weight that is NaN must not meet the 0 that they get."""
    for name, window in UNREAD.items():
        window = uncounted(window) if law in EXTREMES else window
        rng = np.random.default_rng(11)
        x, dx, dy = (cases.tangents(rng, shape, float) for shape in (window.shape, window.shape, window.out_shape))
        unread = np.ones(x.size, bool)
        for taps, _ in window:
            unread[taps] = False
        assert unread.any()
        for a in (x, dx):
            a.reshape(-1)[unread] = special
        want, got = reference.linearize(window, LAWS[law], x), engine.linearize(window, LAWS[law], x)
        back = got.vjp(dy)
        assert_close(got.y, want.y, (name, "y"))
        assert_close(got.jvp(dx), want.jvp(dx), (name, "jvp"))
        assert_close(back, want.vjp(dy), (name, "vjp"))
        assert not back.reshape(-1)[unread].any(), name


@pytest.mark.parametrize(("engine", "way"), PORTABLE, indirect=True)
@pytest.mark.parametrize("tangent", [np.nan, np.inf])
@pytest.mark.parametrize("law", NORMS)
def test_a_finite_tap_has_no_share_in_an_infinite_norm(engine: Engine, way: str, law: str, tangent: float) -> None:
    """Its tangent is left out, not multiplied by 0."""
    window = Window((sliding(9, 4, 1, (1, 1)),))
    x, dx = np.array([1.0, 2, np.inf, -3, 4, -np.inf, 5, 6, 0]), np.arange(1.0, 10)
    dx[[1, 3, 8]] = tangent
    want, got = reference.linearize(window, LAWS[law], x), engine.linearize(window, LAWS[law], x)
    assert_close(got.y, want.y, "y")
    assert_close(got.jvp(dx), want.jvp(dx), "jvp")


@on_numpy_each_way
@pytest.mark.parametrize("law", ALL)
def test_long_kernels_agree_with_the_reference(engine: Engine, way: str, law: str) -> None:
    for kernel in (2, 9, 10, 31, 64):
        window = Window((each(2), sliding(70, kernel, 7, (kernel // 2, 1), count_padding=ALL[law].name == "mean")))
        check(engine, ALL[law], case(ALL[law], window, cases.usual(ALL[law]), kernel, specials=False), kernel)


def test_array_operations_grow_with_the_logarithm_of_the_kernel() -> None:
    plans = {kernel: passes.plan(sliding(4096, kernel, 1)) for kernel in (3, 63, 255, 1023)}
    merges = {kernel: len(plan.hops) + len(plan.joins) for kernel, plan in plans.items()}
    assert merges[3] == 2
    assert merges[63] <= 2 * 6
    assert merges[1023] - merges[255] <= 2 * 2


def vectors(part: Any, seen: set[int]) -> int:
    """The bytes of all host vectors that `part` holds."""
    if id(part) in seen:
        return 0
    seen.add(id(part))
    if isinstance(part, np.ndarray):
        return part.nbytes
    if isinstance(part, (tuple, list)):
        return sum(vectors(p, seen) for p in part)
    return sum(vectors(p, seen) for p in vars(part).values()) if hasattr(part, "__dict__") else 0


REGULAR = {
    "sliding": sliding(10**12, 3, 1),
    "padded": sliding(10**12, 3, 2, (1, 1), count_padding=False),
    "long": sliding(10**12, 31, 1, (15, 15)),
    "dilated, in ceil mode": sliding(10**12, 3, 2, (1, 2), 3, ceil_mode=True),
    "whole": whole(10**12),
    "even bins": adaptive(10**12, 10**11),
}


@pytest.mark.parametrize("axis", REGULAR)
def test_a_plan_of_a_regular_axis_is_small_however_long_it_is(axis: str) -> None:
    """The first call must not cost more than the second by anything that grows with the array."""
    plan = passes.plan(REGULAR[axis])
    assert vectors(plan, set()) <= 1024
    assert plan.nbytes <= 100_000


@pytest.mark.parametrize("axis", [adaptive(50_000, 13_001), adaptive(13_001, 50_000), adaptive(50_000, 71)], ids=str)
def test_a_plan_takes_the_bytes_that_it_says(axis: Any) -> None:
    """With what a vjp adds."""
    passes.forget()
    window, plan = Window((axis,)), passes.plan(axis)
    portable.linearize(window, LAWS["lp 2"], np.ones(axis.size)).vjp(np.ones(axis.outputs))
    assert passes.plan(axis) is plan
    assert 1000 < vectors(plan, set()) <= plan.nbytes <= 4 * vectors(plan, set())
    assert passes.kept() == plan.nbytes


def test_plans_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = [adaptive(1000 + i, 331) for i in range(40)]
    passes.forget()
    one = passes.plan(axes[0]).nbytes
    monkeypatch.setattr(passes, "KEPT", 10 * one)
    first = passes.plan(axes[0])
    for axis in axes[1:]:
        passes.plan(axis)
        assert passes.plan(axes[0]) is first  # used again and again
        assert passes.kept() <= 10 * one
    assert passes.kept() > 7 * one
    assert passes.plan(adaptive(100_000, 33_331)) is not passes.plan(adaptive(100_000, 33_331))  # more than all
    assert passes.kept() <= 10 * one
    passes.forget()
    assert passes.kept() == 0


@pytest.mark.parametrize("engine", ["numpy", "native"], indirect=True)
@pytest.mark.parametrize(
    "op", [ndpool.AvgPool(8, 2), ndpool.MaxPool(12, 2), ndpool.MinPool(23, 1), ndpool.SmoothMaxPool(7, 1, beta=2.0)]
)
def test_a_window_gives_the_same_bits_in_any_batch_and_any_crop(engine: Engine, op: ndpool.Op) -> None:
    def pool(x: np.ndarray) -> np.ndarray:
        return engine.forward(op.window(x.shape), op.law, x)

    x = np.random.default_rng(0).normal(size=(64, 32, 32)).astype(np.float32)
    whole = pool(x)
    assert np.array_equal(whole[5], pool(x[5]))
    stride = op.stride or op.kernel_size
    assert np.array_equal(whole[:, 1:, 2:], pool(x[:, stride:, 2 * stride :]))


@pytest.mark.parametrize("op", [ndpool.AvgPool(12, 2), ndpool.AvgPool(31, 1), ndpool.SmoothMaxPool(9, 1, beta=2.0)])
def test_a_long_window_gives_the_same_bits_in_any_batch_and_layout(op: ndpool.Op) -> None:
    x = np.random.default_rng(0).normal(size=(64, 36, 36)).astype(np.float32)
    whole = op(x)
    assert np.array_equal(whole[5], op(x[5]))
    assert np.array_equal(whole, op(np.asfortranarray(x)))
    stride = op.stride or op.kernel_size
    np.testing.assert_allclose(op(x[:, stride:, 2 * stride :]), whole[:, 1:, 2:], rtol=1e-5, atol=1e-6)


# -- ndpool.torch: records on tensors, differentiated by torch -------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["operators", "composite"])
@pytest.mark.parametrize("name", [name for name, op in cases.RECORDS.items() if op.law.name in portable.LAWS])
def test_tensors_agree_with_the_reference(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="the adapter is torch's")
    from ndpool.torch import functional

    from .torch.ops import use

    use(way, monkeypatch)
    op = cases.RECORDS[name]
    given = {field.name: getattr(op, field.name) for field in fields(op)}

    def pool(x: Any) -> Any:
        return getattr(functional, op.name)(x, **given)

    shape = op.out_shape(cases.SHAPE)
    for seed, dtype in enumerate(("float64", "float32")):
        want = case(op.law, op.window(cases.SHAPE), np.dtype(dtype), seed, specials=False)
        x, dx = torch.from_numpy(want.x).requires_grad_(), torch.from_numpy(want.dx)
        y = pool(x)
        y.backward(torch.from_numpy(want.dy.reshape(shape)))
        _, moved = torch.func.jvp(pool, (x.detach(),), (dx,))
        assert want.jvp is not None
        assert_close(y.detach().numpy(), want.y.reshape(shape), "y")
        assert_close(moved.numpy(), want.jvp.reshape(shape), "jvp")
        assert_close(x.grad.numpy(), want.vjp, "vjp")
        if op.law.name in ("max", "min"):
            assert_same_zeros(y.detach().numpy(), want.y.reshape(shape), "y")
            places = getattr(functional, op.name)(x.detach(), **given | {"return_indices": True})[1]
            found = reference.winners(want.window, op.law, want.x, op.pooled_axes(len(cases.SHAPE)))[1]
            assert np.array_equal(places.numpy(), np.reshape(found, shape))
