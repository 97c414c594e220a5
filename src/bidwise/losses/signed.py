"""Signed gap without pairs: a covariance, or sums that are linear in the ads, after a sort where one is needed."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from bidwise.kernels.chebyshev import chebyshev, coefficients
from bidwise.losses.definition import PairInputs, PairOptions, PairSums
from bidwise.losses.panels import logistic_sums
from bidwise.losses.prefix_sums import Arrangement, sort_inside, step_sums
from bidwise.segments import Auctions

ONE_PANEL = {torch.float32: (1e-8, 96), torch.float64: (1e-12, 128)}  # error, and the largest degree worth it


def covariance(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """The signed, unweighted logistic or hinge pair sum without pairs.

    softplus(-x) - softplus(x) = -x, so both orders of a pair add up to -sigma (v_i - v_j)(s_i - s_j): logistic and
    hinge are the same loss, minus sigma n^2 times the covariance of value and eCPM.
    """
    if auctions.count == 1:  # the lines below without a mean per ad: a third of the time for a batch of 256
        value, ecpm = ads.value - ads.value.mean(), ads.ecpm - ads.ecpm.mean()
        sizes: int | Tensor = auctions.ads
    else:
        value, ecpm = ads.value - auctions.mean(ads.value), ads.ecpm - auctions.mean(ads.ecpm)
        sizes = auctions.spread(auctions.sizes.to(ecpm.dtype))
    slope = value * (-options.sigma * sizes)
    return slope * ecpm, slope if gradient else None  # centred: plain sums lose three digits in float32


def signed_sums(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Signed gap over all pairs, weighted or not."""
    if options.surrogate == "logistic" and auctions.size and auctions.count:
        table = one_panel(options.sigma * ads.ecpm, auctions)
        if table is not None:
            return one_panel_sums(ads, auctions, options, *table, gradient)
    rows = sort_inside(ads.ecpm, auctions)
    if options.surrogate == "logistic":  # far and near panels add up to all pairs, so that centring saves digits
        pivot = auctions.sum(ads.value) / auctions.sizes.clamp(min=1)
    else:
        pivot = ads.value.new_zeros(auctions.count)
    found = segment_sums(Arrangement(ads.at(rows), auctions, None, pivot), options, gradient)
    cost, slope = (x if x is None else torch.empty_like(x).index_copy_(0, rows, x) for x in found)
    assert cost is not None
    return cost, slope


def segment_sums(arranged: Arrangement, options: PairOptions, gradient: bool) -> PairSums:
    """Cost and slope of arranged ads over all pairs (i, j) of their segments, with gap v_i - v_j, or 1 for `order`."""
    sums = logistic_sums if options.surrogate == "logistic" else step_sums
    return sums(arranged, options, gradient)


def one_panel(t: Tensor, auctions: Auctions) -> tuple[Tensor, Tensor] | None:
    """Where each ad stands in the range of sigma * eCPM of its auction, in [-1, 1], and the kernels on that range.

    ``None`` where the widest range asks for more Chebyshev polynomials than panels do.
    """
    table = t.view(auctions.count, -1)
    low, high = table.aminmax(dim=-1, keepdim=True)
    half = (high - low).max().item() / 2
    if not half < 1e3:
        return None
    half = 2 ** (math.ceil(4 * math.log2(max(half, 0.5))) / 4)  # a coarse grid: few kernels, made once each
    error, most = ONE_PANEL[t.dtype]
    # softplus is analytic in a strip of half-width pi, so its series on [-half, half] falls as rho^-degree
    rho = (math.pi + math.hypot(math.pi, half)) / half
    degree = math.ceil(math.log(error) / -math.log(rho)) + 2
    if degree > most:
        return None
    u = (table - (low + high) / 2).div_(half).clamp_(-1, 1)
    return u, _kernels(half, degree, t.dtype, t.device)


@lru_cache
def _kernels(half: float, degree: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coefficients of softplus(y) and sigmoid(y) in target (rows) and source (columns), target minus source = y."""
    node, _ = chebyshev(degree)
    y = half * (node[:, None] - node[None, :])
    kernels = torch.stack([-torch.nn.functional.logsigmoid(-y), torch.sigmoid(y)])
    return coefficients(kernels).mT.contiguous().to(device, dtype)


def one_panel_sums(
    ads: PairInputs, auctions: Auctions, options: PairOptions, u: Tensor, kernels: Tensor, gradient: bool
) -> PairSums:
    """The signed logistic as `logistic_sums` has it, with a single panel per auction: few operations, no sort.

    For auctions of equal size whose eCPM spreads over a few dozen units of 1 / sigma: most batches people train on.
    """
    shape, degree = u.shape, kernels.shape[-1]
    basis = torch.arange(degree, dtype=u.dtype, device=u.device) * u.acos().unsqueeze(-1)
    basis.cos_()  # (auctions, ads, degree): T_k(u) = cos(k arccos u)
    above = ads.value.view(shape)
    above = above - above.mean(-1, keepdim=True)
    left = torch.ones_like(u) if ads.left is None else ads.left.view(shape)
    right = torch.ones_like(u) if ads.right is None else ads.right.view(shape)
    charges = torch.stack([left, left * above, right, right * above], dim=-1)
    moments = basis.mT @ charges  # (auctions, degree, 4)
    softplus, sigmoid = kernels
    on_j, on_i = moments[..., :2], moments[..., 2:]
    fields = [softplus @ on_j]
    if gradient:
        fields += [sigmoid @ on_j, sigmoid.T @ on_i]  # sigmoid(-y) is sigmoid(y) with target and source exchanged
    sums = (basis @ torch.cat(fields, dim=-1)).unbind(-1)
    cost = right * torch.addcmul(sums[1], sums[0], above, value=-1)
    if not gradient:
        return cost.view(-1), None
    slope = right * torch.addcmul(sums[3], sums[2], above, value=-1)
    slope -= left * torch.addcmul(-sums[5], sums[4], above)
    return cost.view(-1), slope.mul_(options.sigma).view(-1)
