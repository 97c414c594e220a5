"""Every statement of the paper holds on finite instances, and a false version of it does not.

Instances come from a grid on which products are exact, so that ties are ties. `holds` tests are hypothesis
properties; `fails` tests search a seeded list, or build the instance, that refutes the altered statement.
"""

import itertools
import math
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paper import theory
from paper.theory import Instance, Sides, log_loss_risk, squared_error_risk

settings.register_profile("theory", derandomize=True, deadline=None, database=None, max_examples=60)
seeded = settings(settings.get_profile("theory"))

BID, CTR = st.integers(1, 80).map(lambda k: k / 8), st.integers(0, 64).map(lambda k: k / 64)
SIGMA = st.sampled_from([0.1, 0.5, 1.0, 3.0])
SLOTS = st.sampled_from([(1.0,), (1.0, 0.5), (1.0, 0.9, 0.3)])


def instances(low=1, high=6, **options):
    """Instances with ties allowed; bid, true CTR, predicted CTR and teacher's CTR for each ad."""
    ads = st.lists(st.tuples(BID, CTR, CTR, CTR), min_size=low, max_size=high, **options)
    return ads.map(lambda rows: Instance(*map(list, zip(*rows, strict=True))))


def tie_free(low=1, high=6):
    """Neither two true nor two predicted eCPMs are equal."""
    return instances(low, high, unique_by=(lambda ad: ad[0] * ad[1], lambda ad: ad[0] * ad[2]))


@st.composite
def worlds(draw):
    """A distribution over auctions: one to three of them, equally likely, with as many ads each."""
    ads = draw(st.integers(1, 5))
    return draw(st.lists(instances(ads, ads), min_size=1, max_size=3))


def random_instance(seed):
    """A tie-free instance of 2 to 5 ads; every third has predictions close to each other."""
    draw = random.Random(seed)
    ads = draw.randint(2, 5)
    narrow = 0.01 if seed % 3 == 0 else 1.0
    return Instance(
        bids=[draw.uniform(0.5, 10) for _ in range(ads)],
        truth=[draw.random() for _ in range(ads)],
        prediction=[narrow * draw.random() for _ in range(ads)],
        teacher=[draw.random() for _ in range(ads)],
    )


SEARCHED = [random_instance(seed) for seed in range(200)]
WRONG_ORDER = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.25, 0.5])
TIED_PREDICTION = Instance([1.0, 1.0], truth=[0.25, 0.75], prediction=[0.5, 0.5])
TIED_TRUTH = Instance([1.0, 1.0], truth=[0.5, 0.5], prediction=[0.25, 0.75])


def loop_loss(instance, worth, gap, phi):
    """sum_ij gap(worth_i - worth_j) phi(s_i - s_j), in plain Python."""
    ads = range(len(instance))
    worth = [b * w for b, w in zip(instance.bids.tolist(), worth.tolist(), strict=True)]
    s = [b * f for b, f in zip(instance.bids.tolist(), instance.prediction.tolist(), strict=True)]
    return sum(gap(worth[i] - worth[j]) * phi(s[i] - s[j]) for i in ads for j in ads)


def signed(x):
    return x


def positive(x):
    return max(x, 0.0)


def indicator(x):
    return float(x <= 0)


def logistic(x):
    return math.log1p(math.exp(-x))


def hinge(x):
    return max(-x, 0.0)


def risk(instance):
    return loop_loss(instance, instance.truth, signed, indicator)


def spread(instance):
    return loop_loss(instance, instance.truth, abs, lambda x: 1.0)


def welfare_of(instance, prediction, slots=(1.0,)):
    """Each slot shows one of the ads that have the score it needs, all equally likely."""
    bids, truth = instance.bids.tolist(), instance.truth.tolist()
    ecpm = [bid * ctr.item() for bid, ctr in zip(bids, prediction, strict=True)]
    total = 0.0
    for alpha, score in zip(slots, sorted(ecpm, reverse=True), strict=False):
        run = [bids[row] * truth[row] for row in range(len(bids)) if ecpm[row] == score]
        total += alpha * sum(run) / len(run)
    return total


# Instances and sides


@seeded
@given(instances(high=4), SIGMA)
def test_losses_of_an_instance_are_the_loops(instance, sigma):
    for worth, gap, phi in itertools.product(("truth", "teacher"), (signed, positive), (indicator, logistic, hinge)):
        found = instance.loss(worth, gap=gap.__name__, surrogate=phi.__name__, sigma=sigma)
        slope = 1.0 if phi is indicator else sigma
        expected = loop_loss(instance, getattr(instance, worth), gap, lambda x, a=slope, phi=phi: phi(a * x))
        assert found == pytest.approx(expected, abs=1e-9)


@seeded
@given(instances(high=5), SIGMA)
def test_signed_losses_on_the_truth_are_the_mean_over_all_click_vectors(instance, sigma):
    """Eq. 4, and what Thm. 3.4 takes the expectation of."""
    for phi in ("indicator", "logistic", "hinge"):
        total = 0.0
        for clicks in itertools.product((0.0, 1.0), repeat=len(instance)):
            clicks = torch.tensor(clicks, dtype=torch.float64)
            chance = torch.where(clicks == 1, instance.truth, 1 - instance.truth).prod().item()
            clicked = Instance(instance.bids, clicks, instance.prediction)
            total += chance * clicked.loss(surrogate=phi, sigma=sigma)
        assert instance.loss(surrogate=phi, sigma=sigma) == pytest.approx(total, abs=1e-8)


