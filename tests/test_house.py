"""What ARCHITECTURE.md says of the house, held by reading the code: layers, laws as data, engines by contract."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool.engines import ENGINES, choose, native, portable, reference
from ndpool.spec import (
    SUM,
    Axis,
    Law,
    Window,
    adaptive,
    each,
    lp,
    maximum,
    mean,
    minimum,
    mode,
    sliding,
    smooth_max,
    whole,
)

from . import cases
from .cases import BFLOAT16, assert_exact

SOURCE = Path(ndpool.__file__).parent
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}

# -- layers: a module imports from its own layer and from those above it -----------------------------------------------

LAYERS = (
    ("errors", "arithmetic", "arguments", "settings", "suggest", "lazy", "remembered"),
    ("spec",),
    ("engines",),
    ("op", "forms", "ops", "arrays", "unpool", "slab", "blocks", "record_text", "picture"),
    ("api",),
    ("graph",),
    ("__init__", "torch", "jax", "large", "demo", "doctor"),
    ("typed", "cli", "cli_large", "__main__"),
)
ENGINE_FILES = ("engines.native", "engines.portable", "engines.reference", "engines.triton")
LAZY = ("op", "graph", "engines.triton")  # may import a later layer inside a function


def layer_of(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module.partition(".")[0] in names)


def imports(module: str, nested: bool = True) -> Iterator[str]:
    """The modules of ndpool that a file imports; without `nested` only at its top."""
    package = module.split(".") if (SOURCE / module.replace(".", "/")).is_dir() else module.split(".")[:-1]
    tree = FILES[module]
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            home = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*home, name]) for name in names if (node.module or name in SIBLINGS))


SIBLINGS = {name.rpartition(".")[2] for name in FILES}


@pytest.mark.parametrize("module", FILES)
def test_imports_flow_one_way(module: str) -> None:
    later = {other for other in imports(module, nested=module not in LAZY) if layer_of(other) > layer_of(module)}
    assert not later, f"{module} imports {later}, of a later layer"


def test_every_module_has_a_layer() -> None:
    assert all(layer_of(module) >= 0 for module in FILES)


def test_no_engine_imports_another() -> None:
    for module in FILES:
        own = [engine for engine in ENGINE_FILES if module == engine or module.startswith(f"{engine}.")]
        if own:
            others = {other for other in imports(module) if other.startswith(tuple({*ENGINE_FILES} - {*own}))}
            assert not others, f"{module} imports {others}"


def test_nothing_imports_the_adapters() -> None:
    for module in FILES:
        for adapter in ("torch", "jax"):
            if module.partition(".")[0] != adapter:
                assert adapter not in {other.partition(".")[0] for other in imports(module)}, module


def test_no_module_has_locks_that_a_fork_may_copy_locked() -> None:
    """functools.cached_property has one until Python 3.12; `settings.py` has one that it holds while it forks."""
    for module, tree in FILES.items():
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        allowed = {"RLock"} if module == "settings" else set()
        assert not names & {"cached_property", "Lock", "RLock", "Condition", "Semaphore"} - allowed, module


def libraries(module: str) -> set[str]:
    """The other packages that a file imports at its top."""
    found = set()
    for node in FILES[module].body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found


KNOWS = {
    "large.zarr": {"zarr", "numcodecs"},
    "large.ome": {"zarr"},
    "large.coded": {"numcodecs"},
    "large.tiff": {"tifffile"},
    "large.hdf5": {"h5py"},
    "large.picture": {"PIL"},
}


def test_array_libraries_stay_where_they_belong() -> None:
    frameworks = {"torch", "jax", "triton", "ml_dtypes", "cupy", "dask", "sympy", "xarray", "pandas"}
    formats = {"zarr", "numcodecs", "tifffile", "h5py", "PIL"}
    for module in FILES:
        if module.startswith("arrays."):  # an adapter imports the library of its name, and is imported with it
            assert libraries(module) & frameworks <= {module.rpartition(".")[2]}, module
            continue
        assert not libraries(module) & formats - KNOWS.get(module, set()), module
        if module.startswith("spec") or module == "arithmetic":
            assert "numpy" not in libraries(module), module
        if not module.startswith(("torch", "jax", "engines.triton")):
            assert not libraries(module) & frameworks, module


# -- laws are data -----------------------------------------------------------------------------------------------------


def names_of_laws(tree: ast.AST) -> Iterator[tuple[ast.Attribute, list[ast.AST]]]:
    """Each `law.name` with what it stands in, the nearest first."""

    def walk(node: ast.AST, above: list[ast.AST]) -> Iterator[tuple[ast.Attribute, list[ast.AST]]]:
        if isinstance(node, ast.Attribute) and node.attr in ("name", "__name__"):
            of = node.value
            if (isinstance(of, ast.Name) and of.id == "law") or (isinstance(of, ast.Attribute) and of.attr == "law"):
                yield node, above
        for child in ast.iter_child_nodes(node):
            yield from walk(child, [node, *above])

    return walk(tree, [])


def is_table(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


def is_looked_up(name: ast.Attribute, above: list[ast.AST]) -> bool:
    """TABLE[law.name], `law.name in TABLE`, or part of an error message."""
    parent = above[0]
    if isinstance(parent, ast.Subscript):
        return is_table(parent.value) and parent.slice is name
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops) and all(map(is_table, parent.comparators))
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, (ast.Name, ast.Attribute)) and ast.unparse(parent.func).endswith("check")
    return isinstance(parent, ast.FormattedValue)


@pytest.mark.parametrize("module", [module for module in FILES if not module.startswith("spec")])
def test_nobody_compares_a_laws_name(module: str) -> None:
    """Outside the spec a law's name is looked up in an engine's own table, and nothing else is done with it."""
    for name, above in names_of_laws(FILES[module]):
        assert is_looked_up(name, above), f"{module}.py:{name.lineno} {ast.unparse(above[0])}"


@pytest.mark.parametrize(
    ("code", "fine"),
    [("LAWS[law.name]", True), ("law.name in LAWS", True), ("f'{law.name} takes'", True),
     ("check(law.kinds, law.name)", True),
     ("law.name == 'max'", False), ("op.law.name in ('max', 'min')", False), ("law.name.startswith('s')", False),
     ("kinds[law.name]", False), ("match(law.name)", False)],
)  # fmt: skip
def test_that_test_sees(code: str, fine: bool) -> None:
    ((name, above),) = names_of_laws(ast.parse(code))
    assert is_looked_up(name, above) is fine


PRODUCT = Law(lambda x, t: x, lambda a, b: a * b, lambda s, n: (s, s), lambda g, x, t, y: g * y / x)
UNKNOWN = Law(PRODUCT.lift, PRODUCT.merge, PRODUCT.finish, PRODUCT.weigh, "product", (2,))  # known to the spec alone

LAWS = {
    "max": maximum(), "max split": maximum("split", "ignore"), "min last": minimum("last"), "min all": minimum("all"),
    "sum": SUM, "mean": mean(), "mean over 3": mean(3), "mean over much": mean(1 << 31), "smooth max": smooth_max(),
    "smooth min": smooth_max(-0.5), "lp 1": lp(1), "lp 2.5": lp(2.5), "mode": mode(), "mode first": mode("first"),
    "product": PRODUCT, "unknown": UNKNOWN,
}  # fmt: skip
TYPES = ("bool", "int8", "int32", "uint64", "float16", "float32", "float64", "longdouble", "complex64")
WINDOWS = {
    "sliding": Window((each(2), sliding(5, 2, 1))),
    "padded": Window((sliding(4, 3, 2, (1, 1)),)),
    "not counted": Window((sliding(4, 3, 2, (1, 1), count_padding=False),)),
    "bins": Window((adaptive(5, 3), whole(2))),
    "identity": Window((each(3),)),
    "nothing": Window((each(0), sliding(3, 2))),
}


def test_traits_are_those_of_the_equations() -> None:
    """What a law says of itself, checked on what it does."""
    for key, law in LAWS.items():
        if not law.built_in:
            continue
        one, two, zero = (law.lift(x, t) for t, x in enumerate((1.5, -2.0, 0.0)))
        y, _ = law.finish(law.merge(one, two), 2)
        double, _ = law.finish(law.merge(*(law.lift(2 * x, t) for t, x in enumerate((1.5, -2.0)))), 2)
        added, _ = law.finish(law.merge(law.merge(one, two), zero), 2)
        assert (added == pytest.approx(y)) or not law.zero_is_neutral, key
        assert (double == pytest.approx(2 * y)) or not law.linear, key
        assert (y in (1.5, -2.0)) == law.picks, key
        assert law.picks if law.winners else not law.picks or law.no_derivative, key
        if law.no_derivative:
            with pytest.raises(ndpool.PoolTypeError, match=law.no_derivative):
                law.weigh(1.0, 1.5, 0, law.finish(one, 1)[1])
        assert (law.first is not None) == (law.winners in ("all", "split")), key
        assert law.first is None or law.first.one_winner, key
        if law.curvature is not None:  # phi'' / phi' by differences of the weights, which are phi'(x) / phi'(y)
            h, (_, r) = 1e-6, law.finish(law.merge(one, law.lift(2.0, 1)), 2)
            slope = [law.weigh(1.0, 1.5 + d, 0, r) for d in (-h, h)]
            assert (slope[1] - slope[0]) / (h * (slope[0] + slope[1])) == pytest.approx(law.curvature(1.5)), key


# -- engines by contract -----------------------------------------------------------------------------------------------


def filled(window: Window, dtype: Any) -> np.ndarray:
    """Small numbers, of which some are equal: even their product fits a byte."""
    return (np.arange(np.prod(window.shape, dtype=int)) % 3 % 2 + 1).reshape(window.shape).astype(dtype)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
def test_every_engine_runs_or_declines(engine: Any, law: str) -> None:
    """Any law on any kind of element over any window: no engine stumbles over what it does not know."""
    if engine is native and not native.available():
        pytest.skip(native.reason())
    ran = 0
    for key, window in WINDOWS.items():
        for dtype in (*TYPES, BFLOAT16):
            x, note = filled(window, dtype), (law, key, dtype)
            if not engine.supports(window, LAWS[law], x):
                continue
            ran += 1
            plan, want = engine.bind(window, LAWS[law], x), reference.forward(window, LAWS[law], x)
            if law == "mean over much" and engine is portable and x.dtype.kind in "iu":
                with pytest.raises(ndpool.PoolError, match="divisor_override=2147483648 is beyond 2"):
                    plan.forward(x)
                continue
            tolerance = 0 if LAWS[law].picks else 1e-2 if x.dtype.itemsize < 4 else 1e-6
            np.testing.assert_allclose(plan.forward(x).astype(want.dtype), want, tolerance, err_msg=str(note))
            if plan.differentiates and x.dtype.kind == "f":
                np.testing.assert_allclose(plan.linearize(x).y, want, tolerance, err_msg=str(note))
            if LAWS[law].winners:
                assert_exact(plan.winners(x, cases.pooled(window))[0], want, note)
    assert ran or engine is not reference
    assert ran or engine is not portable or not LAWS[law].built_in
    assert ran == 0 or LAWS[law].built_in or engine is reference


@pytest.mark.parametrize("law", ["product", "unknown"])
def test_a_law_that_only_the_spec_knows_runs_on_the_reference(law: str) -> None:
    window, x = WINDOWS["sliding"], np.arange(1.0, 11).reshape(2, 5)
    assert isinstance(choose(window, LAWS[law], x), reference.Reference)
    assert ndpool.Pool(LAWS[law], (2,), 1)(x).tolist() == [[2, 6, 12, 20], [42, 56, 72, 90]]


def test_where_the_kernels_end() -> None:
    """A divisor that 31 bits do not hold, more axes than kernels walk, and bins beyond 62 bits are others' to run."""
    x = np.ones(4, np.int32)
    assert [native.serves(Window((whole(4),)), mean(n), x.dtype) for n in (2**31 - 1, 2**31)] == [
        native.available(),
        False,
    ]
    for axes, fits in ((native.MOST_AXES, native.available()), (native.MOST_AXES + 1, False)):
        assert native.serves(Window((*[each(1)] * (axes - 1), whole(4))), SUM, x.dtype) is fits
    for n, fits in ((2**31 - 1, native.available()), (2**31, False)):
        assert native.serves(Window((adaptive(n, 2**31 + 1),)), SUM, x.dtype) is fits
        assert native.serves(Window((Axis(9, 2, stride=n, extent=3, dilation=2),)), SUM, x.dtype) is fits


def test_what_one_engine_declines_falls_to_the_next() -> None:
    window, x = WINDOWS["sliding"], filled(WINDOWS["sliding"], "int32")
    plans = [choose(window, maximum("all"), x, derivative) for derivative in (False, True)]
    assert isinstance(plans[0], native.Plan if native.available() else portable.Portable)
    assert isinstance(plans[1], portable.Portable)  # the kernels share no derivative among equal integers
    assert isinstance(choose(WINDOWS["padded"], maximum(), x.astype(float)[0, :4]), reference.Reference)
