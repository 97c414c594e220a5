"""The loss doctor counts what a loop over pairs counts, names every illness and survives it."""

from itertools import combinations
from math import hypot, inf, isfinite, nan

import pytest
import reference
import torch
from helpers import PROPERTY, auctions, random_auctions
from hypothesis import given
from hypothesis import strategies as st

from bidwise import InputError, WelfareLoss
from bidwise.diagnosis import Part, diagnose

TAUGHT = {"value": "teacher", "gap": "signed", "surrogate": "logistic", "weighting": 3.0, "unit": 1.0}
OURS = {"value": "clicks", "gap": "positive", "surrogate": "logistic", "unit": "batch"}
MEMBERS = {
    "log_plus": OURS,
    "log_teacher": TAUGHT,
    WelfareLoss(lam=0.3, reduction="sum"): OURS | {"reduction": "sum"},
    WelfareLoss(**TAUGHT | {"unit": "batch"}): TAUGHT | {"unit": "batch"},
}


def diagnosis(ads, loss="log_teacher"):
    return diagnose(*ads.positional(), teacher=ads.teacher, loss=loss)


def columns(rows, sizes):
    """Rows of (logit, click, bid, teacher), cut into auctions of these sizes, as tensors."""
    logits, clicks, bids, teacher = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).unbind(1)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return {"logits": logits, "clicks": clicks, "bids": bids, "offsets": offsets, "teacher": teacher}


# Few levels, whose sigmoids and products round alike everywhere: most pairs tie in something, and some ads are sick.
sick_or_healthy = st.tuples(
    st.sampled_from([-800.0, 0.0, 1.3, 1.3, 40.0, nan, inf]),
    st.sampled_from([0.0, -0.0, 1.0, 0.03125, 0.96875, nan, 2.0]),
    st.sampled_from([1.0, 2.0, 2.0, 4.0, 0.0, -1.0, nan, inf, -inf]),
    st.sampled_from([0.25, 0.25, 0.5, 1.0, 0.0, -0.5, nan]),
)
healthy = st.tuples(
    st.sampled_from([-800.0, 0.0, 1.3, 40.0]),
    st.sampled_from([0.0, -0.0, 1.0, 1.0, 0.96875]),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([0.25, 0.5, 1.0, 0.0]),
)
ragged = st.lists(st.lists(st.one_of(healthy, healthy, healthy, sick_or_healthy), max_size=7), max_size=5)


def is_healthy(row):
    logit, click, bid, teacher = row
    return isfinite(logit) and isfinite(bid) and bid > 0 and 0 <= click <= 1 and 0 <= teacher <= 1


# Counts


@PROPERTY
@given(ragged)
def test_counts_equal_loops_over_pairs(batch):
    given_columns = columns([row for auction in batch for row in auction], map(len, batch))
    found, taught = diagnose(**given_columns), diagnose(**given_columns, loss="log_teacher")
    rows = [row for auction in batch for row in auction]
    kept = [[row for row in auction if is_healthy(row)] for auction in batch]
    rivals = [auction for auction in kept if len(auction) > 1]

    assert (found.ads, found.auctions) == (len(rows), len(batch))
    assert found.counts["non_finite_logits"].count == sum(not isfinite(z) for z, _, _, _ in rows)
    assert found.counts["non_finite_bids"].count == sum(not isfinite(b) for _, _, b, _ in rows)
    assert found.counts["non_positive_bids"].count == sum(isfinite(b) and b <= 0 for _, _, b, _ in rows)
    assert found.counts["clicks_out_of_range"].count == sum(not 0 <= y <= 1 for _, y, _, _ in rows)
    assert found.counts["teacher_out_of_range"].count == sum(not 0 <= p <= 1 for _, _, _, p in rows)
    assert found.counts["left_out"] == Part(len(rows) - sum(map(len, kept)), len(rows), "ads")

    assert found.counts["empty_auctions"].count == sum(len(auction) == 0 for auction in kept)
    assert found.counts["single_ad_auctions"].count == sum(len(auction) == 1 for auction in kept)
    assert found.counts["no_click_auctions"].count == sum(all(y == 0 for _, y, _, _ in auction) for auction in rivals)
    assert found.counts["all_click_auctions"].count == sum(all(y == 1 for _, y, _, _ in auction) for auction in rivals)
    assert found.counts["no_click_auctions"].whole == found.counts["all_click_auctions"].whole == len(rivals)

    pairs = [pair for auction in kept for pair in combinations(auction, 2)]
    assert found.pairs == len(pairs)

    def tied(quantity):
        return [quantity(*one) == quantity(*other) for one, other in pairs]

    ecpm = tied(lambda z, y, b, p: b * reference.sigmoid(z))
    assert found.counts["ecpm_ties"] == Part(sum(ecpm), len(pairs), "pairs")
    for term, value in [(found.rank, tied(lambda z, y, b, p: b * y)), (taught.rank, tied(lambda z, y, b, p: b * p))]:
        effective = sum(not a and not b for a, b in zip(ecpm, value, strict=True))
        assert term.effective_pairs == Part(effective, len(pairs), "pairs")


