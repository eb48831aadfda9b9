"""How each library spells a row. A speller gets a case, a phase and a number of threads and yields contenders.

A library is imported when its speller runs, so that absent ones do no harm; a row that it has no operation for yields
nothing. Data is converted to the library's own arrays and preferred layout beforehand; each timed call makes its
outputs afresh. Nobody is given a spelling of smooth max that overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, product
from typing import Any

import ml_dtypes
import numpy as np

import ndpool

from .rows import Case, Phase, Slide
from .timing import Contender

Spell = Callable[[Case, Phase, int], Iterator[Contender]]
Spelling = tuple[str, Callable[[Any], Any]]  # what a contender's name gets, and a function of x


def flat(value: Any) -> list[Any]:
    """The leaves of nested tuples and lists, in order."""
    return [leaf for v in value for leaf in flat(v)] if isinstance(value, (tuple, list)) else [value]


def reader(leaf: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda value: [leaf(v) for v in flat(value)]


def repeated(f: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    """f's value, or with `times` > 1 those of f(x), f(f(x)), ..."""
    if times == 1:
        return f

    def values(x: Any) -> tuple[Any, ...]:
        ys = []
        for _ in range(times):
            x = f(x)
            ys.append(x)
        return tuple(ys)

    return values


def slices(x: Any, taps: Slide, outs: tuple[int, ...]) -> list[Any]:
    """For each tap of the kernel, a view with what it reads at every output; x is padded already."""
    ends = [s * (o - 1) + 1 for s, o in zip(taps.stride, outs, strict=True)]
    return [
        x[(..., *(slice(t, t + end, s) for t, end, s in zip(tap, ends, taps.stride, strict=True)))]
        for tap in product(*map(range, taps.kernel))
    ]


# -- ndpool ------------------------------------------------------------------------------------------------------------