def test_positive_part_losses_are_not_linear_in_the_clicks():
    """Why a teacher is needed for them: clicks 1 and 0 overstate a difference of 0."""
    even = Instance([1.0, 1.0], truth=[0.5, 0.5], prediction=[0.25, 0.75])
    over_clicks = [
        Instance(even.bids, list(clicks), even.prediction).loss(gap="positive")
        for clicks in itertools.product((0.0, 1.0), repeat=2)
    ]
    assert even.loss(gap="positive") == 0
    assert sum(over_clicks) / 4 == 0.25


def test_example_2_1_is_1_72():
    ctr = [0.1, 0.4, 0.9]
    assert Instance([10.0, 2.0, 0.5], ctr, ctr).best_welfare((1.0, 0.9)) == pytest.approx(1.72)


def test_sides_allow_rounding_and_nothing_more():
    assert Sides(1.0 + 1e-12, 1.0, "<=").holds
    assert Sides(0.0, 1.0, "<=").holds
    assert not Sides(0.0, 1.0, "==").holds
    assert Sides(math.inf, math.inf, "==").holds


IN_UNITS = {  # statements about sums, with slopes that go with the unit of bids
    "welfare_lost": lambda x, _: theory.welfare_lost(x),
    "truth_is_optimal": lambda x, _: theory.truth_is_optimal(x),
    "least_risk": lambda x, _: theory.least_risk(x),
    "risk_bounds_welfare": lambda x, _: theory.risk_bounds_welfare(x),
    "mistakes_identity": lambda x, _: theory.mistakes_identity(x),
    "mistakes_bound_welfare": lambda x, _: theory.mistakes_bound_welfare(x),
    "teacher_risk_error": lambda x, _: theory.teacher_risk_error([x]),
    "welfare_certificate": lambda x, _: theory.welfare_certificate([x]),
    "teacher_bounds_welfare": lambda x, sigma: theory.teacher_bounds_welfare([x], sigma=sigma),
    "teacher_hinge_error": lambda x, sigma: theory.teacher_hinge_error([x], sigma=sigma),
    "teacher_mistakes_error": lambda x, sigma: theory.teacher_mistakes_error([x], sigma=sigma),
    "composite_margin": lambda x, sigma: theory.composite_margin(x, 1 / sigma),
    "surrogate_error": lambda x, sigma: theory.surrogate_error(x, "hinge", sigma=sigma),
    "covariance_form": lambda x, sigma: theory.covariance_form(x, "logistic", sigma=sigma),
    "click_variance": lambda x, sigma: theory.click_variance(x, sigma=sigma),
    "click_order_agreement": lambda x, _: theory.click_order_agreement(float(x.truth[0]) / 2),
    "teacher_surrogate_error": lambda x, sigma: theory.teacher_surrogate_error([x], "logistic", sigma=sigma),
    "calibration": lambda x, sigma: theory.calibration(Instance.loss, [x], [[x.prediction]], epsilon=1 / sigma),
    "teacher_calibration": lambda x, sigma: theory.teacher_calibration([x], [[x.prediction]], sigma=sigma),
    "positive_parts": lambda x, sigma: theory.positive_parts(float(x.bids[0]), -1 / sigma),
    "hinge_mistakes_error": lambda x, sigma: theory.hinge_mistakes_error(x, sigma=sigma)[0],
    "its bound": lambda x, sigma: theory.hinge_mistakes_error(x, sigma=sigma)[1],
}


