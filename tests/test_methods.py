"""Every method gives the same numbers: within its error budget, its number of pairs and its memory."""

import math
import subprocess
import sys
from functools import cache, partial
from itertools import product

import pytest
import torch
from helpers import MEMBERS, Member, largest, loss_and_gradient, pairwise, random_auctions, stack, worst

import bidwise
from bidwise.losses import all_pairs

every_member = pytest.mark.parametrize("member", MEMBERS, ids=str)

SINGLE = {f"n={n}": partial(random_auctions, 20, [n]) for n in (1, 2, 3, 50, 700)}
CASES = SINGLE | {
    "ragged": partial(random_auctions, 21, [1, 90, 2, 0, 57, 300, 3]),
    "ties": partial(random_auctions, 22, [400, 3, 90], ties=True),
    "heavy": partial(random_auctions, 23, [400, 3, 90], heavy=True),
    "heavy ties": partial(random_auctions, 24, [400, 3, 90], heavy=True, ties=True),
    "leading": lambda: stack(*(random_auctions(seed, [150, 1, 40], heavy=seed > 1) for seed in range(3))),
    "no clicks": lambda: filled_clicks(25, 0.0),
    "all clicks": lambda: filled_clicks(26, 1.0),
    "saturated": lambda: saturated(27),
    "equal bids": lambda: equal_bids(28),
    "sorted": lambda: in_order(29),
}


def filled_clicks(seed, clicks):
    ads = random_auctions(seed, [200, 2, 50])
    return ads.but(clicks=torch.full_like(ads.clicks, clicks))


def saturated(seed):
    """Half of the logits far out, where eCPM is 0 or the bid."""
    ads = random_auctions(seed, [300, 20])
    return ads.but(logits=torch.where(ads.logits.abs() > 0.7, 1000 * ads.logits, ads.logits))


def equal_bids(seed):
    ads = random_auctions(seed, [300, 20])
    return ads.but(bids=torch.full_like(ads.bids, 1.5))


def in_order(seed):
    """Ads already ranked by value: the adversary of sorting methods."""
    ads = random_auctions(seed, [300])
    return ads.map(lambda x: x[(ads.bids * ads.teacher).argsort()])


def pair_terms(ads, member, sigma):
    """w_ij gap(v_i - v_j) phi(s_i - s_j) of one auction as a plain n x n matrix over n^2, differentiable."""
    s = ads.bids * torch.sigmoid(ads.logits)
    v = ads.bids * (ads.teacher if member.value == "teacher" else ads.clicks)
    stake, margin = v[..., :, None] - v[..., None, :], s[..., :, None] - s[..., None, :]
    if member.gap != "signed":
        stake = stake.clamp(min=0) if member.gap == "positive" else (stake > 0).to(stake)
    if member.surrogate == "logistic":
        phi = -torch.nn.functional.logsigmoid(sigma * margin)
    elif member.surrogate == "hinge":
        phi = sigma * (margin.abs() - margin) / 2  # slope -sigma / 2 at a tie, which relu does not have
    else:
        phi = (margin <= 0).to(margin)
    terms = stake * phi
    if member.weighting is not None:
        left = torch.sigmoid(member.weighting * ads.bids * ads.teacher)
        terms = terms * left[..., :, None] * torch.sigmoid(member.weighting * s)[..., None, :]
    return terms / max(ads.logits.shape[-1], 1) ** 2


def plain(ads, member, sigma):
    """Losses and gradient by plain torch, all pairs at once."""
    logits = ads.logits.detach().clone().requires_grad_()
    parts = ads.but(logits=logits).split()
    losses = torch.stack([pair_terms(one, member, sigma).sum((-2, -1)) for one in parts], dim=-1)
    if not losses.requires_grad:  # the plain indicator
        return losses, torch.zeros_like(logits)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    return losses.detach(), gradient


def magnitude(ads, member, sigma):
    """Sum of the absolute pair terms of every auction."""
    return torch.stack([pair_terms(one, member, sigma).abs().sum((-2, -1)) for one in ads.split()], dim=-1)


def errors(found, expected, scale):
    """Error of the losses in units of their absolute terms, of the gradient in units of its max norm."""
    (losses, gradient), (true_losses, true_gradient) = found, expected
    return worst(losses, true_losses, scale), worst(gradient, true_gradient, largest(true_gradient))


