"""The Triton kernels give the numbers of the definition: on a GPU, or interpreted on the CPU (TRITON_INTERPRET=1)."""

import os
from functools import cache, partial

import pytest
import torch
from helpers import MEMBERS, Member, pairwise, random_auctions, read_bounds_of_loops, stack

import bidwise
from bidwise import BidWeightedLogLoss, WelfareLoss
from bidwise.kernels import fused_pairs
from bidwise.losses import dispatch
from bidwise.losses.api import kernel_log_loss
from bidwise.losses.definition import LossInputs

triton = pytest.importorskip("triton", reason="triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; TRITON_INTERPRET=1 runs the kernels on the CPU", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

every_member = pytest.mark.parametrize("member", MEMBERS, ids=str)
gpu_only = pytest.mark.skipif(INTERPRETED, reason="needs a GPU: too large, or not a matter of numbers, to interpret")
SOME = [
    Member("clicks", "signed", "logistic", None),
    Member("clicks", "signed", "logistic", 3.0),
    Member("teacher", "positive", "hinge", 3.0),
    Member("clicks", "order", "logistic", None),
]
some_members = pytest.mark.parametrize("member", SOME, ids=str)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if INTERPRETED:
        read_bounds_of_loops(monkeypatch)


def one(n, seed=40, **how):
    """One auction without offsets."""
    return random_auctions(seed, [n], **how).but(offsets=None)


def tied(seed):
    """Every ad twice or more, and ads that differ in value or in eCPM alone."""
    return random_auctions(seed, [40, 3, 0, 30], ties=True)


def equal():
    """30 ads that differ in value alone: every pair is a tie."""
    ads = one(30, 50)
    return ads.but(logits=torch.full_like(ads.logits, -0.2472781538963318), bids=torch.full_like(ads.bids, 2.0))


def repeats():
    return stack(*(random_auctions(seed, [30, 0, 1, 20]) for seed in range(3)))


def many(auctions, ads):
    return random_auctions(45, [ads] * auctions)


CASES = {f"n={n}": partial(one, n) for n in (1, 2, 31, 127, 129, 257)} | {
    "ragged": partial(random_auctions, 41, [5, 1, 3, 0, 0, 64, 2, 33, 0]),
    "ragged_large": partial(random_auctions, 42, [0, 100, 1, 60]),
    "ties": partial(tied, 43),
    "equal": equal,
    "repeats": repeats,
    "repeats_of_one_auction": lambda: stack(one(40, 46), one(40, 47)),
    "one_auction_with_offsets": partial(random_auctions, 44, [50]),
    "heavy_bids": partial(random_auctions, 48, [60, 3], heavy=True),
}
LARGE = {f"n={n}": partial(one, n) for n in (1_000, 4_096, 4_097, 8_191, 65_537)} | {
    "10000x30": partial(many, 10_000, 30),
    "100x1000": partial(many, 100, 1_000),
    "ragged_to_20000": partial(random_auctions, 49, [20_000, 1, 0, 3_000, 17, 9_000]),
}
SMALL = "n=31" if INTERPRETED else "n=257"
every_case = pytest.mark.parametrize("case", CASES)
every_large_case = pytest.mark.parametrize("case", LARGE)


@cache
def batch(case):
    """The ads of a case in float32, and the same numbers in float64."""
    ads = (CASES | LARGE)[case]().map(lambda x: x.float().to(DEVICE))
    ads = ads.but(offsets=None if ads.offsets is None else ads.offsets.to(DEVICE))
    return ads, ads.map(torch.Tensor.double)


def both(loss_of, ads):
    """Loss and the gradient of its sum with respect to the logits."""
    logits = ads.logits.detach().clone().requires_grad_()
    loss = loss_of(ads.but(logits=logits))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


def error(found, exact, scale=None):
    """In units of the norm of ``scale``, or of the numbers; infinite where 0 is owed and not given."""
    assert found.shape == exact.shape
    wrong, norm = (found.double() - exact).norm().item(), (exact if scale is None else scale).norm().item()
    return wrong / norm if norm else float("inf") if wrong else 0.0


def assert_as_good_as_plain(found, plain, exact, terms=None):
    """The kernels may err no more than plain float32, and 1e-6: of the gradient, and of the ``terms`` of the loss."""
    for ours, theirs, true, scale in zip(found, plain, exact, (terms, None), strict=True):
        assert ours.isfinite().all()
        assert error(ours, true, scale) <= error(theirs, true, scale) + 1e-6


@cache
def reference(member, case, **options):
    """Loss and gradient by plain float32 and exactly, and the scale of the loss."""
    ads, exact = batch(case)
    run = partial(pairwise, member=member, method="direct", **options)
    return both(run, ads), both(run, exact), absolute_terms(member, exact, **options)


def assert_right(member, case, **options):
    found = both(partial(pairwise, member=member, method="triton", **options), batch(case)[0])
    assert_as_good_as_plain(found, *reference(member, case, **options))


def absolute_terms(member, ads, **options):
    """Sum of |w_ij gap(v_i - v_j)| phi(s_i - s_j): terms of positive gap less those of negative gap are the loss."""
    loss = partial(pairwise, ads, method="direct", **options)
    return 2 * loss(member._replace(gap="positive")) - loss(member) if member.gap == "signed" else loss(member)


# The numbers of the definition


@every_case
@every_member
def test_loss_and_gradient_are_those_of_the_definition(member, case):
    assert_right(member, case)


@every_case
@some_members
def test_small_auctions_in_tiles(case, member, monkeypatch):
    monkeypatch.setattr(fused_pairs, "SMALL_TO", 0)
    assert_right(member, case)


@gpu_only
@every_large_case
@every_member
def test_large_batches_pair_by_pair(member, case, monkeypatch):
    monkeypatch.setattr(dispatch, "COVARIANCE_FROM", 1 << 40)
    monkeypatch.setattr(dispatch, "PANELS_FROM", 1 << 40)
    monkeypatch.setattr(dispatch, "CLICKS_FROM", 1 << 40)
    assert_right(member, case)


@gpu_only
@every_large_case
@every_member
def test_large_batches_as_auto_computes_them(member, case):
    assert_right(member, case)


@some_members
@pytest.mark.parametrize("pair_mean", [True, False], ids=["pair_mean", "pair_sum"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("case", ["repeats", "repeats_of_one_auction"])
def test_reductions(case, reduction, pair_mean, member):
    assert_right(member, case, reduction=reduction, pair_mean=pair_mean)


@some_members
@pytest.mark.parametrize("case", ["n=129", "ragged", "repeats"])
def test_small_batches_on_the_way_of_large_ones(case, member, monkeypatch):
    monkeypatch.setattr(fused_pairs, "SMALL_TO", 0)
    monkeypatch.setattr(fused_pairs, "PREPARE_FROM", 1)
    monkeypatch.setattr(fused_pairs, "ONE_PROGRAM_TO", 16)
    assert_right(member, case)
    ads, exact = batch(case)
    run = partial(log_loss_by_kernel, power=0.0, value="clicks", reduction="mean")
    assert error(run(ads), bidwise.log_loss(exact.logits, exact.clicks)) < 1e-6


@some_members
@pytest.mark.parametrize("sigma", [0.1, 30.0])
def test_slopes_of_the_surrogate(sigma, member):
    assert_right(member, "ragged", sigma=sigma)


@pytest.mark.parametrize("member", [m for m in MEMBERS if m.gap != "signed" and m.surrogate == "logistic"], ids=str)
def test_small_losses_of_ordered_auctions_keep_their_digits(member):
    ads, _ = batch("n=31")
    shown = 2 * ads.clicks - 1
    ads = ads.but(logits=3 * shown + 0.2 * ads.logits, bids=torch.full_like(shown, 1.5), teacher=0.5 + 0.3 * shown)
    run = partial(pairwise, member=member, sigma=8.0)
    found = both(partial(run, method="triton"), ads)
    exact = both(partial(run, method="direct"), ads.map(torch.Tensor.double))
    assert 0 < exact[0] < 1e-4
    for ours, true in zip(found, exact, strict=True):
        assert error(ours, true) < 1e-5


@every_member
@pytest.mark.parametrize("size", [1e4, 1e8])
def test_huge_bids_are_finite(size, member):
    ads, _ = batch("n=31")
    loss, gradient = both(partial(pairwise, member=member, method="triton"), ads.but(bids=size * ads.bids))
    assert loss.isfinite()
    assert gradient.isfinite().all()


@some_members
def test_saturated_logits(member):
    ads, _ = batch("ragged")
    ads = ads.but(logits=torch.where(ads.logits.abs() > 0.7, 1000 * ads.logits, ads.logits))
    run = partial(pairwise, member=member)
    plain = both(partial(run, method="direct"), ads)
    exact = both(partial(run, method="direct"), ads.map(torch.Tensor.double))
    assert_as_good_as_plain(both(partial(run, method="triton"), ads), plain, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    ads, _ = batch("ragged")
    run = partial(pairwise, member=SOME[1], method="triton")
    half = ads.map(lambda x: x.to(dtype))
    loss, gradient = both(run, half)
    expected, slopes = both(run, half.map(torch.Tensor.float))
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, slopes.to(dtype))


def test_labels_may_be_of_another_type():
    ads, _ = batch("ragged")
    run = partial(pairwise, member=SOME[3], method="triton")
    for clicks in (ads.clicks.bool(), ads.clicks.long(), ads.clicks.double()):
        assert torch.equal(run(ads.but(clicks=clicks)), run(ads))


@pytest.mark.parametrize("case", [SMALL, "ragged"])
@some_members
def test_the_loss_alone_is_the_loss_with_a_gradient(member, case):
    ads, _ = batch(case)
    run = partial(pairwise, member=member, method="triton")
    assert torch.equal(run(ads), both(run, ads)[0])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_nothing_costs_nothing(reduction):
    nothing = torch.zeros(0, device=DEVICE)
    for offsets in (None, torch.tensor([0], device=DEVICE), torch.tensor([0, 0, 0], device=DEVICE)):
        for shape in ((0,), (2, 0)):
            logits = nothing.reshape(shape).requires_grad_()
            call = partial(bidwise.pairwise_welfare_loss, logits, *2 * [nothing.reshape(shape)], offsets)
            found, expected = (call(reduction=reduction, method=method) for method in ("triton", "direct"))
            assert torch.equal(found, expected)
            found.sum().backward()
            assert logits.grad.shape == shape


# With the log loss


LOSSES = {name: loss for name, loss in bidwise.LOSSES.items() if isinstance(loss, WelfareLoss)}


def welfare_loss(ads, name, method, reduction="mean", lam=3.0):
    loss = LOSSES[name].with_options(method=method, reduction=reduction, pair_mean=reduction == "mean", lam=lam)
    return loss(*ads.positional(), ads.teacher)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("case", ["n=31", "ragged"] if INTERPRETED else ["n=257", "ragged", "repeats"])
def test_the_composite_is_the_rank_term_plus_the_log_loss(case, name):
    ads, exact = batch(case)
    for reduction, lam in (("mean", 3.0), ("sum", 0.5), ("mean", 0.0)):
        run = partial(welfare_loss, name=name, reduction=reduction, lam=lam)
        assert_as_good_as_plain(
            both(partial(run, method="triton"), ads),
            both(partial(run, method="direct"), ads),
            both(partial(run, method="direct"), exact),
        )


def log_loss_by_kernel(ads, power, value, reduction):
    """What BidWeightedLogLoss calls on a GPU."""
    labels = ads.teacher if value == "teacher" else ads.clicks
    weights = None if power == 0 else ads.bids**power
    return kernel_log_loss(LossInputs(ads.logits, labels, ads.bids, weights=weights), reduction)


LOG_CASES = ["n=1", "n=257", "ragged", "repeats"] + ([] if INTERPRETED else ["n=4097", "n=65537", "10000x30"])


@pytest.mark.parametrize("case", LOG_CASES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("value", ["clicks", "teacher"])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_weighted_log_loss(power, value, reduction, case):
    ads, exact = batch(case)

    def plain(ads):
        labels = ads.teacher if value == "teacher" else ads.clicks
        return bidwise.log_loss(ads.logits, labels, weights=ads.bids**power, reduction=reduction)

    kernel = partial(log_loss_by_kernel, power=power, value=value, reduction=reduction)
    found = both(kernel, ads)
    assert_as_good_as_plain(found, both(plain, ads), both(plain, exact))
    if not INTERPRETED:
        loss = BidWeightedLogLoss(power=power, value=value, reduction=reduction)
        public = both(lambda ads: loss(*ads.positional(), ads.teacher), ads)
        assert all(torch.equal(*pair) for pair in zip(public, found, strict=True))


def test_log_loss_of_extreme_logits_keeps_its_digits():
    logits = torch.tensor([-1e4, -100.0, -30.0, 30.0, 80.0, 1e4], device=DEVICE)
    for label in (0.0, 1.0, 0.3):
        ads = one(6).map(lambda x: x.float().to(DEVICE)).but(logits=logits, clicks=torch.full_like(logits, label))
        for k in range(6):
            row = ads.map(lambda x, k=k: x[k : k + 1])
            found = both(partial(log_loss_by_kernel, power=0.0, value="clicks", reduction="sum"), row)
            exact = both(log_loss_by_its_terms, row.map(torch.Tensor.double))
            for ours, true in zip(found, exact, strict=True):
                torch.testing.assert_close(ours.double(), true, rtol=1e-6, atol=1e-40)


def log_loss_by_its_terms(ads):
    """Without torch's z - y z, which rounds to the digits of z."""
    terms = torch.nn.functional.logsigmoid(ads.logits), torch.nn.functional.logsigmoid(-ads.logits)
    return -(ads.clicks * terms[0]).sum() - ((1 - ads.clicks) * terms[1]).sum()


# The choice of the method


def test_without_pairs_where_auctions_are_large(monkeypatch):
    monkeypatch.setattr(dispatch, "COVARIANCE_FROM", 20)
    monkeypatch.setattr(dispatch, "PANELS_FROM", 20)
    for case in ("n=31", "repeats_of_one_auction"):
        for member in (*SOME[:2], Member("teacher", "signed", "hinge", None)):
            ads, exact = batch(case)
            ours = both(partial(pairwise, member=member, method="triton"), ads)
            true = both(partial(pairwise, member=member, method="direct"), exact)
            for found, expected in zip(ours, true, strict=True):
                assert error(found, expected) < 1e-5


def test_float64_is_refused():
    ads, exact = batch("n=2")
    with pytest.raises(ValueError, match="float64"):
        pairwise(exact, SOME[0], method="triton")
    assert pairwise(exact, SOME[0]).dtype == torch.float64
    assert pairwise(ads, SOME[0]).dtype == torch.float32


# Repeatable, and without waiting


@pytest.mark.parametrize("case", [SMALL, "ragged"] + ([] if INTERPRETED else ["n=65537", "10000x30"]))
@some_members
def test_bits_repeat(member, case):
    ads, _ = batch(case)
    first = both(partial(pairwise, member=member, method="triton"), ads)
    for _ in range(2 if INTERPRETED else 20):
        again = both(partial(pairwise, member=member, method="triton"), ads)
        assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


@gpu_only
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("case", ["n=257", "ragged", "repeats", "n=8191", "10000x30"])
@every_member
def test_the_host_never_waits(member, case, reduction):
    ads, _ = batch(case)
    run = partial(pairwise, member=member, reduction=reduction)
    both(run, ads)
    torch.cuda.set_sync_debug_mode("error")
    try:
        both(run, ads)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu_only
@pytest.mark.parametrize("name", bidwise.LOSSES)
@pytest.mark.parametrize("case", ["n=257", "ragged", "n=65537", "10000x30"])
def test_a_cuda_graph_replays_every_named_loss(case, name):
    ads, _ = batch(case)
    loss_of = bidwise.LOSSES[name]
    logits = ads.logits.clone().requires_grad_()

    def step():
        loss = loss_of(logits, ads.clicks, ads.bids, ads.offsets, ads.teacher)
        return loss, torch.autograd.grad(loss, logits)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        logits.mul_(0.7).add_(0.1)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(*pair) for pair in zip(captured, step(), strict=True))


@gpu_only
@pytest.mark.parametrize("name", bidwise.LOSSES)
def test_compiled_losses_are_the_eager_ones(name):
    ads, _ = batch("ragged")
    torch.compiler.reset()

    def loss_of(logits):
        return 2 * bidwise.LOSSES[name](2 * logits, ads.clicks, ads.bids, ads.offsets, ads.teacher)

    compiled = torch.compile(loss_of, backend="aot_eager")
    for ours, expected in zip(*(both(lambda ads, f=f: f(ads.logits), ads) for f in (compiled, loss_of)), strict=True):
        torch.testing.assert_close(ours, expected)