@pytest.mark.parametrize("unit", [1e-10, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("statement", IN_UNITS)
def test_rounding_is_that_of_the_bids(statement, unit):
    """True in every unit, and no longer if a side is off by a millionth of itself, or of the unit if it cancels."""
    for each in SEARCHED:
        sides = IN_UNITS[statement](Instance(unit * each.bids, each.truth, each.prediction, each.teacher), 1 / unit)
        assert sides.holds
        assert not replace(sides, left=sides.right + 1e-6 * max(unit, abs(sides.right))).holds


def test_bids_of_all_sizes_leave_an_equivalence_exact():
    mixed = Instance([1e6, 1e-4, 2e-4], truth=[0.5, 0.5, 0.5], prediction=[0.5, 0.9, 0.1])
    assert (theory.ranking_minimises_risk(mixed).left, theory.ranking_minimises_risk(mixed).right) == (0, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Instance([1.0], [0.5], [0.5, 0.5]), "prediction must have one number per ad, 1, found 2"),
        (lambda: theory.teacher_risk_error([WRONG_ORDER]), "teacher must be given"),
        (lambda: theory.squared_error([]), "instances must be at least one"),
        (lambda: theory.check_equal_sizes([SEARCHED[0], BOLD, WORST, ONE_OF_NINE]), "all with as many ads"),
        (lambda: theory.surrogate_error(WRONG_ORDER, "hinge", bid_cap=0.5), "bid_cap must be at least"),
        (lambda: theory.slot_order(WRONG_ORDER, (1.0, 2.0)), "slots must be positive"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


# Eq. 2


@seeded
@given(instances())
def test_eq_2_holds_with_and_without_ties(instance):
    sides = theory.welfare_lost(instance)
    assert sides.holds
    lost = welfare_of(instance, instance.truth) - welfare_of(instance, instance.prediction)
    assert sides.left == pytest.approx(lost)


# Lemma A.1 and Prop. 2.2


@seeded
@given(tie_free(), SLOTS)
def test_lemma_a_1_holds(instance, slots):
    sides = theory.slot_order(instance, slots)
    assert not sides.ties
    assert sides.holds
    maximal = welfare_of(instance, instance.prediction, slots) == pytest.approx(
        welfare_of(instance, instance.truth, slots)
    )
    assert sides.left == float(maximal)


@seeded
@given(tie_free(), SLOTS)
def test_lemma_a_1_and_prop_2_2_hold_for_a_model_in_the_true_order(instance, slots):
    in_order = instance.predicting(instance.truth / 2)
    for sides in (theory.slot_order(in_order, slots), theory.single_slot_reduction(in_order, slots)):
        assert (sides.left, sides.right) == (1, 1)


def test_lemma_a_1_and_prop_2_2_hold_for_tied_predictions():
    """In the true order by row, but a tie may show the other ad."""
    tied = Instance([1.0, 1.0, 1.0], truth=[0.75, 0.5, 0.25], prediction=[0.5, 0.5, 0.5])
    last = tied.predicting([0.75, 0.5, 0.5])
    for one, slots, best in ((tied, (1.0,), 0), (last, (1.0,), 1), (last, (1.0, 0.5), 0)):
        for sides in (theory.slot_order(one, slots), theory.single_slot_reduction(one, slots)):
            assert (sides.left, sides.right, sides.ties) == (best, best, False)


def test_lemma_a_1_prop_2_2_and_prop_3_1_fail_for_equal_slots_or_ads():
    """Swapped at no cost: welfare is maximal, or risk is least, and the order is not the true one."""
    for sides in (
        theory.slot_order(WRONG_ORDER, (1.0, 1.0)),
        theory.slot_order(TIED_TRUTH, (1.0, 0.5)),
        theory.single_slot_reduction(WRONG_ORDER, (1.0, 1.0)),
        theory.ranking_minimises_risk(TIED_TRUTH),
    ):
        assert (sides.left, sides.right, sides.ties) == (1, 0, True)


@seeded
@given(tie_free(), SLOTS)
def test_prop_2_2_holds(instance, slots):
    sides = theory.single_slot_reduction(instance, slots)
    assert not sides.ties
    assert sides.holds
    assert sides.right == theory.slot_order(instance, slots).right


def test_prop_2_2_fails_slot_by_slot():
    """Best among the ads below the first slot, yet the second slot shows another: only all slots together."""
    auction = Instance([1.0, 1.0, 1.0], truth=[0.75, 0.5, 0.25], prediction=[0.5, 0.75, 0.25])
    below = auction.among(torch.tensor([1, 2]))
    assert below.welfare() == below.best_welfare()
    assert auction.ecpm.argsort(descending=True)[1] != auction.true_ecpm.argsort(descending=True)[1]


@seeded
@given(instances(), SLOTS)
def test_prop_2_2_the_true_ctr_is_optimal(instance, slots):
    sides = theory.truth_is_optimal(instance, slots)
    assert sides.holds
    assert sides.left == pytest.approx(welfare_of(instance, instance.prediction, slots))


# Prop. 3.1


@seeded
@given(tie_free(high=3))
def test_prop_3_1_holds(instance):
    sides = theory.ranking_minimises_risk(instance)
    assert not sides.ties
    assert sides.holds


@seeded
@given(tie_free())
def test_prop_3_1_holds_for_a_model_in_the_true_order(instance):
    sides = theory.ranking_minimises_risk(instance.predicting(instance.truth / 2))
    assert (sides.left, sides.right) == (1, 1)


@seeded
@given(instances())
def test_prop_3_1_the_true_ctr_has_the_least_risk(instance):
    sides = theory.least_risk(instance)
    assert sides.holds
    assert sides.left == pytest.approx(risk(instance.predicting(instance.truth)))
    assert sides.right == pytest.approx(-spread(instance) / 2)
    assert instance.loss() >= sides.left - 1e-9


def test_left_sides_are_losses_and_not_the_other_side_again(monkeypatch):
    monkeypatch.setattr(Instance, "loss", lambda self, *_, **__: float(self.prediction.sum()))
    sides = theory.least_risk(Instance([1.0, 2.0], truth=[0.5, 0.25], prediction=[0.1, 0.1]))
    assert (sides.left, sides.right, sides.holds) == (0.75, 0.0, False)
    assert theory.covariance_form(Instance([1.0, 2.0], [0.5, 0.25], [0.5, 0.25]), "hinge").left == 0.75


# Thm. 3.2


@seeded
@given(instances())
def test_thm_3_2_holds_with_and_without_ties(instance):
    sides = theory.risk_bounds_welfare(instance)
    assert sides.holds
    expected = welfare_of(instance, instance.prediction) + risk(instance) / 2 + spread(instance) / 4
    assert sides.right == pytest.approx(expected)


@seeded
@given(tie_free())
def test_thm_3_2_is_tight_for_minimisers_of_the_risk(instance):
    sides = theory.risk_bounds_welfare(instance.predicting(instance.truth))
    assert replace(sides, relation="==").holds


@seeded
@given(tie_free())
def test_thm_3_2_rests_on_counting_mistakes_at_their_cost(instance):
    sides = theory.mistakes_identity(instance)
    assert sides.holds
    assert not sides.ties
    assert sides.left == pytest.approx(loop_loss(instance, instance.truth, positive, indicator))
    assert sides.right == pytest.approx(risk(instance) / 2 + spread(instance) / 4)


def test_thm_3_2_fails_where_a_tie_shows_the_worse_ad():
    sides = theory.risk_bounds_welfare(TIED_PREDICTION)
    worse = TIED_PREDICTION.true_ecpm.min().item()
    assert sides.holds
    assert not replace(sides, right=sides.right - TIED_PREDICTION.welfare() + worse).holds
    assert not theory.mistakes_identity(TIED_PREDICTION).holds
    assert theory.mistakes_identity(TIED_PREDICTION).ties


# Prop. 3.3


def squared_margin(instance):
    """h(f) - h(p) of the squared error, whose expectation over clicks differs from it by what f does not change."""
    return sum((f - p) ** 2 for f, p in zip(instance.prediction.tolist(), instance.truth.tolist(), strict=True))


def log_margin(instance):
    """The same of the log loss; infinite where a model is certain and can be wrong."""

    def entropy(ctr, p):
        return sum(-chance * math.log(x) if x else math.inf for chance, x in ((p, ctr), (1 - p, 1 - ctr)) if chance)

    pairs = list(zip(instance.prediction.tolist(), instance.truth.tolist(), strict=True))
    return sum(entropy(f, p) for f, p in pairs) - sum(entropy(p, p) for _, p in pairs)


@seeded
@given(instances(), st.sampled_from([0.1, 1.0, 3.0]))
def test_prop_3_3_holds(instance, lam):
    """Both sides are those of loops: the least risk is minus half the spread."""
    behind = risk(instance) + spread(instance) / 2
    for pointwise, margin in ((log_loss_risk, log_margin), (squared_error_risk, squared_margin)):
        sides = theory.composite_margin(instance, lam, pointwise=pointwise)
        assert sides.holds
        assert sides.left == pytest.approx(lam * margin(instance), abs=1e-9)
        assert sides.right == pytest.approx(behind + lam * margin(instance), abs=1e-9)


@seeded
@given(instances(), SIGMA)
def test_prop_3_3_holds_for_eq_7_with_a_perfect_teacher(instance, sigma):
    def composite(each):
        return each.loss(gap="positive", surrogate="hinge", sigma=sigma) + squared_error_risk(
            each.prediction, each.truth
        )

    true = instance.predicting(instance.truth)
    assert composite(true) == 0
    assert composite(instance) > 0 or torch.equal(instance.prediction, instance.truth)


def test_prop_3_3_fails_for_eq_7_with_an_imperfect_teacher():
    turned = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.5, 0.5], teacher=[0.25, 0.75])

    def composite(each):
        hinge_plus = each.loss("teacher", gap="positive", surrogate="hinge")
        return hinge_plus + squared_error_risk(each.prediction, each.truth)

    assert (composite(turned), composite(turned.predicting(turned.truth))) == (0.125, 0.25)


def test_prop_3_3_the_true_ctr_is_the_only_minimiser_on_a_grid():
    grid = [k / 8 for k in range(9)]
    auction = Instance([1.0, 3.0], truth=[0.5, 0.25], prediction=[0.5, 0.25])
    composite = {
        ctr: auction.predicting(list(ctr)).loss()
        + squared_error_risk(torch.tensor(ctr, dtype=torch.float64), auction.truth)
        for ctr in itertools.product(grid, grid)
    }
    least = min(composite.values())
    assert [ctr for ctr, loss in composite.items() if loss == least] == [(0.5, 0.25)]


def test_prop_3_3_fails_for_the_logistic_surrogate():
    """What is trained in the experiments: a bolder model than the true CTR has the lower composite loss."""
    auction = Instance([1.0, 1.0], truth=[0.6, 0.4], prediction=[0.65, 0.35])

    def composite(each):
        return each.loss(surrogate="logistic") + 0.1 * squared_error_risk(each.prediction, each.truth)

    assert composite(auction) < composite(auction.predicting(auction.truth))


# Thm. 3.4 and the collapse of eq. 5 and 6


@seeded
@given(
    instances(),
    st.sampled_from(["logistic", "hinge"]),
    st.sampled_from([None, 0.05, 1.0, 3.0]),
    st.sampled_from([None, 1.0, 2.5]),
)
def test_thm_3_4_holds(instance, surrogate, sigma, room):
    """Both sides are those of loops; a cap above the largest bid lowers the slope, or raises the bound."""
    cap = instance.bids.max().item() * (room or 1.0)
    sides = theory.surrogate_error(instance, surrogate, sigma=sigma, bid_cap=cap if room else None)
    assert sides.holds
    slope = 2 / cap if sigma is None else sigma
    phi = {"logistic": logistic, "hinge": hinge}[surrogate]
    expected = loop_loss(instance, instance.truth, signed, lambda x: phi(slope * x)) - risk(instance)
    assert sides.left == pytest.approx(abs(expected), abs=1e-8)
    assert replace(sides, left=abs(0 - instance.loss())).holds  # no loss at all satisfies it
    factor = slope * cap - 1 if slope * cap > 2 else 1.0
    assert sides.right == pytest.approx(factor * spread(instance) / 2)


@pytest.mark.parametrize("surrogate", ["logistic", "hinge"])
@pytest.mark.parametrize(
    ("sigma", "bound"), [(2.0, 3.0), (4.0, 9.0), (5.0, 12.0)], ids=["sigma = 2 / B", "4 / B", "5 / B"]
)
def test_thm_3_4_is_tight_for_a_model_as_bold_as_can_be(surrogate, sigma, bound):
    """Four ads with bid 1, two of them worthless: 4 pairs 3/4 apart, predicted 1 apart.

    A pair adds -sigma times its gap to the surrogate and -1 times to the risk: both sides are (sigma - 1) 4 * 3/4.
    """
    bold = Instance([1.0] * 4, truth=[0.75, 0.75, 0.0, 0.0], prediction=[1.0, 1.0, 0.0, 0.0])
    sides = theory.surrogate_error(bold, surrogate, sigma=sigma)
    assert sides.right == bound
    assert replace(sides, relation="==").holds
    roomy = theory.surrogate_error(bold, surrogate, sigma=sigma, bid_cap=3.0)
    assert roomy.right == 3 * (3 * sigma - 1)


@pytest.mark.parametrize("surrogate", ["logistic", "hinge"])
def test_thm_3_4_is_tight_for_a_model_that_hardly_distinguishes_at_a_small_slope(surrogate):
    """sigma B = 1/2, where the factor is 1: the surrogate is nearly 0, and the risk is not."""
    timid = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.5 + 1e-12, 0.5])
    sides = theory.surrogate_error(timid, surrogate, sigma=0.5)
    assert sides.right == 0.5
    assert replace(sides, relation="==").holds