def run(ads, member, sigma, method):
    return loss_and_gradient(ads, member, sigma=sigma, method=method, reduction="none")


@cache
def truth(case, member, sigma, dtype=torch.float64):
    """The batch in ``dtype``, its losses and gradient by ``direct`` in float64, and their scale."""
    ads = CASES[case]().map(lambda x: x.to(dtype))
    exact = ads.map(torch.Tensor.double)
    return ads, run(exact, member, sigma, "direct"), magnitude(exact, member, sigma)


# The same numbers


@pytest.mark.parametrize(
    ("case", "sigma"), [*((case, 1.0) for case in CASES), *product(["ragged", "heavy"], [0.1, 3.0, 30.0])]
)
@every_member
def test_fast_equals_direct(member, case, sigma):
    ads, direct, scale = truth(case, member, sigma)
    assert max(errors(run(ads, member, sigma, "fast"), direct, scale)) <= 1e-9


@every_member
def test_fast_equals_direct_on_thousands_of_ads(member):
    ads = random_auctions(seed=30, sizes=[3000])
    found, direct = (run(ads, member, 1.0, method) for method in ("fast", "direct"))
    scale = magnitude(ads, member, 1.0) if member.gap == "signed" else direct[0]  # else no term is negative
    assert max(errors(found, direct, scale)) <= 1e-9


@pytest.mark.parametrize("method", ["direct", "auto", "fast"])
@pytest.mark.parametrize("case", ["n=700", "ragged", "ties", "heavy", "all clicks", "saturated"])
@every_member
def test_float32_errs_no_more_than_plain_float32(member, case, method):
    ads, exact, scale = truth(case, member, 1.0, torch.float32)
    found = errors(run(ads, member, 1.0, method), exact, scale)
    allowed = errors(plain(ads, member, 1.0), exact, scale)
    assert found[0] <= allowed[0] + 1e-6
    assert found[1] <= allowed[1] + 1e-6


@pytest.mark.parametrize("shape", [{}, {"ties": True}, {"heavy": True}], ids=["spread", "ties", "heavy"])
@pytest.mark.parametrize("surrogate", ["logistic", "hinge", "indicator"])
@pytest.mark.parametrize("gap", ["signed", "positive"])
def test_float32_keeps_its_digits_in_large_auctions(gap, surrogate, shape):
    """The longer the sum, the more a careless float32 sum loses."""
    member = Member("teacher", gap, surrogate, None)
    ads = random_auctions(seed=40, sizes=[20_000, 1], dtype=torch.float32, **shape)
    exact_ads = ads.map(torch.Tensor.double)
    found, exact = (run(batch, member, 1.0, "fast")[0] for batch in (ads, exact_ads))
    scale = exact
    if gap == "signed":  # positive terms minus negative ones: turned into their sum
        scale = 2 * run(exact_ads, member._replace(gap="positive"), 1.0, "fast")[0] - exact
    assert worst(found, exact, scale) <= 2e-6


@every_member
def test_fast_gives_single_ads_and_empty_auctions_exactly_nothing(member):
    losses, gradient = run(random_auctions(seed=32, sizes=[1, 0, 1, 1]), member, 1.0, "fast")
    assert losses.tolist() == [0.0] * 4
    assert gradient.tolist() == [0.0] * 3
    nothing = random_auctions(seed=32, sizes=[])
    for offsets, count in [(None, 1), (torch.tensor([0]), 0), (torch.tensor([0, 0, 0]), 2)]:
        losses, gradient = run(nothing.but(offsets=offsets), member, 1.0, "fast")
        assert losses.tolist() == [0.0] * count
        assert gradient.shape == (0,)


def test_triton_refuses_the_cpu():
    with pytest.raises((ValueError, RuntimeError), match="triton"):
        pairwise(random_auctions(seed=0, sizes=[4]), MEMBERS[0], method="triton")


# Work and memory


def pairs_evaluated(ads, member, method):
    """Pairs that `pair_block`, the only code that sees pairs, was given."""
    pairs, pair_block = [], all_pairs.pair_block

    def counted(i, j, *others):
        pairs.append(i.ecpm.numel() * j.ecpm.shape[-1])
        return pair_block(i, j, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_pairs, "pair_block", counted)
        loss_and_gradient(ads, member, method=method)
    return sum(pairs)


