"""Bad input is refused: the right type of error, naming the argument and what was found."""

import re

import numpy as np
import pytest
import torch

import bidwise

NAN, INF = float("nan"), float("inf")
ADS = {
    "logits": torch.tensor([0.5, -1.0, 2.0, 0.0]),
    "clicks": torch.tensor([1.0, 0.0, 0.0, 1.0]),
    "bids": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "offsets": torch.tensor([0, 2, 4]),
    "teacher": torch.tensor([0.5, 0.25, 0.75, 0.5]),
}
PER_AD = ["logits", "clicks", "bids", "teacher"]


def pairwise(**changes):
    return bidwise.pairwise_welfare_loss(**({**ADS, "value": "teacher", "weighting": 3.0} | changes))


def welfare_loss(**changes):
    options = {name: changes.pop(name) for name in list(changes) if name not in ADS}
    criterion = bidwise.WelfareLoss(**({"value": "teacher", "weighting": 3.0} | options))
    return criterion(**(ADS | changes))


def log_loss(**changes):
    arguments = {"logits": ADS["logits"], "clicks": ADS["clicks"], "weights": ADS["bids"]}
    return bidwise.log_loss(**(arguments | changes))


def distilled(**changes):
    return bidwise.LOSSES["distilled"](**(ADS | changes))


def bid_weighted(**changes):
    return bidwise.LOSSES["bid_weighted"](**(ADS | changes))


def refused(error, argument, found):
    """Expects ``error`` whose message names the argument and then what was found (any of several forms)."""
    found = [found] if isinstance(found, str) else found
    return pytest.raises(error, match=rf"(?s)\b{argument}\b.*({'|'.join(map(re.escape, found))})")


rank_losses = pytest.mark.parametrize("loss", [pairwise, welfare_loss])


@rank_losses
def test_good_input_is_accepted(loss):
    assert loss().isfinite()
    assert loss(offsets=None).isfinite()


# Types


@rank_losses
@pytest.mark.parametrize("argument", [*PER_AD, "offsets"])
@pytest.mark.parametrize("kind", ["list", "ndarray", "float"])
def test_only_tensors_are_taken(loss, argument, kind):
    bad = {"list": ADS[argument].tolist(), "ndarray": np.asarray(ADS[argument]), "float": 0.5}[kind]
    with refused(TypeError, argument, kind):
        loss(**{argument: bad})


@rank_losses
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_logits_are_floating_point(loss, dtype):
    with refused(TypeError, "logits", str(dtype)):
        loss(logits=ADS["logits"].to(dtype))


@rank_losses
@pytest.mark.parametrize("argument", ["clicks", "bids", "teacher"])
def test_numbers_are_real(loss, argument):
    with refused(TypeError, argument, "complex"):
        loss(**{argument: ADS[argument].to(torch.complex64)})


@rank_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_offsets_are_int64(loss, dtype):
    with refused(TypeError, "offsets", str(dtype)):
        loss(offsets=ADS["offsets"].to(dtype))


@rank_losses
@pytest.mark.parametrize("argument", ["sigma", "weighting"])
@pytest.mark.parametrize("bad", ["1", [1.0]], ids=str)
def test_slopes_are_numbers(loss, argument, bad):
    with refused(TypeError, argument, type(bad).__name__):
        loss(**{argument: bad})


# Shapes and devices


@rank_losses
@pytest.mark.parametrize("argument", ["clicks", "bids", "teacher"])
@pytest.mark.parametrize("shape", [(3,), (5,), (0,), (1,), (4, 1), (1, 4), ()], ids=str)
def test_every_ad_has_one_number_of_each(loss, argument, shape):
    with refused(ValueError, argument, str(shape)):
        loss(**{argument: torch.full(shape, 0.5)})


@rank_losses
def test_leading_dimensions_are_shared_by_all(loss):
    with refused(ValueError, "clicks", "(4,)"):
        loss(logits=torch.zeros(2, 4))


@rank_losses
def test_logits_have_a_dimension(loss):
    with pytest.raises(ValueError, match="logits"):
        loss(logits=torch.tensor(0.5), clicks=torch.tensor(1.0), bids=torch.tensor(1.0), offsets=None)