@seeded
@given(instances(), SIGMA)
def test_signed_logistic_and_hinge_collapse_to_a_covariance(instance, sigma):
    logistic_sides = theory.covariance_form(instance, "logistic", sigma=sigma)
    hinge_sides = theory.covariance_form(instance, "hinge", sigma=sigma)
    assert logistic_sides.holds
    assert hinge_sides.holds
    v, s = instance.true_ecpm.tolist(), instance.ecpm.tolist()
    products = sum(a * b for a, b in zip(v, s, strict=True))
    assert hinge_sides.right == pytest.approx(-sigma * (len(v) * products - sum(v) * sum(s)), abs=1e-8)


@seeded
@given(instances(), SIGMA)
def test_variance_over_clicks_grows_with_squared_bids(instance, sigma):
    sides = theory.click_variance(instance, sigma=sigma)
    assert sides.holds
    quiet = Instance(1e-5 * instance.bids, truth=instance.truth, prediction=instance.prediction)
    assert theory.click_variance(quiet, sigma=sigma).holds  # both orders of its pairs nearly cancel
    louder = Instance(10 * instance.bids, truth=instance.truth, prediction=instance.prediction)
    assert theory.click_variance(louder, sigma=sigma / 10).right == pytest.approx(100 * sides.right, rel=1e-6)
    assert not sides.right or not replace(sides, right=2 * sides.right + sides.scale).holds


