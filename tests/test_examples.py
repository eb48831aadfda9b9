"""The LeNet example keeps its word: equal to PyTorch in value, jvp and vjp, and over 95 % right after training.

The benchmarks likewise: what they time side by side is the same work.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import graph as overhead
from benchmarks import large_memory

import ndpool


def load(name: str) -> Any:
    """An example as a module."""
    path = Path(__file__).parents[1] / f"examples/{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lenet() -> Any:
    return load("lenet")


@pytest.fixture(scope="module")
def result(lenet: Any) -> Any:
    return lenet.learn(steps=160, held_out=500)


@pytest.fixture(scope="module")
def differences(lenet: Any) -> list[Any]:
    pytest.importorskip("torch", reason="the example compares itself with torch")
    return list(lenet.comparisons(n=3, side=24, channels=8))


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("network", ["LeNet-5", "ResNet stem + block"])
def test_networks_equal_torch(lenet: Any, differences: list[Any], network: str, dtype: str, most: float) -> None:
    rows = [row for row in differences if (row.network, row.dtype) == (network, dtype)]
    program = lenet.lenet(3)[1] if network == "LeNet-5" else lenet.resnet(3)
    products = [("value", "output"), ("jvp", "output"), *(("vjp", node.name) for node in program.inputs)]
    assert [(row.what, row.of) for row in rows] == products
    assert all(row.size <= most for row in rows), lenet.table(rows)
    assert all(row.ok for row in rows)


def test_comparison_finds_another_network(lenet: Any) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    program = lenet.resnet(2, 16, 4)
    values = {"image": rng.standard_normal((2, 3, 16, 16)), **lenet.initial(program, rng, np.float64)}
    other = program.replace(lambda op: ndpool.AvgPool(3, 2, 1) if isinstance(op, ndpool.MaxPool) else op)
    rows = list(lenet.compare("other", other, lenet.torch_resnet, values, seed=1))
    assert not any(row.ok for row in rows)
    assert "WRONG" in lenet.table(rows)


@pytest.mark.parametrize("network", ["lenet", "resnet"])
def test_networks_check_themselves(lenet: Any, network: str) -> None:
    program = lenet.lenet(1)[1] if network == "lenet" else lenet.resnet(1, 16, 4)
    report = program.check()
    assert report.ok, str(report)


def test_digits_are_seeded_varied_and_of_every_class(lenet: Any) -> None:
    images, labels = lenet.draw(200, np.random.default_rng(0))
    again, _ = lenet.draw(200, np.random.default_rng(0))
    assert images.shape == (200, 1, 28, 28)
    assert images.dtype == np.float32
    assert np.array_equal(images, again)
    assert set(labels.tolist()) == set(range(10))
    assert len(np.unique(images.reshape(200, -1), axis=0)) == 200


def test_lenet_learns(result: Any) -> None:
    assert result.accuracy > 0.95
    assert result.losses[0] == pytest.approx(np.log(10), abs=0.3)  # of ten classes it knows nothing at first
    assert np.mean(result.losses[-20:]) < 0.3


def test_pictures_are_whole(lenet: Any, result: Any) -> None:
    loss = ElementTree.fromstring(lenet.loss_svg(result.losses, result.accuracy))
    curve, mean = loss.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(curve.attrib["points"].split()) == len(mean.attrib["points"].split()) == len(result.losses)
    digits = ElementTree.fromstring(lenet.digits_svg(result))
    assert len(list(digits.iter("{http://www.w3.org/2000/svg}image"))) == 24


def test_command_line(
    lenet: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lenet, "find_spec", lambda name: None)
    assert lenet.main(["--steps", "2", "--out", str(tmp_path / "new")]) == 0
    assert "PyTorch is not installed" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"lenet_loss.svg", "lenet_digits.svg"}


@pytest.mark.parametrize("program", [overhead.relu_chain(3), overhead.add_chain(3), overhead.lenet()])
def test_benchmark_compares_the_same_work(program: ndpool.Program) -> None:
    for case in overhead.cases("a case", program):
        assert overhead.same(case.program(), case.by_hand()), case.name


def test_benchmark_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.main(rounds=1, seconds=0.0)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3 * 3 + 1


# -- the pooling that learns -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smooth_pool() -> Any:
    pytest.importorskip("torch", reason="the example is about ndpool.torch")
    return load("smooth_pool")


def test_smooth_pooling_learns_its_beta(smooth_pool: Any) -> None:
    import torch

    torch.set_num_threads(1)
    results = {name: smooth_pool.learn(name, steps=80, held_out=200) for name in smooth_pool.POOLS}
    assert all(result.accuracy[-1] > 0.6 > result.accuracy[0] for result in results.values())
    first, last = (np.array(results["smooth max"].betas[i]) for i in (0, -1))
    assert np.array_equal(first, [1, 1])
    assert np.all(np.abs(last - 1) > 0.05)
    picture = ElementTree.fromstring(smooth_pool.picture(results))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 3 + 2


def test_smooth_pool_command_line(smooth_pool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smooth_pool.main(["--steps", "2", "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.count("right") == 3
    assert (tmp_path / "new/smooth_pool.svg").exists()


def test_torch_benchmark_compares_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the benchmark is about ndpool.torch")
    from benchmarks import torch as beside

    assert beside.main(["--rounds", "1", "--only", "(1, 3, 8, 8)"]) == 0
    assert "(1, 3, 8, 8) max_pool2d, f+b" in capsys.readouterr().out
    for name, make in beside.MODELS.items():
        beside.BATCH, beside.SIDE = 1, 32
        for memory in beside.FORMATS.values():
            ours, theirs, image = beside.pair(make, memory)
            assert beside.agree(beside.inference_step(ours, image), beside.inference_step(theirs, image)), name


def test_networks_benchmark_compares_the_same_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the benchmark is about ndpool.torch")
    from benchmarks import networks

    out = tmp_path / "found.json"
    few = ["--only", "^LeNet-5 S4|^NASNet.* cell, 7", "--batch", "1", "--threads", "1", "--rounds", "1"]
    assert networks.main([*few, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert len(found["lines"]) == 2 * len(networks.PASSES) * len(networks.DTYPES)
    for line in found["lines"]:
        assert line["dropped"] == {}
        for visited in line["visits"]:
            assert {"ndpool.torch", "ndpool.torch channels_last", "torch", "torch channels_last"} <= set(visited)
        assert len(line["visits"]) == 2
    assert "worst of forward, NumPy, channels last, bfloat16, 1 thread:" in capsys.readouterr().out


def test_networks_benchmark_shows_ratios_that_differ_between_visits() -> None:
    from benchmarks import networks

    array = networks.Array(("a network", "another"), ndpool.MaxPool(2), (1, 1, 4, 4), "float32")
    first = {"ndpool.torch": 2.0, "torch": 3.0, "torch channels_last": 1.0, "opencv": 0.5, "floor": 0.25}
    second = first | {"ndpool.torch": 1.25, "torch channels_last": 1.5}
    (group,) = networks.groups([networks.Line(array, "both", 2, [first, second])])
    assert group.name == "both, contiguous, float32, 2 threads"
    assert group.means() == pytest.approx({"torch": 0.8, "same layout": 2.4, "any peer": 0.4})
    assert group.lost() == {"torch": 1, "same layout": 0, "any peer": 1}
    assert (group.floor, group.unsteady) == (0.2, 1)
    assert "0.80 (0.50 to 1.20)" in str(group.ratios["torch"][0])


def test_power_pool_learns_in_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax", reason="the example is about ndpool.jax")
    power_pool = load("jax_power_pool")
    result = power_pool.learn(steps=120, held_out=200)
    assert result.losses[0] == pytest.approx(np.log(10), abs=0.3)
    assert np.mean(result.losses[-20:]) < 0.5
    assert result.accuracy > 0.85
    assert result.powers[0] == pytest.approx((2, 2), abs=0.05)
    assert all(abs(p - 2) > 0.01 for p in result.powers[-1])
    assert power_pool.main(["--steps", "2", "--out", str(tmp_path / "new")]) == 0
    picture = ElementTree.fromstring((tmp_path / "new/jax_power_pool.svg").read_text())
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 3


def test_jax_benchmark_compares_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Results are compared before anything is timed: one call of each law that it has."""
    pytest.importorskip("jax", reason="the benchmark is about ndpool.jax")
    from benchmarks import jax as beside

    few = ["--batch", "1", "--rounds", "1", "--steps", "forward", "--no-large"]
    assert beside.main(["--only", "^LeNet-5 S2|^IMPALA pool3|^ResNet-20", *few]) == 0
    out = capsys.readouterr().out
    assert "networks, jitted, forward: reduce_window takes" in out
    assert "MaxPool" in out
    assert "AvgPool" in out
    op = ndpool.SmoothMaxPool(3, 2, 1)
    assert "reduce_window" in beside.contenders(op, (1, 2, 8, 8), "grad", jitted=True)
    assert beside.slide_of(ndpool.AdaptiveMaxPool(3), (1, 2, 8, 8)) is None


