"""Bad input of losses raises the right type of error, which names the argument and what was found."""

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


def pairwise(**changes):
    return bidwise.pairwise_welfare_loss(**({**ADS, "value": "teacher", "weighting": 3.0} | changes))


def welfare_loss(**changes):
    options = {name: changes.pop(name) for name in list(changes) if name not in ADS}
    return bidwise.WelfareLoss(**({"value": "teacher", "weighting": 3.0} | options))(**(ADS | changes))


def log_loss(**changes):
    arguments = {"logits": ADS["logits"], "clicks": ADS["clicks"], "weights": ADS["bids"]}
    return bidwise.log_loss(**(arguments | changes))


def distilled(**changes):
    return bidwise.LOSSES["distilled"](**(ADS | changes))


def bid_weighted(**changes):
    return bidwise.LOSSES["bid_weighted"](**(ADS | changes))


def with_one(argument, bad):
    """The ads' numbers, one of them bad."""
    numbers = ADS.get(argument, ADS["bids"]).clone()
    numbers[2] = bad
    return numbers


RANK = (pairwise, welfare_loss)
CASES = [
    # types
    *((RANK, a, ADS[a].tolist(), TypeError, "list") for a in ADS),
    *((RANK, a, np.asarray(ADS[a]), TypeError, "ndarray") for a in ADS),
    *((RANK, a, 0.5, TypeError, "float") for a in ADS),
    *((RANK, "logits", ADS["logits"].to(d), TypeError, str(d)) for d in (torch.int64, torch.bool, torch.complex64)),
    *((RANK, a, ADS[a].to(torch.complex64), TypeError, "complex") for a in ("clicks", "bids", "teacher")),
    *((RANK, "offsets", ADS["offsets"].to(d), TypeError, str(d)) for d in (torch.float32, torch.int32, torch.bool)),
    *((RANK, a, bad, TypeError, type(bad).__name__) for a in ("sigma", "weighting") for bad in ("1", [1.0])),
    *(((log_loss,), a, [0.5] * 4, TypeError, "list") for a in ("logits", "clicks", "weights")),
    ((log_loss,), "logits", torch.tensor([0, 1, 2, 3]), TypeError, "int64"),
    # shapes and devices
    *(
        (RANK, a, torch.full(shape, 0.5), ValueError, str(shape))
        for a in ("clicks", "bids", "teacher")
        for shape in ((3,), (5,), (0,), (1,), (4, 1), (1, 4), ())
    ),
    *((RANK, "offsets", torch.tensor(bad), ValueError, str(shape)) for bad, shape in (([[0, 4]], (1, 2)), (4, ()))),
    (RANK, "offsets", torch.zeros(0, dtype=torch.int64), ValueError, "(0,)"),
    *((RANK, a, ADS[a].to("meta"), ValueError, "meta") for a in ("clicks", "bids", "teacher", "offsets")),
    *(
        ((log_loss,), a, torch.full(shape, 0.5), ValueError, str(shape))
        for a in ("clicks", "weights")
        for shape in ((3,), (1,), (4, 1), ())
    ),
    *(((log_loss,), a, torch.zeros(4, device="meta"), ValueError, "meta") for a in ("clicks", "weights")),
    # values
    *(
        (RANK, a, with_one(a, bad), ValueError, str(bad))
        for a in ("clicks", "teacher")
        for bad in (-0.5, 1.5, NAN, INF, -INF)
    ),
    (RANK, "clicks", torch.tensor([0, 1, 2, 1]), ValueError, "2"),
    *(((*RANK, bid_weighted), "bids", with_one("bids", bad), ValueError, f"{bad:g}") for bad in (0.0, -1.5, NAN, INF)),
    (RANK, "bids", with_one("bids", -INF), ValueError, "-inf"),
    (RANK, "bids", torch.tensor([1, 2, -7, 4]), ValueError, "-7"),
    *(
        (RANK, "offsets", torch.tensor(bad), ValueError, found)
        for bad, found in (
            ([1, 2, 4], "1"),
            ([-1, 2, 4], "-1"),
            ([0, 3, 2, 4], "3"),
            ([0, 2, 3], "3"),
            ([0, 2, 9], "9"),
            ([0], "0"),
        )
    ),
    *((RANK, a, bad, ValueError, f"{bad:g}") for a in ("sigma", "weighting") for bad in (0.0, -1.5, NAN, INF)),
    *(((log_loss,), "clicks", with_one("clicks", bad), ValueError, str(bad)) for bad in (-0.5, 1.5, NAN)),
    *(((log_loss,), "weights", with_one("weights", bad), ValueError, str(bad)) for bad in (-0.5, NAN, INF)),
    *(((distilled,), "teacher", with_one("teacher", bad), ValueError, str(bad)) for bad in (-0.5, 1.5, NAN)),
    # names
    *(
        (RANK, a, bad, (ValueError, TypeError), repr(bad))
        for a in ("value", "gap", "surrogate", "reduction", "method")
        for bad in ("wrong", "", None)
    ),
    ((log_loss,), "reduction", "wrong", ValueError, "'wrong'"),
]


@pytest.mark.parametrize(
    ("loss", "argument", "bad", "error", "found"),
    [
        pytest.param(loss, *case, id=f"{loss.__name__}-{case[0]}-{case[3]}")
        for losses, *case in CASES
        for loss in losses
    ],
)
def test_bad_input_names_its_argument_and_what_was_found(loss, argument, bad, error, found):
    with pytest.raises(error, match=rf"(?s)\b{argument}\b.*{re.escape(found)}"):
        loss(**{argument: bad})


rank_losses = pytest.mark.parametrize("loss", RANK)


@rank_losses
def test_good_input_is_accepted(loss):
    assert loss().isfinite()
    assert loss(offsets=None).isfinite()


@rank_losses
def test_checks_of_values_can_be_turned_off_and_those_of_shapes_and_types_cannot(loss):
    twos = torch.full((4,), 2.0)
    assert loss(clicks=twos, validate=False).isfinite()
    for error, bad in (
        (ValueError, {"clicks": twos, "validate": True}),
        (ValueError, {"clicks": torch.zeros(3), "validate": False}),
        (TypeError, {"offsets": torch.tensor([0.0, 4.0]), "validate": False}),
    ):
        with pytest.raises(error, match=next(iter(bad))):
            loss(**bad)


def test_a_column_of_logits_is_refused_with_the_fix():
    column = torch.zeros(4, 1)
    for loss in (bidwise.pairwise_welfare_loss, bidwise.WelfareLoss(), bidwise.LOSSES["log_loss"]):
        with pytest.raises(ValueError, match=r"logits .*\(4, 1\).*squeeze\(-1\)"):
            loss(column, column, column + 1)


def test_a_teacher_in_the_place_of_offsets_is_named():
    ads = torch.full((4,), 0.5)
    with pytest.raises(TypeError, match=r"offsets .* teacher="):
        bidwise.LOSSES["log_teacher"](ads, ads, ads, ads)


@pytest.mark.parametrize(
    ("option", "bad"),
    [("gap", "postive"), ("sigma", 0.0), ("method", "quick"), ("lam", -1.0), ("reduction", "none"), ("unit", "mean")]
    + [("unit", bad) for bad in (0, -1.0, NAN, None)],
)
def test_options_are_checked_when_the_loss_is_made(option, bad):
    with pytest.raises((ValueError, TypeError), match=f"^{option} must be"):
        bidwise.WelfareLoss(**{option: bad})