# Prop. 3.5


@seeded
@given(st.floats(1e-6, 0.499))
def test_prop_3_5_holds_and_counts_the_outcomes_where_only_the_cheap_ad_is_clicked(epsilon):
    assert theory.click_order_agreement(epsilon).holds
    p_i, p_j = theory.misleading_pair(epsilon).truth.tolist()
    assert p_i == pytest.approx(1 - (1 - epsilon) / p_j)
    assert theory.order_agreement(theory.misleading_pair(epsilon)) == pytest.approx(1 - (1 - p_i) * p_j)


def test_prop_3_5_fails_for_the_printed_pair():
    """p_i = 1 - epsilon / p_j makes the clicks right with probability 1 - epsilon."""
    epsilon = 0.1
    p_j = 1 - epsilon / 2
    p_i = 1 - epsilon / p_j
    printed = Instance([2 / p_i, 1 / p_j], truth=[p_i, p_j], prediction=[p_i, p_j])
    assert theory.order_agreement(printed) == pytest.approx(1 - epsilon)
    assert not Sides(theory.order_agreement(printed), epsilon, "==").holds


def test_prop_3_5_spares_the_signed_loss():
    """On the misleading pair the true order still has the least expected loss: gaps are right on average."""
    pair = theory.misleading_pair(0.1)
    assert theory.least_risk(pair).holds
    assert pair.loss() == pytest.approx(-1.0)  # = -(b_i p_i - b_j p_j)


# Thm. 4.1


@seeded
@given(worlds())
def test_thm_4_1_holds(world):
    sides = theory.teacher_risk_error(world)
    assert sides.holds
    ads, cap = len(world[0]), max(each.bids.max().item() for each in world)
    squares = [e * e for each in world for e in (each.teacher - each.truth).tolist()]
    epsilon = sum(squares) / len(squares)
    assert sides.right == pytest.approx(ads * (ads - 1) * cap * math.sqrt(epsilon))
    errors = [abs(loop_loss(each, each.teacher, signed, indicator) - risk(each)) for each in world]
    assert sides.left == pytest.approx(sum(errors) / len(errors), abs=1e-9)
    assert theory.teacher_risk_error(world, bid_cap=20.0).holds


@seeded
@given(instances())
def test_thm_4_1_holds_with_a_smaller_constant_for_many_ads(instance):
    """The signs of a ranking cannot all agree: n sqrt((n^2 - 1) / 3) for n (n - 1), equal at n = 2."""
    ads, epsilon = len(instance), theory.squared_error([instance])
    sharp = ads * math.sqrt((ads**2 - 1) / 3) * instance.bids.max().item() * math.sqrt(epsilon)
    printed = theory.teacher_risk_error([instance])
    assert replace(printed, right=sharp).holds
    assert sharp <= printed.right + 1e-9


def teacher_bound(world, sigma):
    """n (n - 1) sigma B^2 sqrt(epsilon)."""
    ads, cap = len(world[0]), max(each.bids.max().item() for each in world)
    return ads * (ads - 1) * sigma * cap**2 * math.sqrt(theory.squared_error(world))


