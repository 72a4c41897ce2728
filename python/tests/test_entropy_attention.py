"""The kernels on their own (`kernels/entropy_attention.h`, as `examples/torch_entropy_attention` launches them), on the CPU, against dense
attention in float64."""

import ctypes
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples" / "torch_entropy_attention"))
import entropy_attention as example  # noqa: E402

GAMMA = [0.16644488, 0.20938152, 0.32959151, 0.46061748, 0.59304059, 0.67549127, 0.73914525, 0.81274293, 0.87378443, 0.93925344]
#: Names as `EntropyCache` numbers them, and whether keys are sums of two float16.
CACHES = ["f16", "bf16", "f32 keys", "f32"]
NEAREST = 0  # tensor cores that round every sum to nearest: what truncation costs is for tests/cuda_kernels
UNIT = 2.0**-24  # half a unit in the last place of a float32

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="SKIPPED: the kernels run on the CPU on Linux, with g++")


@pytest.fixture(scope="module")
def library():
    functions = example.library(False)
    functions.ch_tensor_sums(NEAREST)
    return functions


def stored(x, kind):
    """An array as the cache holds it, and its values."""
    if kind == "bf16":
        bits = (x.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    if kind == "split":
        high = x.astype(np.float16)
        low = (x - high).astype(np.float16)
        return np.concatenate([high, low], -1), high.astype(np.float64) + low
    held = x.astype(kind)
    return held, held


def reweighting(row):
    """w of positions 0 ..= row."""
    w = np.ones(row + 1)
    near = GAMMA[: max(row - 1, 0)]
    w[row - len(near) : row] = near[::-1]
    w[[0, row]] = 0
    return w


class Dense:
    """Attention of one row and head in a precision, by definition; every sum in order."""

    def __init__(self, precision, query, k, v, window, softcap):
        def total(x):
            return np.cumsum(x, axis=-1, dtype=precision)[..., -1]

        def normalized(w):
            on = w > 0
            if not on.any():
                return w, precision(np.inf)
            e = w * np.exp(np.where(on, s - s[on].max(), -np.inf))
            alpha = e / total(e)
            positive = alpha[alpha > 0]
            return alpha, -total(positive * np.log(positive))

        query, k, v = (x.astype(precision) for x in (query, k, v))
        row = len(k) - 1
        s = total(query * k)
        if softcap:
            s = precision(softcap) * np.tanh(s / precision(softcap))
        inside = (np.arange(row + 1) > row - window if window else np.ones(row + 1)).astype(precision)
        self.alpha, self.entropy = normalized(inside)
        self.reweighted, self.reweighted_entropy = normalized((reweighting(row) * inside).astype(precision))
        m = s[inside > 0].max()
        self.lse = m + np.log(total(inside * np.exp(s - m)))
        self.out = total((self.alpha[:, None] * v).T)
        self.product, self.value = np.abs(query * k).sum(-1)[inside > 0].max(), np.abs(v).max()


class Case:
    """Layers of random attention, in views of larger arrays whose other elements are NaN."""

    def __init__(self, cache, head_dim, heads, kv_heads, lengths, rows=1, layers=1, seed=0, *, sink=0.0, **options):
        random = np.random.default_rng(seed)
        self.shape = (len(lengths), rows, heads)
        self.cache, self.head_dim, self.kv_heads, self.rows = cache, head_dim, kv_heads, rows
        self.lengths = np.array(lengths, np.int32)
        self.options = {"window": 0, "softcap": 0.0, "splits": 3, "keep": 0, "gamma": 1, **options}
        self.layers = []
        for _ in range(layers):
            queries = (2 * random.standard_normal((*self.shape, head_dim)) / np.sqrt(head_dim)).astype(np.float32)
            plain, arrays = [], []
            for kind in {0: ["float16"] * 2, 1: ["bf16"] * 2, 2: ["split", "float16"], 3: ["split", "float32"]}[cache]:
                x = random.standard_normal((len(lengths), kv_heads, max(lengths), head_dim))
                if sink and not arrays:
                    x[..., 0] = 0
                    x[:, :, 0, 0] = sink
                    queries[..., 0] = 1
                held, values = stored(x.astype(np.float32), kind)
                # two sequences' heads, and thirteen positions, more than there are: strides that are not the shape's
                room = np.full((len(lengths) + 1, kv_heads + 2, max(lengths) + 13, held.shape[-1]), 0xFFFF if kind == "bf16" else np.nan, held.dtype)
                view = room[1:, 1:-1, : max(lengths)]
                for b, length in enumerate(lengths):
                    view[b, :, :length] = held[b, :, :length]
                arrays.append(view)
                plain.append(values)
            self.layers.append((queries, arrays, plain))

    def run(self, library):
        """Every layer's results, and the weights [batch, rows, K, positions] of the selected heads."""
        keep, positions = self.options["keep"], int(self.lengths.max()) + 5
        results, calls, ids = [], [], np.full((*self.shape[:2], keep), -1, np.int32)
        workspace = None
        for layer, (queries, (k, v), _) in enumerate(self.layers):
            queries = queries.copy()
            result = {name: np.full(self.shape, np.nan, np.float32) for name in ("lse", "entropy", "reweighted_entropy")}
            result["out"] = np.full((*self.shape, self.head_dim), np.nan, np.float32)
            a = example.Arguments(cache=self.cache, batch=self.shape[0], rows=self.rows, heads=self.shape[2], kv_heads=self.kv_heads,
                                  head_dim=self.head_dim, layer=layer, k=k.ctypes.data, v=v.ctypes.data, lengths=self.lengths.ctypes.data,
                                  queries=queries.ctypes.data, ids=ids.ctypes.data, sequence_stride=v.strides[0] // v.itemsize,
                                  head_stride=v.strides[1] // v.itemsize, **self.options)  # fmt: skip
            for name, array in result.items():
                setattr(a, name, array.ctypes.data)
            if workspace is None:
                workspace = np.full(library.entropy_attention_workspace(ctypes.byref(a)), 0xFF, np.uint8)
            a.workspace = workspace.ctypes.data
            assert library.entropy_attention(ctypes.byref(a), None) is None
            queries.fill(np.nan)  # the weights do without
            results.append(result)
            calls.append(a)
        weights = np.full((*ids.shape, positions), np.nan, np.float32)
        for a in calls if keep else ():
            assert library.entropy_attention_weights(ctypes.byref(a), ctypes.c_void_p(weights.ctypes.data), positions, None) is None
        return results, ids, weights

    def dense(self, precision, layer, b, row, head):
        queries, _, (k, v) = self.layers[layer]
        kv, end = head // (self.shape[2] // self.kv_heads), self.lengths[b] - self.rows + row + 1
        return Dense(precision, queries[b, row, head], k[b, kv, :end], v[b, kv, :end], self.options["window"], self.options["softcap"])

    def check(self, library):
        results, ids, weights = self.run(library)
        heads = self.shape[2]
        for b, row in np.ndindex(self.shape[:2]):
            if self.lengths[b] == 0:
                assert all((r["out"][b] == 0).all() and (r["lse"][b] == -np.inf).all() for r in results)
                continue
            exact, naive = [], []
            for layer, head in np.ndindex(len(self.layers), heads):
                exact.append(self.dense(np.float64, layer, b, row, head))
                naive.append(self.dense(np.float32, layer, b, row, head))
            got = {name: np.concatenate([r[name][b, row] for r in results]) for name in results[0]}
            # as in tests/cuda_kernels/attn_prefill.cpp: products of pairs of f16 terms lack at most 3 * 2^-22 of themselves, a score e
            lacking = 12 * UNIT
            e = lacking * max(x.product for x in exact)
            derived = {"out": (np.expm1(2 * e) + lacking) * max(x.value for x in exact), "lse": e,
                       "entropy": 2 * e * (1 + np.log(len(exact[0].alpha))), "alpha": np.expm1(2 * e)}  # fmt: skip
            derived["reweighted_entropy"] = derived["entropy"]
            for name in ("out", "lse", "entropy", "reweighted_entropy"):
                self.close(name, got[name], [getattr(x, name) for x in naive], [getattr(x, name) for x in exact], derived[name])
            if self.options["keep"]:
                self.check_selection(ids[b, row], weights[b, row], exact, naive, derived)

    def check_selection(self, ids, weights, exact, naive, derived):
        names = ("reweighted_entropy", "reweighted") if self.options["gamma"] else ("entropy", "alpha")
        entropies, kept = np.array([getattr(x, names[0]) for x in exact]), min(self.options["keep"], len(exact))
        assert len({*ids[:kept]}) == kept and (ids[:kept] >= 0).all() and (ids[kept:] == -1).all(), ids
        lowest = np.sort(entropies)[:kept]
        if np.isfinite(lowest).all():
            error = 2 * np.max([abs(getattr(x, names[0]) - h) for x, h in zip(naive, entropies)]) + 4 * UNIT * (1 + lowest.max()) + derived["entropy"]
            assert np.abs(entropies[ids[:kept]] - lowest).max() <= 2 * error, (ids, entropies)
        n = len(exact[0].alpha)
        assert (weights[:, n:] == 0).all() and (weights[kept:] == 0).all()
        self.close("weights", weights[:kept, :n], [getattr(naive[i], names[1]) for i in ids[:kept]], [getattr(exact[i], names[1]) for i in ids[:kept]],
                   derived["alpha"])  # fmt: skip

    def close(self, name, got, naive, exact, derived):
        """The rule of tests/cuda_kernels: at most twice the error of the naive float32 version, a few roundings, and what is derived."""
        got, naive, exact = (np.asarray(x, np.float64) for x in (got, naive, exact))
        none = np.isinf(exact)
        assert (got[none] == exact[none]).all(), name
        got, naive, exact = (x[~none] for x in (got, naive, exact))
        if exact.size:
            error, of_naive = np.abs(got - exact).max(), np.abs(naive - exact).max()
            assert error <= 2 * of_naive + 4 * UNIT * max(1, np.abs(exact).max()) + derived, f"{name}: error {error}, naive {of_naive}, derived {derived}"


LENGTHS = [1, 2, 3, 12, 33, 130, 257]


@pytest.mark.parametrize("cache", range(4), ids=CACHES)
@pytest.mark.parametrize("head_dim, heads, kv_heads", [(16, 2, 2), (32, 6, 2), (64, 8, 2), (96, 7, 1), (128, 9, 1), (256, 4, 1), (512, 2, 1)])
def test_one_token_of_each_sequence(library, cache, head_dim, heads, kv_heads):
    Case(cache, head_dim, heads, kv_heads, LENGTHS if head_dim == 64 else [2, 41, 0, 130], keep=3).check(library)


@pytest.mark.parametrize("cache", range(4), ids=CACHES)
@pytest.mark.parametrize("head_dim, heads, kv_heads", [(16, 2, 2), (64, 6, 2), (128, 5, 1), (256, 2, 1), (512, 2, 1)])
def test_several_tokens_of_each_sequence(library, cache, head_dim, heads, kv_heads):
    Case(cache, head_dim, heads, kv_heads, [21, 21 + 45], rows=21, keep=2).check(library)


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("gamma", [0, 1])
@pytest.mark.parametrize("options", [{}, {"window": 1}, {"window": 7}, {"window": 64}, {"softcap": 3.0}, {"sink": 100.0}, {"splits": 128}], ids=str)
def test_options(library, rows, gamma, options):
    Case(0, 64, 8, 2, [31, 100], rows=rows, keep=4, gamma=gamma, **options).check(library)


@pytest.mark.parametrize("rows, keep", [(1, 5), (1, 32), (20, 5)])
def test_a_selection_goes_on_through_the_layers(library, rows, keep):
    Case(1, 32, 4, 2, [20, 70], rows=rows, layers=3, keep=keep).check(library)


def test_the_same_bits_again(library):
    case = Case(3, 64, 4, 2, [100, 40], keep=2)
    (first, ids, weights), (again, ids_again, weights_again) = case.run(library), case.run(library)
    assert all(first[0][name].tobytes() == again[0][name].tobytes() for name in first[0])
    assert ids.tobytes() == ids_again.tobytes() and weights.tobytes() == weights_again.tobytes()


def test_what_no_kernel_takes(library):
    a = example.Arguments(batch=1, rows=1, heads=4, kv_heads=2, head_dim=80, splits=1)
    assert b"head_dim" in library.entropy_attention(ctypes.byref(a), None)
    a.head_dim, a.splits = 64, 129
    assert b"splits" in library.entropy_attention(ctypes.byref(a), None)
    a.splits, a.keep = 1, 4
    assert b"ids" in library.entropy_attention(ctypes.byref(a), None)
    a.keep, a.heads = 0, 3
    assert b"kv_heads" in library.entropy_attention(ctypes.byref(a), None)