@every_member
@pytest.mark.parametrize("shape", [{}, {"ties": True}, {"heavy": True}], ids=["spread", "ties", "heavy"])
def test_fast_and_auto_are_subquadratic(member, shape):
    for n, method in ((4096, "fast"), (16_384, "auto" if shape == {} else "fast")):
        ads = random_auctions(seed=36, sizes=[n], dtype=torch.float32, **shape)
        assert pairs_evaluated(ads, member, method) < 50 * n * math.log2(n)


PEAK = """
import sys
sys.path[:0] = {path!r}
from helpers import loss_and_gradient, random_auctions, Member
import torch

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

ads = random_auctions(1, [20_000], torch.float32)
for member, method in {cases!r}:
    loss_and_gradient(random_auctions(1, [64], torch.float32), Member(*member), method=method)
    before = peak()
    loss_and_gradient(ads, Member(*member), method=method)
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded():
    """An n x n float32 matrix of these 20,000 ads alone would take 1,600 MB."""
    path = [entry for entry in sys.path if entry.endswith("tests")]
    cases = [
        (("clicks", "positive", "hinge", None), "direct"),
        (("teacher", "signed", "logistic", 3.0), "fast"),
        (("teacher", "positive", "logistic", None), "fast"),
    ]
    script = PEAK.format(path=path, cases=cases)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(float(rise) < 200 for rise in done.stdout.split())
    assert len(done.stdout.split()) == len(cases)


# Inside torch


every_kind = pytest.mark.parametrize("name", ["log_plus", "log_weighted", "hinge"])


def task(name):
    """A linear model, its optimizer, and the loss of it."""
    ads = random_auctions(seed=38, sizes=[6, 1, 5], dtype=torch.float32)
    features = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2, 0.1, 0.4]]))
        model.bias.zero_()

    def objective():
        logits = model(features).squeeze(-1)
        return logits, bidwise.LOSSES[name](logits, ads.clicks, ads.bids, ads.offsets, ads.teacher)

    return model, torch.optim.SGD(model.parameters(), lr=0.1), objective


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, when it breaks a graph
@every_kind
def test_compiled_training_equals_eager_training(name):
    def train(wrap):
        model, optimizer, objective = task(name)
        objective = wrap(objective)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            _, loss = objective()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(parameter.detach() for parameter in model.parameters())]

    torch.compiler.reset()
    compiled = train(partial(torch.compile, backend="aot_eager"))
    for found, expected in zip(compiled, train(lambda objective: objective), strict=True):
        torch.testing.assert_close(found, expected)


# Where nothing but small terms is left


@pytest.mark.parametrize("gap", ["positive", "order"])
@pytest.mark.parametrize("bid", [5.0, 19.0, 40.0, 150.0])
def test_fast_keeps_the_small_losses_of_a_well_ordered_auction(gap, bid):
    """Every pair is in order and far apart: the loss is a sum of e^-distance, and exact relative to itself."""
    random = torch.Generator().manual_seed(0)
    clicks = (torch.arange(1500) < 450).double()
    logits = 8 * clicks - 4 + 0.01 * torch.randn(1500, generator=random).double()
    found = []
    for method in ("direct", "fast"):
        z = logits.clone().requires_grad_()
        loss = bidwise.pairwise_welfare_loss(z, clicks, torch.full_like(z, bid), gap=gap, method=method)
        (gradient,) = torch.autograd.grad(loss, z)
        found.append((loss.item(), gradient))
    (direct, slope), (fast, fast_slope) = found
    assert direct > 0
    assert abs(fast - direct) <= 1e-9 * direct
    assert (fast_slope - slope).abs().max() <= 1e-9 * slope.abs().max()


@every_member
def test_hinge_and_all_others_keep_digits_under_a_common_offset(member):
    """eCPM of 5e5 that differ by 0.05: margins are small beside their numbers."""
    random = torch.Generator().manual_seed(1)
    ads = random_auctions(seed=36, sizes=[500])
    ads = ads.but(logits=1e-7 * torch.randn(500, generator=random).double(), bids=1e6 * torch.ones(500).double())
    scale = magnitude(ads, member, 1.0)
    assert max(errors(run(ads, member, 1.0, "fast"), run(ads, member, 1.0, "direct"), scale)) <= 1e-9