@seeded
@given(worlds(), SIGMA, st.sampled_from(["logistic", "hinge"]))
def test_eq_5_and_6_with_a_teacher_are_near_the_risk(world, sigma, surrogate):
    sides = theory.teacher_surrogate_error(world, surrogate, sigma=sigma)
    assert sides.holds
    phi = {"logistic": logistic, "hinge": hinge}[surrogate]
    errors = [abs(loop_loss(each, each.teacher, signed, lambda x: phi(sigma * x)) - risk(each)) for each in world]
    assert sides.left == pytest.approx(sum(errors) / len(errors), abs=1e-8)
    factor = max(1, sigma * max(each.bids.max().item() for each in world) - 1) / 2
    near = factor * sum(map(spread, world)) / len(world)
    assert sides.right == pytest.approx(near + teacher_bound(world, sigma))


# Defs. 4.2 and 4.3


def hypotheses_for(world, seed=0):
    """Ten other models and the teacher."""
    draw = random.Random(seed)
    return [[[draw.random() for _ in range(len(each))] for each in world] for _ in range(10)] + [
        [each.teacher.tolist() for each in world]
    ]


@seeded
@given(worlds())
def test_def_4_2_the_indicator_and_positive_part_losses_on_the_truth_are_calibrated(world):
    for gap, surrogate in (("signed", "indicator"), ("positive", "indicator"), ("positive", "hinge")):
        loss = partial(Instance.loss, gap=gap, surrogate=surrogate)
        assert theory.calibration(loss, world, hypotheses_for(world)).holds


@pytest.mark.parametrize("surrogate", ["logistic", "hinge"])
def test_def_4_2_signed_surrogates_are_not_calibrated(surrogate):
    """They reward a margin beyond the true one."""
    auction = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.75, 0.25])
    sides = theory.calibration(lambda each: each.loss(surrogate=surrogate), [auction], [[[1.0, 0.0]]])
    assert not sides.holds
    assert sides.left == pytest.approx(0.25)  # 0.5 * 1.0 - 0.5 * 0.5


def test_def_4_3_allows_exactly_the_gap():
    auction = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.75, 0.25])

    def within(epsilon):
        return theory.calibration(
            lambda each: each.loss(surrogate="hinge"), [auction], [[[1.0, 0.0]]], epsilon=epsilon
        ).holds

    assert within(0.25)
    assert not within(0.25 / 2)


def test_def_4_3_averages_over_instances_before_it_minimises():
    """One model for both auctions: what each would choose alone is not on offer."""
    calm = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.5, 0.5])
    turned = Instance([1.0, 1.0], truth=[0.25, 0.75], prediction=[0.5, 0.5])
    same_order = [[1.0, 0.0], [1.0, 0.0]]
    sides = theory.calibration(lambda each: each.loss(surrogate="hinge"), [calm, turned], [same_order])
    assert sides.left == 0


# Thm. 4.4 and its proof


@seeded
@given(worlds(), SIGMA)
def test_thm_4_4_holds(world, sigma):
    sides = theory.teacher_bounds_welfare(world, sigma=sigma)
    assert sides.holds
    ads, cap = len(world[0]), max(each.bids.max().item() for each in world)
    pairs = ads * (ads - 1)
    expected = sum(
        welfare_of(each, each.prediction) + loop_loss(each, each.teacher, positive, lambda x: hinge(sigma * x))
        for each in world
    ) / len(world)
    expected += pairs / 2 * cap * max(1, sigma * cap - 1)
    expected += pairs * sigma * cap**2 * math.sqrt(theory.squared_error(world))
    assert sides.right == pytest.approx(expected)


@seeded
@given(instances(low=2), SIGMA)
def test_thm_4_4_is_vacuous_for_two_ads_or_more(instance, sigma):
    """It stays true with the teacher's error, the loss and the model's welfare struck out."""
    cap = instance.bids.max().item()
    slack = len(instance) * (len(instance) - 1) / 2 * cap * max(1, sigma * cap - 1)
    assert replace(theory.teacher_bounds_welfare([instance], sigma=sigma), right=slack).holds


@seeded
@given(worlds(), SIGMA)
def test_thm_4_4_calibration_holds_and_is_of_order_epsilon(world, sigma):
    """sigma n^2 B^2 epsilon / 4: better than the printed root for small epsilon."""
    sides = theory.teacher_calibration(world, hypotheses_for(world), sigma=sigma)
    assert sides.holds
    assert sides.right == pytest.approx(teacher_bound(world, sigma))
    ads, cap = len(world[0]), max(each.bids.max().item() for each in world)
    sharp = sigma * ads**2 * cap**2 * theory.squared_error(world) / 4
    assert replace(sides, right=sharp).holds


def test_thm_4_4_calibration_fails_for_the_signed_loss():
    """Even with a perfect teacher the signed hinge prefers a bolder model."""
    perfect = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.75, 0.25], teacher=[0.75, 0.25])
    right = theory.teacher_calibration([perfect], [[[1.0, 0.0]]]).right
    signed_hinge = theory.calibration(
        lambda each: each.loss("teacher", surrogate="hinge"), [perfect], [[[1.0, 0.0]]], epsilon=right
    )
    assert not signed_hinge.holds