@rank_losses
@pytest.mark.parametrize("offsets", [torch.tensor([[0, 4]]), torch.tensor(4), torch.zeros(0, dtype=torch.int64)])
def test_offsets_are_flat_and_not_empty(loss, offsets):
    with refused(ValueError, "offsets", str(tuple(offsets.shape))):
        loss(offsets=offsets)


@rank_losses
@pytest.mark.parametrize("argument", ["clicks", "bids", "teacher", "offsets"])
def test_everything_is_on_one_device(loss, argument):
    with refused(ValueError, argument, "meta"):
        loss(**{argument: ADS[argument].to("meta")})


# Values


@rank_losses
@pytest.mark.parametrize("argument", ["clicks", "teacher"])
@pytest.mark.parametrize("bad", [-0.5, 1.5, NAN, INF, -INF], ids=str)
def test_clicks_and_teacher_are_in_0_to_1(loss, argument, bad):
    numbers = ADS[argument].clone()
    numbers[2] = bad
    with refused(ValueError, argument, str(bad)):
        loss(**{argument: numbers})


@rank_losses
def test_integer_clicks_are_0_or_1(loss):
    with refused(ValueError, "clicks", "2"):
        loss(clicks=torch.tensor([0, 1, 2, 1]))


@rank_losses
@pytest.mark.parametrize("bad", [0.0, -1.5, NAN, INF, -INF], ids=str)
def test_bids_are_positive_and_finite(loss, bad):
    bids = ADS["bids"].clone()
    bids[3] = bad
    with refused(ValueError, "bids", f"{bad:g}"):
        loss(bids=bids)


@rank_losses
def test_integer_bids_are_positive(loss):
    with refused(ValueError, "bids", "-7"):
        loss(bids=torch.tensor([1, 2, -7, 4]))


@rank_losses
@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([1, 2, 4], "1"),
        ([-1, 2, 4], "-1"),
        ([0, 3, 2, 4], ["2", "3"]),
        ([0, 2, 3], "3"),
        ([0, 2, 9], "9"),
        ([0], "0"),
    ],
    ids=str,
)
def test_offsets_rise_from_0_to_the_number_of_ads(loss, offsets, found):
    with refused(ValueError, "offsets", found):
        loss(offsets=torch.tensor(offsets))


@rank_losses
@pytest.mark.parametrize("options", [{"weighting": None}, {"value": "clicks"}], ids=["value", "weighting"])
def test_a_missing_teacher_is_named(loss, options):
    with pytest.raises(ValueError, match="teacher"):
        loss(teacher=None, **options)


@rank_losses
@pytest.mark.parametrize("argument", ["sigma", "weighting"])
@pytest.mark.parametrize("bad", [0.0, -1.5, NAN, INF], ids=str)
def test_slopes_are_positive_and_finite(loss, argument, bad):
    with refused(ValueError, argument, f"{bad:g}"):
        loss(**{argument: bad})


# Names


@rank_losses
@pytest.mark.parametrize("argument", ["value", "gap", "surrogate", "reduction", "method"])
@pytest.mark.parametrize("bad", ["wrong", "", None], ids=repr)
def test_unknown_names_are_refused(loss, argument, bad):
    with refused((ValueError, TypeError), argument, repr(bad)):
        loss(**{argument: bad})


@rank_losses
@pytest.mark.parametrize(
    ("argument", "known"),
    [
        ("value", ["clicks", "teacher"]),
        ("gap", ["signed", "positive", "order"]),
        ("surrogate", ["logistic", "hinge", "indicator"]),
        ("method", ["auto", "direct", "fast", "triton"]),
    ],
)
def test_the_known_names_are_listed(loss, argument, known):
    with pytest.raises(ValueError, match=argument) as caught:
        loss(**{argument: "wrong"})
    assert all(name in str(caught.value) for name in known)


# Checks of values can be turned off, checks of shapes and types cannot