@PROPERTY
@given(auctions)
def test_saturation_equals_a_loop(ads):
    ads = ads.but(logits=5 * ads.logits)
    found = diagnosis(ads)
    slopes = [reference.sigmoid(z) * reference.sigmoid(-z) for z in ads.logits.tolist()]
    assert found.counts["saturated"].count == sum(slope < 1e-3 for slope in slopes)


def test_sick_ads_count_as_if_they_were_not_there():
    ads = random_auctions(seed=0, sizes=[6, 1, 4])
    sick = torch.tensor([1, 6, 7])
    bids = ads.bids.clone()
    bids[sick] = torch.tensor([nan, -1.0, inf], dtype=torch.float64)
    well = torch.ones(11, dtype=torch.bool)
    well[sick] = False
    found = diagnosis(ads.but(bids=bids))
    expected = diagnosis(ads.map(lambda x: x[well]).but(offsets=torch.tensor([0, 5, 5, 8])))
    assert found.counts["left_out"].count == 3
    assert (found.rank, found.counts["ecpm_ties"]) == (expected.rank, expected.counts["ecpm_ties"])
    assert (found.log_loss, found.counts["empty_auctions"]) == (expected.log_loss, expected.counts["empty_auctions"])


# Terms and gradients


@pytest.mark.parametrize("loss", MEMBERS, ids=str)
@PROPERTY
@given(ads=auctions)
def test_terms_equal_the_reference(loss, ads):
    found = diagnosis(ads, loss)
    logits, clicks, _, _, _ = ads.lists()
    lam, total = (0.3, True) if getattr(loss, "lam", 3) == 0.3 else (3, False)
    entropy, slopes = reference.mean_log_loss(logits, clicks)
    assert found.log_loss == pytest.approx(entropy)
    loss, slope = reference.welfare_loss(*ads.lists(), lam=0, **MEMBERS[loss])
    gradient, beside = hypot(*slope), hypot(*slopes) * (len(logits) if total else 1)
    assert found.rank.loss == pytest.approx(loss, abs=1e-12)
    assert found.rank.gradient == pytest.approx(gradient, abs=1e-12)
    if logits:
        assert found.rank.gradient_ratio == pytest.approx(gradient / beside, abs=1e-11)
        assert found.rank.gradient_share == pytest.approx(gradient / (gradient + lam * beside), abs=1e-11)


def test_log_plus_is_diagnosed_by_default():
    ads = random_auctions(seed=5, sizes=[8, 5])
    assert diagnose(*ads.positional()) == diagnose(*ads.positional(), loss=WelfareLoss())


def test_a_loss_without_a_rank_term_has_none():
    found = diagnosis(random_auctions(seed=5), "log_loss")
    assert found.rank is None
    assert not any("rank" in finding.name or "pairs" in finding.name for finding in found.findings)


@pytest.mark.parametrize("loss", ["logplus", torch.nn.BCELoss(), WelfareLoss(lam=torch.ones(2)), "log_plus_teacher"])
def test_a_loss_that_cannot_be_diagnosed_is_rejected(loss):
    with pytest.raises(InputError, match=r"^(loss must be|teacher must be given)"):
        diagnose(*random_auctions(seed=5).positional(), loss=loss)


# Illnesses and advice


def batch(**changes):
    """Two healthy auctions of 20 ads in all, with columns changed; a number fills its column."""
    ads = random_auctions(seed=2, sizes=[12, 8])
    full = {name: torch.full_like(ads.bids, x) for name, x in changes.items() if isinstance(x, float)}
    return ads.but(**(changes | full))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"offsets": torch.arange(21)}, "auctions of one ad"),
        ({"offsets": torch.tensor([0, 20, 20, 20])}, "auctions without ads"),
        ({"clicks": 0.0}, "auctions without a click"),
        ({"clicks": 0.0}, "effective pairs"),
        ({"clicks": 1.0}, "auctions all clicked"),
        ({"logits": 0.0, "bids": 1.0}, "ties in eCPM"),
        ({"logits": 0.0, "bids": 1.0}, "effective pairs"),
        ({"logits": -9.0}, "ctr (1 - ctr) < 0.001"),
        ({"logits": 9.0}, "ctr (1 - ctr) < 0.001"),
        ({"bids": 1e3}, "rank / log loss gradient"),
        ({"bids": 1e-3}, "rank / log loss gradient"),
        ({"bids": 1e300 * torch.arange(1, 21).double()}, "rank term"),
    ],
)
def test_what_goes_wrong_alarms_and_nothing_else_does_so_in_health(changes, name):
    loss = "log" if name == "effective pairs" and "clicks" in changes else "log_teacher"
    assert diagnosis(batch(), loss).alarms == []
    (alarm,) = [finding for finding in diagnosis(batch(**changes), loss).alarms if finding.name == name]
    assert alarm.advice[0].isupper()
    assert alarm.advice.endswith(".")