def test_thm_4_4_expectation_and_minimum_do_not_swap_as_printed():
    """min E <= E min, as the proof prints, is false: the same two ads in two auctions with turned bids."""
    truth, other, teacher = [1.0, 0.25], [0.25, 1.0], [0.5, 0.5]
    auctions = [Instance(bids, truth, truth, teacher) for bids in ([2.0, 1.0], [1.0, 2.0])]

    def loss(each, model):
        return each.predicting(model).loss("teacher", gap="positive", surrogate="hinge")

    least_mean = min(sum(loss(each, model) for each in auctions) / 2 for model in (truth, other))
    mean_least = sum(min(loss(each, model) for model in (truth, other)) for each in auctions) / 2
    assert (least_mean, mean_least) == (0.125, 0.0)


@seeded
@given(st.integers(-64, 64), st.integers(-64, 64))
def test_prop_a_2_holds(a, b):
    assert theory.positive_parts(a / 8, b / 8).holds


@seeded
@given(instances())
def test_prop_a_3_holds_with_and_without_ties_and_is_tight_for_minimisers(instance):
    sides = theory.mistakes_bound_welfare(instance)
    assert sides.holds
    mistakes = loop_loss(instance, instance.truth, positive, indicator)
    assert sides.right == pytest.approx(welfare_of(instance, instance.prediction) + mistakes)
    sides = theory.mistakes_bound_welfare(instance.predicting(instance.truth))
    assert replace(sides, relation="==").holds


@seeded
@given(worlds(), SIGMA)
def test_eq_19_holds(world, sigma):
    sides = theory.teacher_hinge_error(world, sigma=sigma)
    assert sides.holds
    errors = [
        abs(
            loop_loss(each, each.teacher, positive, lambda x: hinge(sigma * x))
            - loop_loss(each, each.truth, positive, lambda x: hinge(sigma * x))
        )
        for each in world
    ]
    assert sides.left == pytest.approx(sum(errors) / len(errors), abs=1e-9)
    assert sides.right == pytest.approx(teacher_bound(world, sigma))


@seeded
@given(instances(), SIGMA, st.sampled_from([1.0, 2.5]))
def test_hinge_is_near_the_mistakes(instance, sigma, room):
    cap = room * instance.bids.max().item()
    near, far = theory.hinge_mistakes_error(instance, sigma=sigma, bid_cap=cap)
    assert near.holds
    assert far.holds
    assert near.right == far.left
    pairs = len(instance) * (len(instance) - 1) / 2
    assert near.right == pytest.approx(max(1, sigma * cap - 1) * spread(instance) / 2)
    assert far.right == pytest.approx(pairs * cap * max(1, sigma * cap - 1))
    mistakes = loop_loss(instance, instance.truth, positive, indicator)
    surrogate = loop_loss(instance, instance.truth, positive, lambda x: hinge(sigma * x))
    assert near.left == pytest.approx(abs(surrogate - mistakes), abs=1e-9)


@seeded
@given(worlds(), SIGMA)
def test_last_step_of_thm_4_4_holds_as_printed(world, sigma):
    sides = theory.teacher_mistakes_error(world, sigma=sigma)
    assert sides.holds
    errors = [
        abs(
            loop_loss(each, each.teacher, positive, lambda x: hinge(sigma * x))
            - loop_loss(each, each.truth, positive, indicator)
        )
        for each in world
    ]
    assert sides.left == pytest.approx(sum(errors) / len(errors), abs=1e-9)
    ads, cap = len(world[0]), max(each.bids.max().item() for each in world)
    bracket = 2 * math.sqrt(theory.squared_error(world)) + max(1, sigma * cap - 1)
    assert sides.right == pytest.approx(ads * (ads - 1) / 2 * cap * bracket)


# The certificate


@seeded
@given(worlds())
def test_certificate_holds(world):
    sides = theory.welfare_certificate(world)
    assert sides.holds
    cap = max(each.bids.max().item() for each in world)
    expected = 2 * cap * math.sqrt(len(world[0]) * theory.squared_error(world))
    for each in world:
        seen = Instance(each.bids, each.teacher, each.prediction)
        lost = welfare_of(seen, seen.truth) - welfare_of(seen, seen.prediction)
        expected += (welfare_of(each, each.prediction) + lost) / len(world)
    assert sides.right == pytest.approx(expected)
    instance = world[0]
    sides = theory.welfare_certificate([instance])
    error = instance.bids.max().item() * math.sqrt(len(instance) * theory.squared_error([instance]))
    assert replace(sides, right=sides.right - (2 - math.sqrt(2)) * error).holds  # with the root of 2 for 2


# False versions


def turned(sides):
    return replace(sides, left=sides.right, right=sides.left)


def times(factor, sides):
    return replace(sides, right=factor * sides.right)


def less(by, sides):
    return replace(sides, right=sides.right - by)


def sharper(x):
    """The bound that Thm. 3.4 has at half the slope."""
    return replace(theory.surrogate_error(x, "hinge", sigma=4 / float(x.bids.max())), right=x.spread / 2)