@rank_losses
def test_value_checks_can_be_turned_off(loss):
    assert loss(clicks=torch.full((4,), 2.0), validate=False).isfinite()
    with refused(ValueError, "clicks", "2"):
        loss(clicks=torch.full((4,), 2.0), validate=True)


@rank_losses
def test_shape_and_type_checks_cannot_be_turned_off(loss):
    with refused(ValueError, "clicks", "(3,)"):
        loss(clicks=torch.zeros(3), validate=False)
    with refused(TypeError, "offsets", "float32"):
        loss(offsets=torch.tensor([0.0, 4.0]), validate=False)


# The log losses


@pytest.mark.parametrize("argument", ["logits", "clicks", "weights"])
def test_log_loss_takes_only_tensors(argument):
    with refused(TypeError, argument, "list"):
        log_loss(**{argument: [0.5, 0.5, 0.5, 0.5]})


def test_log_loss_takes_only_floating_point_logits():
    with refused(TypeError, "logits", "int64"):
        log_loss(logits=torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("argument", ["clicks", "weights"])
@pytest.mark.parametrize("shape", [(3,), (1,), (4, 1), ()], ids=str)
def test_log_loss_takes_one_number_per_ad(argument, shape):
    with refused(ValueError, argument, str(shape)):
        log_loss(**{argument: torch.full(shape, 0.5)})


@pytest.mark.parametrize("bad", [-0.5, 1.5, NAN], ids=str)
def test_log_loss_takes_clicks_in_0_to_1(bad):
    with refused(ValueError, "clicks", str(bad)):
        log_loss(clicks=torch.tensor([0.0, 1.0, bad, 1.0]))


@pytest.mark.parametrize("bad", [-0.5, NAN, INF], ids=str)
def test_log_loss_takes_finite_weights_of_at_least_0(bad):
    with refused(ValueError, "weights", str(bad)):
        log_loss(weights=torch.tensor([0.0, 1.0, bad, 1.0]))


@pytest.mark.parametrize("argument", ["clicks", "weights"])
def test_log_loss_takes_one_device(argument):
    with refused(ValueError, argument, "meta"):
        log_loss(**{argument: torch.zeros(4, device="meta")})


def test_log_loss_refuses_an_unknown_reduction():
    with refused(ValueError, "reduction", "'wrong'"):
        log_loss(reduction="wrong")


@pytest.mark.parametrize("bad", [-0.5, 1.5, NAN], ids=str)
def test_distilled_takes_a_teacher_in_0_to_1(bad):
    with refused(ValueError, "teacher", str(bad)):
        distilled(teacher=torch.tensor([0.5, 0.5, bad, 0.5]))


@pytest.mark.parametrize("bad", [0.0, -1.5, NAN, INF], ids=str)
def test_bid_weighted_takes_positive_finite_bids(bad):
    with refused(ValueError, "bids", f"{bad:g}"):
        bid_weighted(bids=torch.tensor([1.0, 2.0, bad, 1.0]))


def test_a_column_of_logits_is_refused_with_the_fix():
    column = torch.zeros(4, 1)
    for loss in (bidwise.pairwise_welfare_loss, bidwise.WelfareLoss(), bidwise.LOSSES["log_loss"]):
        with pytest.raises(ValueError, match=r"logits .*\(4, 1\).*squeeze\(-1\)"):
            loss(column, column, column + 1)


def test_a_teacher_in_the_place_of_offsets_is_named():
    ads = torch.full((4,), 0.5)
    with pytest.raises(TypeError, match=r"offsets .* teacher="):
        bidwise.LOSSES["log_teacher"](ads, ads, ads, ads)


@pytest.mark.parametrize("bad", [{"gap": "postive"}, {"sigma": 0.0}, {"method": "quick"}, {"lam": -1.0}], ids=str)
def test_options_are_checked_when_the_loss_is_made(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        bidwise.WelfareLoss(**bad)


def test_checks_do_not_depend_on_earlier_calls():
    ads = torch.full((4,), 0.5)
    bidwise.pairwise_welfare_loss(ads, ads, ads, sigma=1.0)
    with pytest.raises(TypeError, match="sigma"):
        bidwise.pairwise_welfare_loss(ads, ads, ads, sigma=True)
