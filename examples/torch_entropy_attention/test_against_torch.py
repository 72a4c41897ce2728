"""The extension against dense attention in PyTorch: on the GPU if there is one, else on the CPU."""

import entropy_attention
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GAMMA = [0.16644488, 0.20938152, 0.32959151, 0.46061748, 0.59304059, 0.67549127, 0.73914525, 0.81274293, 0.87378443, 0.93925344]
# At worst, tensor cores lose eleven units of 2^-24 in each of 12 steps of a sum, products of f16 terms another 12 (tests/cuda_kernels).
LOST = (12 * 11 + 12) * 2.0**-24


def dense(precision, queries, k, v, lengths, window):
    """Every result of [batch, rows, heads], weights of the softmax and reweighted ones, and the largest sum of |q k|."""
    queries, k, v = (x.to(precision) for x in (queries, k, v))
    batch, rows, heads = queries.shape[:3]
    k, v = (x.nan_to_num().repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("brhd,bhtd->brht", queries, k)
    t, own = torch.arange(k.shape[2], device=DEVICE), (lengths[:, None] - rows + torch.arange(rows, device=DEVICE))[:, :, None, None]
    inside = (t <= own) & ((t > own - window) if window else True)
    nearest = torch.tensor([0.0, *GAMMA, 1.0], dtype=precision, device=DEVICE)[(own - t).clamp(0, len(GAMMA) + 1)]
    lse = torch.where(inside, scores, -torch.inf).logsumexp(-1)
    weights = inside * (scores - lse[..., None]).exp()
    alpha, reweighted = (x / x.sum(-1, keepdim=True) for x in (weights, weights * nearest * (t > 0)))
    entropy, reweighted_entropy = (torch.special.entr(x).sum(-1).nan_to_num(torch.inf) for x in (alpha, reweighted))
    products = torch.einsum("brhd,bhtd->brht", queries.abs(), k.abs()).masked_fill(~inside, 0).max()
    return torch.einsum("brht,bhtd->brhd", alpha, v), lse, entropy, reweighted_entropy, alpha, reweighted, products


def assert_close(got, naive, exact, derived):
    """At most twice the error of dense attention in float32, four roundings, and what is derived: this bound."""
    finite = exact.isfinite()
    assert (got[~finite] == exact[~finite]).all()
    error, of_naive = (((x.double() - exact)[finite]).abs().max() for x in (got, naive))
    bound = 2 * of_naive + 4 * 2.0**-24 * exact[finite].abs().max().clamp(min=1) + derived
    assert error <= bound, f"{error}, float32 {of_naive}, derived {derived}"
    return bound


@pytest.mark.parametrize("dtypes", ["float16 float16", "bfloat16 bfloat16", "float32 float16", "float32 float32"])
@pytest.mark.parametrize("head_dim, heads, kv_heads", [(64, 8, 2), (128, 9, 1), (256, 6, 3)])
@pytest.mark.parametrize("rows, window, gamma", [(1, 0, True), (1, 50, False), (37, 0, False), (37, 50, True)])
def test_against_dense_attention(dtypes, head_dim, heads, kv_heads, rows, window, gamma):
    torch.manual_seed(0)
    lengths = torch.tensor([37, 131, 70], dtype=torch.int32, device=DEVICE)
    queries = 2 * torch.randn(3, rows, heads, head_dim, device=DEVICE) / head_dim**0.5
    room = torch.randn(2, 4, kv_heads + 1, 150, head_dim, device=DEVICE)  # the caches are a part of it, their ends not filled
    room[:, 1:].masked_fill_(torch.arange(150, device=DEVICE)[:, None] >= lengths[:, None, None, None], torch.nan)
    k, v = (x.to(getattr(torch, dtype)) for x, dtype in zip(room, dtypes.split(), strict=True))
    split = entropy_attention.split_keys(k) if k.dtype == torch.float32 else k
    k = split.float().unflatten(-1, (-1, head_dim)).sum(-2)
    split, k, v = (x[1:, 1:, :131] for x in (split, k, v))
    ours = entropy_attention.Attention(queries, split, v, lengths, window=window, keep=4, gamma=gamma)
    exact, naive = (dense(precision, queries, k, v, lengths, window) for precision in (torch.float64, torch.float32))
    moved = LOST * exact[-1]  # of a score
    derived = ((2 * moved).expm1() + LOST) * v.nan_to_num().abs().max(), moved, 12 * moved, 12 * moved  # 2 (1 + ln 131) < 12
    results = zip((ours.out, ours.lse, ours.entropy, ours.reweighted_entropy), naive, exact, derived, strict=False)
    bounds = [assert_close(*compared) for compared in results]
    entropies, ids = exact[3 if gamma else 2].nan_to_num(posinf=0), ours.ids.long()
    assert (entropies.gather(-1, ids) - entropies.sort(-1)[0][..., :4]).abs().max() <= 2 * bounds[3 if gamma else 2]
    of_naive, of_exact = (x[5 if gamma else 4].gather(2, ids[..., None].expand(-1, -1, -1, 131)).nan_to_num() for x in (naive, exact))
    assert_close(entropy_attention.weights([ours], 131), of_naive, of_exact, (2 * moved).expm1())