FALSE = {
    "eq. 2 with the pair turned round": lambda x: times(-1, theory.welfare_lost(x)),
    "eq. 2 over all pairs": lambda x: replace(theory.welfare_lost(x), right=x.loss()),
    "Lemma A.1 with the first slot alone": lambda x: replace(
        theory.slot_order(x, (1.0, 0.5)), right=theory.slot_order(x, (1.0,)).right
    ),
    "Prop. 2.2 the other way round": lambda x: turned(theory.truth_is_optimal(x)),
    "Prop. 3.1 without the half, as its proof prints": lambda x: times(2, theory.least_risk(x)),
    "Prop. 3.1 for models that find the winner alone": lambda x: replace(
        theory.ranking_minimises_risk(x), right=float(theory.welfare_lost(x).left == 0)
    ),
    "Thm. 3.2 with an eighth for a quarter": lambda x: less(x.spread / 8, theory.risk_bounds_welfare(x)),
    "Thm. 3.2 with the whole risk for its half": lambda x: less(-x.loss() / 2, theory.risk_bounds_welfare(x)),
    "Prop. 3.3 with the margin doubled": lambda x: replace(
        theory.composite_margin(x), left=2 * theory.composite_margin(x).left
    ),
    "Thm. 3.4 with half the bound": lambda x: times(0.5, theory.surrogate_error(x, "hinge")),
    "Thm. 3.4 at twice the slope": sharper,
    "the collapse with n for n^2": lambda x: times(1 / len(x), theory.covariance_form(x, "hinge")),
    "the collapse of positive parts": lambda x: Sides(
        x.loss(gap="positive", surrogate="hinge"), x.loss(gap="positive", surrogate="logistic"), "=="
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_version_fails_somewhere(name):
    assert any(not FALSE[name](each).holds for each in [*SEARCHED, BOLD])


BOLD = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[1.0, 0.0])
HAIR = Instance([1.0, 1.0], truth=[1.0, 0.0], prediction=[0.5, 0.51], teacher=[1.0, 0.0])  # the worthless ad is ahead
ROOT = Instance([1.0, 1.0], truth=[0.5, 0.5], prediction=[0.75, 0.25], teacher=[0.75, 0.25])
OFF = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.0, 1.0], teacher=[1.0, 0.0])
WRONG_TEACHER = Instance([1.0, 1.0], truth=[1.0, 0.0], prediction=[1.0, 0.0], teacher=[0.0, 1.0])
MISLED = Instance([1.0, 1.0], truth=[0.5, 0.5], prediction=[1.0, 0.0], teacher=[1.0, 0.0])
ONE_OF_NINE = Instance([1.0] * 9, [0.9] + [0.0] * 8, [0.0, 0.1] + [0.0] * 7, [0.0] * 9)
WORST = Instance([1.0, 1.0], truth=[1.0, 0.0], prediction=[0.0, 1.0], teacher=[0.5, 0.5])
UNDERRATED = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.0, 1.0], teacher=[0.5, 0.5])
PERFECT = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.0, 1.0], teacher=[0.75, 0.25])


def error(each):
    return math.sqrt(theory.squared_error([each]))


TOO_SMALL = {  # by name the sides, and by how much the right one is smaller
    "Thm. 4.1 with half the constant": lambda: (theory.teacher_risk_error([ROOT]), error(ROOT)),
    "Thm. 4.1 with epsilon, no root": lambda: (
        theory.teacher_risk_error([ROOT]),
        2 * error(ROOT) * (1 - error(ROOT)),
    ),
    "eq. 6 without the teacher's error": lambda: (
        theory.teacher_surrogate_error([MISLED], "hinge"),
        teacher_bound([MISLED], 1.0),
    ),
    "Thm. 4.4 with half the slack": lambda: (theory.teacher_bounds_welfare([HAIR]), 0.5),
    "Thm. 4.4, calibration, with a quarter": lambda: (
        theory.teacher_calibration([WRONG_TEACHER], [[[0.0, 1.0]]]),
        0.75 * teacher_bound([WRONG_TEACHER], 1.0),
    ),
    "Prop. A.2 with one of the two parts": lambda: (theory.positive_parts(2.0, -1.0), 1.0),
    "Prop. A.3 with half": lambda: (theory.mistakes_bound_welfare(WRONG_ORDER), 0.25),
    "Prop. A.3 where a tie is no mistake": lambda: (theory.mistakes_bound_welfare(TIED_PREDICTION), 0.5),
    "eq. 19 with half": lambda: (theory.teacher_hinge_error([OFF]), teacher_bound([OFF], 1.0) / 2),
    "the hinge near the mistakes by half": lambda: (theory.hinge_mistakes_error(HAIR)[0], 0.5),
    "and the bound of that by half": lambda: (theory.hinge_mistakes_error(HAIR)[1], 0.5),
    "the last step without the teacher's error": lambda: (
        theory.teacher_mistakes_error([OFF], sigma=10.0),
        2 * error(OFF),
    ),
    "the certificate with the epsilon of ten auctions": lambda: (
        theory.welfare_certificate([WORST]),
        2 * math.sqrt(2) * (1 - math.sqrt(0.1)) * error(WORST),
    ),
    "the certificate without the number of ads": lambda: (
        theory.welfare_certificate([ONE_OF_NINE]),
        4 * error(ONE_OF_NINE),
    ),
    "the certificate with half": lambda: (theory.welfare_certificate([UNDERRATED]), math.sqrt(2) * error(UNDERRATED)),
    "the certificate without the disagreement": lambda: (theory.welfare_certificate([PERFECT]), 0.5),
}


@pytest.mark.parametrize("name", TOO_SMALL)
def test_a_smaller_bound_fails(name):
    sides, by = TOO_SMALL[name]()
    assert sides.holds
    assert not less(by, sides).holds


def test_thm_4_1_fails_with_the_printed_direction():
    """1{s_i >= s_j} in the teacher's loss turns its sign: even a perfect teacher is then far off."""
    printed = loop_loss(PERFECT, PERFECT.teacher, signed, lambda x: float(x >= 0))
    sides = theory.teacher_risk_error([PERFECT])
    assert sides.holds
    assert not replace(sides, left=abs(printed - PERFECT.loss())).holds