def spell_ndpool(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    set_threads = getattr(ndpool, "set_threads", None)
    if set_threads is not None:
        set_threads(threads)
    yield Contender("ndpool", (_whole_call if case.row.call else _record)(case, phase), reader(np.asarray))


def _record(case: Case, phase: Phase) -> Callable[[], Any]:
    op, times, x, dx, dys = case.row.op, case.row.times, case.x, case.dx, case.dys

    def linearize() -> list[ndpool.Linear]:
        ats, y = [], x
        for _ in range(times):
            ats.append(op.linearize(y))
            y = ats[-1].y
        return ats

    def pull(ats: list[ndpool.Linear]) -> Any:
        g = ats[-1].vjp(dys[-1])
        for at, dy in zip(ats[-2::-1], dys[-2::-1], strict=True):
            g = at.vjp(dy + g)
        return g

    def vjp() -> Any:
        ats = linearize()
        return [at.y for at in ats], pull(ats)

    def jvp() -> Any:
        found = [(x, dx)]
        for _ in range(times):
            found.append(op.value_and_jvp(*found[-1]))
        return [y for y, _ in found[1:]], [dy for _, dy in found[1:]]

    if phase == "pull":
        return partial(pull, linearize())
    runs: dict[str, Callable[[], Any]] = {"forward": partial(repeated(op, times), x), "vjp": vjp, "jvp": jvp}
    return runs[phase]


def _whole_call(case: Case, phase: Phase) -> Callable[[], Any]:
    """As a user types it: the function with its arguments, or a record that was made once and its derivatives."""
    op, function, call = case.row.op, getattr(ndpool, case.row.op.name), case.row.call
    assert call is not None
    x, dx, (dy,) = case.x, case.dx, case.dys

    def vjp() -> Any:
        at = op.linearize(x)
        return at.y, at.vjp(dy)

    def jvp() -> Any:
        return op.value_and_jvp(x, dx)

    if phase == "pull":
        at = op.linearize(x)
        return lambda: at.vjp(dy)
    return {"forward": lambda: function(x, *call), "vjp": vjp, "jvp": jvp}[phase]


# -- torch -------------------------------------------------------------------------------------------------------------


def spell_torch(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """Its pooling function, and where one window covers all, its reduction."""
    import torch.nn.functional as F

    smooth = case.law == "smooth_max"
    spellings = _torch_smooth(case) if smooth else chain(_torch_functions(case, F), _torch_reductions(case))
    yield from _on_tensors("torch", spellings, case, phase, threads)


def spell_ndpool_torch(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """`ndpool.torch` on the same tensors, called in the same words."""
    from ndpool.torch import functional

    ndpool.set_threads(threads)
    yield from _on_tensors("ndpool.torch", _torch_functions(case, functional), case, phase, threads)


def _on_tensors(
    name: str, spellings: Iterable[Spelling], case: Case, phase: Phase, threads: int
) -> Iterator[Contender]:
    """Contiguous, and channels_last where torch has it; of a row that comes channels-last, only that."""
    import torch

    torch.set_num_threads(threads)
    layouts = {"": torch.contiguous_format}
    if case.x.ndim in (4, 5):
        layouts[" channels_last"] = torch.channels_last if case.x.ndim == 4 else torch.channels_last_3d
    if case.row.channels_last:
        del layouts[""]
    functions = list(spellings)
    for layout, memory_format in layouts.items():
        x, *dys = (_to_torch(a).contiguous(memory_format=memory_format) for a in (case.x, *case.dys))
        dx = _to_torch(case.dx).contiguous(memory_format=memory_format) if phase == "jvp" else None
        for spelling, f in functions:
            yield Contender(f"{name}{spelling}{layout}", _torch_run(phase, f, x, dx, dys), reader(_from_torch))


def _to_torch(a: Any) -> Any:
    import torch

    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _from_torch(t: Any) -> Any:
    import torch

    t = t.detach()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == torch.bfloat16 else t.numpy()


def _torch_run(phase: Phase, f: Callable[[Any], Any], x: Any, dx: Any, dys: list[Any]) -> Callable[[], Any]:
    import torch

    if phase == "forward":
        return lambda: f(x)
    if phase == "jvp":
        return lambda: torch.func.jvp(f, (x,), (dx,))
    x = x.detach().requires_grad_()
    if phase == "pull":
        y = f(x)
        return lambda: torch.autograd.grad(y, x, dys if isinstance(y, tuple) else dys[0], retain_graph=True)

    def vjp() -> Any:
        y = f(x)
        return y, torch.autograd.grad(y, x, dys if isinstance(y, tuple) else dys[0])

    return vjp


def _torch_functions(case: Case, F: Any) -> Iterator[Spelling]:
    """The case as a function of `torch.nn.functional`, or of a module with the same names."""
    op, rank = case.row.op, case.rank
    stem = {"max": "max", "mean": "avg", "lp": "lp"}[case.law]
    if not isinstance(op, ndpool.forms.Sliding):
        pool, outs = getattr(F, f"adaptive_{stem}_pool{rank}d"), case.dys[0].shape[-rank:]
        yield "", lambda x: pool(x, outs)
        return
    pool, taps = getattr(F, f"{stem}_pool{rank}d"), case.slide
    assert taps is not None
    arguments = case.row.call or (taps.kernel, taps.stride, taps.padding)
    if isinstance(op, ndpool.LpPool):
        assert not any(taps.padding)
        arguments = (op.norm_type, taps.kernel, taps.stride)
    options = {"ceil_mode": True} if op.ceil_mode else {}
    if not getattr(op, "count_include_pad", True):
        options["count_include_pad"] = False
    yield "", repeated(lambda x: pool(x, *arguments, **options), case.row.times)


def _torch_reductions(case: Case) -> Iterator[Spelling]:
    """One window over everything, as networks also write it."""
    axes, outs = tuple(range(-case.rank, 0)), case.dys[0].shape[-case.rank :]
    if isinstance(case.row.op, ndpool.forms.Sliding) or set(outs) != {1}:
        return
    if case.law == "mean":
        yield " mean", lambda x: x.mean(axes, keepdim=True)
    elif case.law == "max":
        yield " amax", lambda x: x.amax(axes, keepdim=True)
        if case.rank == 1:
            yield " max", lambda x: x.max(-1, keepdim=True).values


def _torch_smooth(case: Case) -> Iterator[Spelling]:
    import torch
    import torch.nn.functional as F

    beta, taps, outs = case.row.op.beta, case.slide, case.dys[0].shape[-2:]
    assert taps is not None
    pads = [p for p in reversed(taps.padding) for _ in range(2)]

    def stacked(x: Any) -> Any:
        return torch.logsumexp(torch.stack(slices(F.pad(x, pads), taps, outs)) * beta, 0) / beta

    def shifted(x: Any) -> Any:
        x = F.pad(x, pads)
        m = F.max_pool2d(x.detach(), taps.kernel, taps.stride)  # any m gives the same value and derivative
        total = torch.zeros_like(m)
        for tap in slices(x, taps, outs):
            total = total + torch.exp((tap - m) * beta)
        return m + torch.log(total) / beta

    yield " stack", stacked
    yield " max+exp", shifted


# -- jax ---------------------------------------------------------------------------------------------------------------


def spell_jax(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """Jitted; a jitted function has no residuals to keep, so there is no `pull`."""
    import jax.numpy as jnp

    if phase == "pull":
        return
    order = (0, *range(2, case.x.ndim), 1) if case.row.channels_last else tuple(range(case.x.ndim))
    x, dx, *dys = (jnp.asarray(np.transpose(a, order)) for a in (case.x, case.dx, *case.dys))
    for spelling, pool in _jax_functions(case, order):
        f = repeated(pool, case.row.times)
        run = _jax_run(phase, f, x, dx, dys[0] if case.row.times == 1 else tuple(dys))
        read = reader(lambda a: np.transpose(np.asarray(a), np.argsort(order)))
        yield Contender(f"jax{spelling}", partial(_finished, run), read)


def _finished(run: Callable[[], Any]) -> Any:
    import jax

    return jax.block_until_ready(run())


def _jax_run(phase: Phase, f: Callable[[Any], Any], x: Any, dx: Any, dy: Any) -> Callable[[], Any]:
    import jax

    def vjp(x: Any, dy: Any) -> Any:
        y, pull = jax.vjp(f, x)
        return y, pull(dy)

    def jvp(x: Any, dx: Any) -> Any:
        return jax.jvp(f, (x,), (dx,))

    runs = {"forward": (f, x), "vjp": (vjp, x, dy), "jvp": (jvp, x, dx)}
    function, *arguments = runs[phase]
    return partial(jax.jit(function), *arguments)


def _jax_functions(case: Case, order: tuple[int, ...]) -> Iterator[Spelling]:
    op = case.row.op
    if case.law == "smooth_max":
        yield from _jax_smooth(case)
    elif isinstance(op, ndpool.forms.Sliding):
        yield "", _jax_window(case, order)
    else:
        yield "", _jax_bins(case)


def _jax_window(case: Case, order: tuple[int, ...]) -> Callable[[Any], Any]:
    from jax import lax

    taps, still = case.slide, case.x.ndim - case.rank
    assert taps is not None
    kernel, stride = ((1,) * still + sizes for sizes in (taps.kernel, taps.stride))
    padding = (0,) * still + taps.padding
    kernel, stride, padding = (tuple(sizes[a] for a in order) for sizes in (kernel, stride, padding))
    pads = [(p, p) for p in padding]
    if case.law == "mean":
        count = float(np.prod(kernel))
        return lambda x: lax.reduce_window(x, 0.0, lax.add, kernel, stride, pads) / count
    least = 0 if case.row.dtype == "uint8" else -np.inf
    return lambda x: lax.reduce_window(x, np.asarray(least, x.dtype), lax.max, kernel, stride, pads)


def _jax_bins(case: Case) -> Callable[[Any], Any]:
    """Means over equal bins by a reshape, over others by a matrix an axis."""
    import jax.numpy as jnp

    taps, outs, rank = case.slide, case.dys[0].shape[-case.rank :], case.rank
    if taps is not None:
        split = [n for o, k in zip(outs, taps.kernel, strict=True) for n in (o, k)]
        return lambda x: x.reshape(*x.shape[:-rank], *split).mean(tuple(range(1 - 2 * rank, 0, 2)))
    assert rank == 2
    rows, columns = (jnp.asarray(_bins(n, o)) for n, o in zip(case.x.shape[-2:], outs, strict=True))
    return lambda x: jnp.einsum("oh,nchw,pw->ncop", rows, x, columns)


def _bins(n: int, outs: int) -> Any:
    """Row o of this matrix averages bin o of n inputs."""
    matrix = np.zeros((outs, n), np.float32)
    for o in range(outs):
        start, end = ndpool.adaptive_start(o, n, outs), ndpool.adaptive_end(o, n, outs)
        matrix[o, start:end] = 1 / (end - start)
    return matrix


def _jax_smooth(case: Case) -> Iterator[Spelling]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    beta, taps, outs = case.row.op.beta, case.slide, case.dys[0].shape[-2:]
    assert taps is not None
    pads = [(0, 0), (0, 0), *((p, p) for p in taps.padding)]

    def stacked(x: Any) -> Any:
        return jax.nn.logsumexp(jnp.stack(slices(jnp.pad(x, pads), taps, outs)) * beta, axis=0) / beta

    def shifted(x: Any) -> Any:
        views = slices(jnp.pad(x, pads), taps, outs)
        m = views[0]
        for view in views[1:]:
            m = jnp.maximum(m, view)
        m = lax.stop_gradient(m)  # any m gives the same value and derivative
        return m + jnp.log(sum(jnp.exp((view - m) * beta) for view in views)) / beta

    yield " stack", stacked
    yield " max+exp", shifted


# -- inference runtimes ------------------------------------------------------------------------------------------------


def spell_onnxruntime(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """One node, or `times` of them; outputs are the runtime's own, made at each call and not copied."""
    taps = case.slide
    if phase != "forward" or case.row.channels_last or taps is None or case.law not in ("max", "mean"):
        return
    import onnx
    import onnxruntime as ort
    from onnx import helper

    options: dict[str, Any] = {}
    if isinstance(case.row.op, ndpool.forms.Global):
        kind = "GlobalMaxPool" if case.law == "max" else "GlobalAveragePool"
    else:
        kind = "MaxPool" if case.law == "max" else "AveragePool"
        options = {"kernel_shape": taps.kernel, "strides": taps.stride, "pads": taps.padding * 2}
        options["ceil_mode"] = int(getattr(case.row.op, "ceil_mode", False))
        if case.law == "mean":
            options["count_include_pad"] = int(getattr(case.row.op, "count_include_pad", True))
    dtype = helper.np_dtype_to_tensor_dtype(case.x.dtype)
    names = [f"y{i}" for i in range(case.row.times)]
    nodes = [helper.make_node(kind, [a], [b], **options) for a, b in zip(["x", *names], names, strict=False)]
    outs = [helper.make_tensor_value_info(name, dtype, case.dys[0].shape) for name in names]
    graph = helper.make_graph(nodes, "row", [helper.make_tensor_value_info("x", dtype, case.x.shape)], outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads, settings.log_severity_level = threads, 1, 4
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    given = {"x": ort.OrtValue.ortvalue_from_numpy(case.x)}
    yield Contender(
        "onnxruntime", lambda: session.run_with_ort_values(names, given), reader(lambda value: value.numpy())
    )


@lru_cache
def _openvino_core() -> Any:
    import openvino as ov

    return ov.Core()


def spell_openvino(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """Its request keeps one output for ever unless given another, so each call gives it a new one."""
    if phase != "forward" or case.row.channels_last or case.law == "smooth_max":
        return
    import openvino as ov

    bfloat = case.x.dtype == ml_dtypes.bfloat16
    shape, kind = list(case.x.shape), ov.Type.bf16 if bfloat else ov.Type(case.x.dtype)
    given = ov.Tensor(case.x.view(np.uint16), shape, kind) if bfloat else ov.Tensor(case.x, shared_memory=True)
    x = ov.opset8.parameter(shape, dtype=kind)
    ys, y = [], x.output(0)
    for _ in range(case.row.times):
        y = _openvino_pool(case, y)
        ys.append(y)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = _openvino_core().compile_model(ov.Model(ys, [x]), "CPU", settings)
    request, ports = compiled.create_infer_request(), [(p.element_type, p.shape) for p in compiled.outputs]
    request.set_input_tensor(given)

    def run() -> list[Any]:
        outs = [ov.Tensor(*port) for port in ports]
        for i, out in enumerate(outs):
            request.set_output_tensor(i, out)
        request.infer()
        return outs

    yield Contender("openvino", run, reader(lambda t: t.data.view(ml_dtypes.bfloat16) if bfloat else t.data))


def _openvino_pool(case: Case, x: Any) -> Any:
    import openvino as ov

    taps, op = case.slide, case.row.op
    if isinstance(op, ndpool.forms.Global):
        return ov.opset8.reduce_mean(x, np.arange(case.x.ndim - case.rank, case.x.ndim), True).output(0)
    if isinstance(op, ndpool.forms.Adaptive):
        return ov.opset8.adaptive_avg_pool(x, np.array(case.dys[0].shape[-case.rank :])).output(0)
    assert taps is not None
    kernel, stride, padding = (list(sizes) for sizes in (taps.kernel, taps.stride, taps.padding))
    if case.law == "max":
        return ov.opset8.max_pool(x, stride, [1] * case.rank, padding, padding, kernel).output(0)
    return ov.opset8.avg_pool(x, stride, padding, padding, kernel, False).output(0)


# -- image libraries ---------------------------------------------------------------------------------------------------


def spell_opencv(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """Filters plane by plane, or on one image with channels; disjoint means as a resize of all planes on one pile."""
    taps, row = case.slide, case.row
    if phase != "forward" or row.channels_last or row.dtype == "bfloat16" or taps is None or case.rank > 2:
        return
    import cv2

    cv2.setNumThreads(threads)
    if case.law == "mean" and taps.tiles:
        pile = case.x.reshape(-1, case.x.shape[-1])
        size = (pile.shape[1] // taps.kernel[-1], pile.shape[0] // taps.kernel[0])
        shape = case.dys[0].shape
        resize = partial(cv2.resize, pile, size, interpolation=cv2.INTER_AREA)
        yield Contender("opencv", resize, lambda y: [y.reshape(shape)])
    elif case.law in ("max", "mean") and taps.keeps_size:
        yield from _opencv_filters(case, taps)


def _opencv_filters(case: Case, taps: Slide) -> Iterator[Contender]:
    import cv2

    shape, kernel = case.x.shape, (1, *taps.kernel)[-2:]
    if case.law == "max":
        one: Callable[[Any], Any] = partial(cv2.dilate, kernel=np.ones(kernel, np.uint8))
    else:
        one = partial(cv2.boxFilter, ddepth=-1, ksize=kernel[::-1], borderType=cv2.BORDER_CONSTANT)
    f = repeated(one, case.row.times)
    planes = [case.x.reshape(-1, shape[-1])] if case.rank == 1 else list(case.x.reshape(-1, *shape[-2:]))

    def read(ys: list[Any]) -> list[Any]:
        levels = zip(*(flat([y]) for y in ys), strict=True) if case.row.times == 1 else zip(*ys, strict=True)
        return [np.stack(level).reshape(shape) for level in levels]

    yield Contender("opencv", lambda: [f(plane) for plane in planes], read)
    if case.rank == 2 and shape[0] == 1:
        image = np.ascontiguousarray(np.moveaxis(case.x[0], 0, -1))
        yield Contender("opencv hwc", lambda: f(image), reader(lambda y: np.moveaxis(y, -1, 0)[None]))


def spell_scipy(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    taps = case.slide
    if phase != "forward" or taps is None or not taps.keeps_size or case.law not in ("max", "mean"):
        return
    from scipy import ndimage

    size = (1,) * (case.x.ndim - case.rank) + taps.kernel
    if case.law == "max":
        f: Callable[[Any], Any] = partial(ndimage.maximum_filter, size=size, mode="constant", cval=-np.inf)
    else:
        f = partial(ndimage.uniform_filter, size=size, mode="constant")
    yield Contender("scipy", partial(repeated(f, case.row.times), case.x), reader(np.asarray))


def spell_skimage(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    taps = case.slide
    if phase != "forward" or taps is None or not taps.tiles or case.law not in ("max", "mean"):
        return
    from skimage.measure import block_reduce

    block = (1,) * (case.x.ndim - case.rank) + taps.kernel
    reduce = np.max if case.law == "max" else np.mean
    yield Contender("skimage", lambda: block_reduce(case.x, block, reduce), reader(np.asarray))


def spell_tinybrain(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """It wants (x, y, z, channel) in Fortran order, which is our array transposed; leading axes go into the last."""
    taps, shape = case.slide, case.dys[0].shape
    if phase != "forward" or case.row.channels_last or taps is None or not taps.tiles or set(taps.kernel) != {2}:
        return
    import tinybrain

    image = case.x.reshape(-1, *case.x.shape[-3:]).T
    factor = (*taps.kernel, 1, 1)[:4] if case.rank == 2 else (*taps.kernel, 1)
    reduce = tinybrain.downsample_with_max_pooling if case.law == "max" else tinybrain.downsample_with_averaging
    yield Contender("tinybrain", lambda: reduce(image, factor)[0], lambda y: [y.T.reshape(shape)])


@dataclass(frozen=True)
class Peer:
    """A speller, the module it imports and the distribution that has its version."""

    spell: Spell
    module: str
    distribution: str


PEERS = {
    "torch": Peer(spell_torch, "torch", "torch"),
    "jax": Peer(spell_jax, "jax", "jax"),
    "onnxruntime": Peer(spell_onnxruntime, "onnxruntime", "onnxruntime"),
    "openvino": Peer(spell_openvino, "openvino", "openvino"),
    "opencv": Peer(spell_opencv, "cv2", "opencv-python-headless"),
    "scipy": Peer(spell_scipy, "scipy", "scipy"),
    "skimage": Peer(spell_skimage, "skimage", "scikit-image"),
    "tinybrain": Peer(spell_tinybrain, "tinybrain", "tinybrain"),
}


def spells(peers: Iterable[str]) -> dict[str, Spell]:
    return {peer: PEERS[peer].spell for peer in peers}