@pytest.mark.parametrize(
    ("loss", "name", "changes", "advice"),
    [
        ("log", "rank / log loss gradient", {"bids": 1e3}, "Raise lam"),
        ("log", "rank / log loss gradient", {"bids": 1e-3}, "Lower lam"),
        ("log", "effective pairs", {"clicks": 0.0}, "take a teacher"),
        ("log", "effective pairs", {"offsets": torch.arange(21)}, "No pairs to rank"),
    ],
)
def test_advice_follows_the_cause(loss, name, changes, advice):
    (finding,) = [finding for finding in diagnosis(batch(**changes), loss).alarms if finding.name == name]
    assert advice in finding.advice


# The printed table


@PROPERTY
@given(ragged, st.sampled_from(["log_plus", "log_teacher", "log_loss"]))
def test_the_table_holds_every_finding_in_aligned_columns(batch, loss):
    found = diagnose(**columns([row for auction in batch for row in auction], map(len, batch)), loss=loss)
    first, header, *lines = str(found).splitlines()
    assert f"ads: {found.ads}," in first
    assert first.endswith(f": {len(found.alarms)}")
    number, todo = header.index("number"), header.index("advice")
    rows = []
    for line in lines:
        assert line == line.rstrip()
        if line[:todo].strip():
            rows.append([line[0] == "!", line[2:number].strip(), line[number:todo].strip(), line[todo:]])
        else:
            rows[-1][3] += " " + line.strip()  # advice goes on
    assert rows == [[one.alarm, one.name, one.found, one.advice] for one in found.findings]
    assert len({one.name for one in found.findings}) == len(rows)


def test_no_number_of_the_teacher_without_one():
    found = diagnose(*batch().positional())
    assert not {name for name in found.counts if "teacher" in name}
    assert len(found.findings) == len(diagnosis(batch()).findings) - 1


# Edges


@pytest.mark.parametrize("offsets", [None, torch.tensor([0]), torch.tensor([0, 0, 0])], ids=["none", "zero", "two"])
def test_no_ads(offsets):
    nothing = torch.zeros(0)
    found = diagnose(nothing, nothing, nothing, offsets, teacher=nothing)
    assert found.ads == found.pairs == found.rank.gradient == found.log_loss == 0
    assert "No pairs to rank" in str(found)


def test_only_sick_ads():
    sick = torch.full((3,), nan)
    found = diagnose(sick, sick, sick, teacher=sick)
    assert found.counts["left_out"] == Part(3, 3, "ads")
    assert found.pairs == 0


def test_any_dtype_and_any_mode_and_no_mutation():
    ads = random_auctions(seed=7, sizes=[5, 3], dtype=torch.float32)
    copy = ads.map(torch.clone)
    expected = diagnosis(ads.map(torch.Tensor.double))
    assert diagnosis(ads) == diagnosis(ads.but(clicks=ads.clicks.bool())) == expected
    assert diagnosis(ads.but(logits=ads.logits.clone().requires_grad_())) == expected
    with torch.no_grad():
        assert diagnosis(ads) == expected
    with torch.inference_mode():
        assert diagnosis(ads.map(torch.clone).but(offsets=ads.offsets.clone())) == expected
    assert diagnosis(ads.map(torch.Tensor.half)).ads == 8
    assert all(torch.equal(a, b) for a, b in zip(ads.positional(), copy.positional(), strict=True))


def test_wrong_shapes_and_types_are_refused():
    ads = batch()
    wrong = {"bids": ads.bids[1:], "clicks": ads.clicks.tolist(), "teacher": 0.5, "logits": ads.logits.long()}
    for argument, value in (wrong | {"offsets": torch.tensor([0, 3])}).items():
        with pytest.raises((ValueError, TypeError), match=f"^{argument} must"):
            diagnosis(ads.but(**{argument: value}))
    with pytest.raises(ValueError, match=r"logits must have shape \(ads,\), found \(2, 10\)"):
        diagnosis(ads.map(lambda x: x.view(2, 10)))


# Size


@pytest.mark.parametrize("sizes", [[10**6], [7, 0, 1, 2] * 10**5], ids=["one auction", "many auctions"])
def test_a_million_ads_are_diagnosed_without_pairs(sizes):
    found = diagnosis(random_auctions(seed=0, sizes=sizes))
    assert found.ads == 10**6
    assert found.pairs == sum(n * (n - 1) // 2 for n in sizes)
    assert found.rank.effective_pairs.share > 0.999