def test_labels_are_compared_before_they_are_timed() -> None:
    pytest.importorskip("tinybrain", reason="the benchmark is beside tinybrain")
    from benchmarks import labels

    x = np.asfortranarray(labels.blobs(16, "uint8"))
    for factor in labels.FACTORS:
        runs = labels.contenders(x, factor, slow=False)
        assert labels.wrong(x, factor, runs) == set()
        assert labels.wrong(x, factor, runs | {"other": lambda runs=runs: runs["ndpool"]() + 1}) == {"other"}


def test_every_call_of_a_network_fits_its_input() -> None:
    from benchmarks import calls

    assert len(calls.NETWORKS) >= 40
    for call in calls.calls():
        rank = len(call.sample) - 1
        assert len(call.op.pooled_axes(rank + 2)) == rank, call.name
        outputs = call.op.out_shape((1, *call.sample))
        assert outputs[:2] == (1, call.sample[0]), call.name


# -- the benchmark of large arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("op", ["mean", "max"])
@pytest.mark.parametrize("peer", ["dask", "xarray", "torch"])
def test_peers_of_large_arrays_do_the_same(peer: str, op: str, order: str) -> None:
    """And a result that is wrong in one element is found."""
    module, spell = large_memory.PEERS[peer]
    pytest.importorskip(module)
    case = large_memory.case_of(large_memory.Cell(op, (2, 2, 1), "uint8", order), 9)
    (ours,) = large_memory.spell_ndpool(case)
    want = ours.run()
    (contender,) = spell(case)
    got = np.array(contender.run(), np.float64)
    assert large_memory.disagreement(case, got, want) is None
    got[1, 2, 3] += 3
    assert large_memory.disagreement(case, got, want) is not None
