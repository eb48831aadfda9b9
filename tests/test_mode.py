"""Mode pooling: the most frequent value, counted by hand, by the spec and in parts; labels of every type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError
from ndpool.engines import ENGINES, native, portable, reference, stacked
from ndpool.slab import Slab
from ndpool.spec import Dual, Interval, Window, mode, sliding

from . import cases
from .cases import BOOL, INTEGERS, LABELLED, MODES, SHAPE, assert_exact
from .test_slab import parts

each_rule = pytest.mark.parametrize("ties", ["smallest", "first"])
labels = st.lists(st.integers(0, 3), min_size=1, max_size=9)


def counted(x: Sequence[Any], ties: str) -> Any:
    """What Python's own counter finds: it keeps the order of appearance."""
    counts = Counter(x)
    modes = [label for label, n in counts.items() if n == max(counts.values())]
    return min(modes) if ties == "smallest" else modes[0]


@each_rule
@given(x=labels)
def test_the_most_frequent_value_wins(ties: str, x: list[int]) -> None:
    assert ndpool.global_mode_pool(x, ties=ties) == [counted(x, ties)]
    for dtype in ("uint8", "int64"):
        assert ndpool.global_mode_pool(np.array(x, dtype), ties=ties).tolist() == [counted(x, ties)]


@each_rule
@given(*[labels] * 3)
def test_merging_is_associative(ties: str, x: list[int], y: list[int], z: list[int]) -> None:
    law = mode(ties)

    def state(taps: list[int]) -> Any:
        found = law.lift(taps[0], 0)
        for t, tap in enumerate(taps[1:], 1):
            found = law.merge(found, law.lift(tap, t))
        return found

    a, b, c = map(state, (x, y, z))
    assert law.merge(law.merge(a, b), c) == law.merge(a, law.merge(b, c)) == state(x + y + z)
    assert law.finish(state(x + y + z), 1) == (counted(x + y + z, ties), None)


@each_rule
def test_lists_hold_anything_that_compares(ties: str) -> None:
    assert ndpool.mode_pool(["sky", "sea", "sea", "ice"], (4,), ties=ties) == ["sea"]
    assert ndpool.mode_pool([2**80, 1, 2**80], (3,), ties=ties) == [2**80]


