"""Attention of the last tokens of each sequence, with its entropy, over contiguous KV caches (README.md).

CUDA tensors run on the GPU, in a library that torch's extension tools build at first use. CPU tensors run the same kernels on the CPU, slowly,
for tests.
"""

import ctypes
import functools
import subprocess
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None  # `library` and `Arguments` do without

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Arguments(ctypes.Structure):
    """`EntropyAttention` of kernels/entropy_attention.h."""

    _fields_ = [
        *[(name, ctypes.c_int) for name in "cache batch rows heads kv_heads head_dim window splits layer keep gamma".split()],
        *[("softcap", ctypes.c_float), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p)],
        *[(name, ctypes.c_longlong) for name in ("sequence_stride", "head_stride")],
        *[(name, ctypes.c_void_p) for name in "lengths queries out lse entropy reweighted_entropy ids workspace".split()],
    ]


@functools.cache
def library(on_gpu):
    """The functions of kernels/entropy_attention.h."""
    source = HERE / "entropy_attention.cu"
    if on_gpu:
        from torch.utils.cpp_extension import load

        path = load("entropy_attention", [str(source)], extra_include_paths=[str(ROOT / "kernels")], is_python_module=False)
    else:
        path = subprocess.check_output([ROOT / "tests/cuda_host/build.sh", "library", source], text=True).strip()
    functions = ctypes.CDLL(path)
    functions.entropy_attention_workspace.restype = ctypes.c_size_t
    functions.entropy_attention.restype = functions.entropy_attention_weights.restype = ctypes.c_char_p
    return functions


def split_keys(k):
    """float32 keys as the kernels take them, to 22 bits: [.., 2 head_dim] float16."""
    high = k.half()
    return torch.cat([high, (k - high.float()).half()], -1)


class Attention:
    """One layer's attention. Attributes: out, lse, entropy, reweighted_entropy, ids, as in kernels/entropy_attention.h.

    Args:
        queries: [batch, rows, heads, head_dim] float32, rotated, times the softmax scale.
        k, v: [batch, kv_heads, capacity, head_dim], views too: float16 or bfloat16; or `split_keys(k)`, and float16 or float32.
        lengths: [batch] int32, tokens in the cache, these rows' included.
        after: the layer before, if the selection of heads goes on from it.
    """

    def __init__(self, queries, k, v, lengths, *, window=0, softcap=0.0, splits=16, keep=0, gamma=True, after=None):
        head_dim, wide = queries.shape[3], k.shape[3] // queries.shape[3]
        f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
        caches = [(f16, f16, 1), (bf16, bf16, 1), (f16, f16, 2), (f16, f32, 2)]  # as `EntropyCache` numbers them
        if (k.dtype, v.dtype, wide) not in caches or queries.dtype != f32 or lengths.dtype != torch.int32:
            raise TypeError(f"no kernel for k {k.dtype} x {wide}, v {v.dtype}, queries {queries.dtype}, lengths {lengths.dtype}")
        if [s // wide for s in k.stride()[:3]] != [*v.stride()[:3]] or v.stride()[2:] != (head_dim, 1) or (k.data_ptr() | v.data_ptr()) % 16:
            raise ValueError(f"k and v: the same strides, a head's tokens side by side, aligned to 16 bytes; not {k.stride()}, {v.stride()}")
        empty = functools.partial(torch.empty, device=queries.device)
        self.inputs = k, v, lengths.contiguous(), queries.contiguous()
        self.out, (self.lse, self.entropy, self.reweighted_entropy) = empty(queries.shape), empty(3, *queries.shape[:3])
        self.ids = after.ids if after else empty(*queries.shape[:2], keep, dtype=torch.int32).fill_(-1)
        arrays = *self.inputs[2:], self.out, self.lse, self.entropy, self.reweighted_entropy, self.ids
        self.arguments = Arguments(caches.index((k.dtype, v.dtype, wide)), *queries.shape[:3], k.shape[1], head_dim, window, splits,
                                   after.arguments.layer + 1 if after else 0, keep, gamma, softcap, k.data_ptr(), v.data_ptr(),
                                   *v.stride()[:2], *[x.data_ptr() for x in arrays])  # fmt: skip
        size = library(queries.is_cuda).entropy_attention_workspace
        self.workspace = after.workspace if after else empty(size(ctypes.byref(self.arguments)), dtype=torch.uint8)
        self.arguments.workspace = self.workspace.data_ptr()
        self.call("entropy_attention")

    def call(self, function, *arguments):
        stream = torch.cuda.current_stream(self.out.device).cuda_stream if self.out.is_cuda else None
        wrong = getattr(library(self.out.is_cuda), function)(ctypes.byref(self.arguments), *arguments, ctypes.c_void_p(stream))
        if wrong:
            raise RuntimeError(wrong.decode())


def weights(layers, positions):
    """Attention weights [batch, rows, K, positions] of the heads that these layers, all in order, have selected."""
    out = torch.empty(*layers[-1].ids.shape, positions, device=layers[-1].ids.device)
    for layer in layers:
        layer.call("entropy_attention_weights", ctypes.c_void_p(out.data_ptr()), positions)
    return out