def test_first_is_row_major() -> None:
    x = np.array([[3, 1], [2, 1], [2, 3]])
    assert ndpool.mode_pool(x, (3, 2), ties="first").tolist() == [[3]]
    assert ndpool.mode_pool(x, (3, 2)).tolist() == [[1]]
    assert ndpool.mode_pool(x.T, (2, 3), ties="first").tolist() == [[3]]
    assert ndpool.mode_pool(x[::-1], (3, 2), ties="first").tolist() == [[2]]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_bit_of_a_label_counts(dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    for bit in range(info.bits):
        one = np.array([1 << bit], "u8").astype(dtype)[0]
        x = np.array([0, one, one, 0, one, 0, one, 0], dtype)
        assert ndpool.mode_pool(x, (3,), 3).tolist() == [one, 0]
        assert ndpool.mode_pool(x, (8,)).tolist() == [min(0, int(one))]
    ends = np.array([info.max, info.min, info.max, info.min], dtype)
    assert ndpool.mode_pool(ends, (4,)).tolist() == [info.min]
    assert ndpool.mode_pool(ends, (4,), ties="first").tolist() == [info.max]


# -- the portable engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", MODES)
@pytest.mark.parametrize("few", [0, 100])
@given(st.data())
def test_comparing_and_sorting_agree(law: str, few: int, data: Any) -> None:
    window = data.draw(cases.windows())
    x = cases.values(np.random.default_rng(data.draw(st.integers(0, 99))), window.shape, "int16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacked, "FEW", few)
        assert_exact(portable.forward(window, MODES[law], x), reference.forward(window, MODES[law], x), window)


@pytest.mark.parametrize("law", MODES)
@given(st.data())
def test_few_taps_at_a_time_give_the_same(law: str, data: Any) -> None:
    window = data.draw(cases.windows())
    x = cases.values(np.random.default_rng(1), window.shape, "uint8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacked, "HELD", data.draw(st.sampled_from([1, 7, 40])))
        got = portable.forward(window, MODES[law], x)
    assert_exact(got, portable.forward(window, MODES[law], x), window)


def test_memory_is_bounded_by_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large window is never compared pair by pair, and many outputs are never laid side by side at once."""
    seen = []
    law = stacked.STACKED["mode"]
    monkeypatch.setitem(stacked.STACKED, "mode", lambda xp, taps, *rest: seen.append(taps.size) or law(xp, taps, *rest))
    monkeypatch.setattr(stacked, "HELD", 1000)
    portable.forward(Window((sliding(300, 9, 1), sliding(40, 9, 1))), mode(), np.zeros((300, 40), np.uint8))
    assert max(seen) <= 1000 + 81


# -- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [native, portable], ids=lambda engine: engine.NAME)
@pytest.mark.parametrize("law", MODES)
@given(data=st.data(), seed=st.integers(0, 99))
def test_a_part_has_the_labels_of_the_whole(engine: Any, law: str, data: Any, seed: int) -> None:
    window, outputs, where, alone = data.draw(parts(counted=False))
    x = cases.values(
        np.random.default_rng(seed), window.shape, data.draw(st.sampled_from(["uint8", "int32", "uint64"]))
    )
    x = np.asfortranarray(x) if data.draw(st.booleans()) else x
    part = np.ascontiguousarray(x[where]) if data.draw(st.booleans()) else x[where]
    if engine.supports(window, MODES[law], x) and engine.supports(alone, MODES[law], part):
        whole = engine.forward(window, MODES[law], x)
        assert_exact(engine.forward(alone, MODES[law], part), whole[outputs], (window, outputs))


@pytest.mark.parametrize("name", LABELLED)
def test_slabs_of_labels(name: str) -> None:
    op, x = LABELLED[name], cases.values(np.random.default_rng(2), SHAPE, "uint8")
    window = op.window(SHAPE)
    whole = op(x).reshape(window.out_shape)
    for o in np.ndindex(window.out_shape):
        slab = Slab(op, SHAPE, tuple(slice(i, i + 1) for i in o))
        assert_exact(slab(x[slab.reads]), whole[slab.writes], slab)


# -- errors ----------------------------------------------------------------------------------------------------------

COUNTS = "a mode is the most frequent value and has no derivative; keep it out of what is differentiated"


@pytest.mark.parametrize("x", [[[1, 2], [2, 1]], np.ones((2, 2), np.int32), np.ones((2, 2), bool)], ids=type)
@pytest.mark.parametrize("op", [ndpool.ModePool(2), ndpool.AdaptiveModePool(1), ndpool.GlobalModePool()], ids=str)
def test_there_is_no_derivative(op: Any, x: Any) -> None:
    t = np.ones((2, 2)) if isinstance(x, np.ndarray) else x
    for call in (
        lambda: op.linearize(x),
        lambda: op.jvp(x, t),
        lambda: op.vjp(x, t[:1]),
        lambda: op.value_and_jvp(x, t),
        lambda: op.jacobian(x),
        lambda: op.hvp(x, t, t[:1]),
    ):
        with pytest.raises(PoolTypeError, match=f"^{op.name}: .*{COUNTS}"):
            call()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
def test_no_engine_has_one(engine: Any) -> None:
    window, x = Window((sliding(4, 2),)), np.ones(4, np.uint8)
    if not engine.supports(window, mode(), x):
        pytest.skip("nothing to ask")
    plan = engine.bind(window, mode(), x)
    with pytest.raises(PoolError, match="derivative"):
        plan.linearize(x).jvp(np.ones(4))


@pytest.mark.parametrize("dtype", [*cases.FLOATS, *cases.COMPLEX], ids=str)
def test_floats_are_refused(dtype: np.dtype) -> None:
    words = f"^mode_pool: x has dtype {dtype.name}, but mode takes bool or integer elements; convert x to int32$"
    with pytest.raises(PoolTypeError, match=words):
        ndpool.mode_pool(np.ones((2, 2), dtype), 2)
    with pytest.raises(PoolTypeError, match=f"^mode_pool: the result has dtype {dtype.name}, but mode takes"):
        ndpool.ModePool(2, dtype=dtype)


@pytest.mark.parametrize("x", [Dual(1, 1), Interval(1, 2)], ids=type)
def test_scalars_without_equals_are_refused(x: Any) -> None:
    with pytest.raises(PoolTypeError, match=r"^mode_pool: a mode counts equals, of which .* has none"):
        ndpool.mode_pool([x, x], (2,))


def test_bad_ties() -> None:
    for ties in ("last", "split", 1, None):
        with pytest.raises(PoolError, match=r"ties=.*(smallest|first)"):
            ndpool.ModePool(2, ties=ties)  # type: ignore[arg-type]
        with pytest.raises(PoolError, match=r"ties=.* is not a rule; use one of 'smallest', 'first'"):
            mode(ties)  # type: ignore[arg-type]


# -- forms, and other arrays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, BOOL], ids=str)
def test_every_form(dtype: np.dtype) -> None:
    x = cases.values(np.random.default_rng(3), (3, 6, 8), dtype)
    planes = [list(map(int, plane.reshape(-1))) for plane in x]
    assert ndpool.global_mode_pool(x, keepdims=False).tolist() == [counted(p, "smallest") for p in planes]
    assert ndpool.adaptive_mode_pool(x, (1, 1), ties="first").reshape(-1).tolist() == [
        counted(p, "first") for p in planes
    ]
    assert_exact(ndpool.mode_pool(x, (6, 8)), ndpool.global_mode_pool(x))
    out = np.empty((3, 3, 4), dtype)
    assert ndpool.mode_pool2d(x, 2, out=out) is out
    assert_exact(out, ndpool.mode_pool(np.asfortranarray(x), (1, 2, 2)))


WINDOWS = [
    ndpool.ModePool(2),
    ndpool.ModePool((2, 2, 2), 1),
    ndpool.ModePool(3, 2, 1, dilation=2, ties="first"),
    ndpool.ModePool((2, 3), 1, 3, ties="first"),
    ndpool.AdaptiveModePool((2, 4), ties="first"),
    ndpool.GlobalModePool(keepdims=False),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["operators", "composite"])
@pytest.mark.parametrize("op", WINDOWS, ids=str)
def test_tensors(op: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    from .torch.ops import use

    use(way, monkeypatch)
    for dtype in ("bool", "uint8", "int16", "int64"):
        x = cases.values(np.random.default_rng(4), (2, 3, 7, 6), dtype)
        assert_exact(op(torch.from_numpy(x)).numpy(), op(x))
        assert_exact(torch.vmap(op)(torch.from_numpy(x)).numpy(), np.stack([op(one) for one in x]))
    with pytest.raises(PoolTypeError, match=COUNTS):
        op.vjp(torch.from_numpy(x), op(torch.from_numpy(x)))
    with pytest.raises(PoolTypeError, match="dtype float32, but mode takes"):
        op(torch.ones(x.shape))


@pytest.mark.parametrize("op", WINDOWS[2:5], ids=str)
def test_jax_arrays(op: Any) -> None:
    jax = pytest.importorskip("jax", reason="JAX arrays are JAX's")
    from ndpool.jax import composed
    from ndpool.jax.pooled import of

    for dtype in ("bool", "int16"):
        x = cases.values(np.random.default_rng(4), (2, 3, 7, 6), dtype)
        given = jax.numpy.asarray(x)
        assert_exact(np.asarray(op(given)), op(x))
        assert_exact(np.asarray(jax.jit(jax.vmap(op))(given)), np.stack([op(one) for one in x]))
        one = of(op, x.shape)
        (y,) = jax.jit(lambda x, one=one: composed.run(one, "forward", x))(given)
        assert_exact(np.asarray(y).reshape(op.out_shape(x.shape)), op(x))


def test_a_program_holds_it() -> None:
    x = cases.values(np.random.default_rng(5), (4, 4), "int64")
    graph = ndpool.Graph()
    program = graph.build(graph.mode_pool(graph.input((4, 4), "x"), 2))
    assert_exact(program(x), ndpool.mode_pool(x, 2))
    with pytest.raises(PoolError, match="has no derivative"):
        program.vjp(x, np.ones((2, 2)))
