"""Dataclasses to JSON and back: nothing is lost, and what does not belong is rejected with its place."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidwise.checks import InputError
from bidwise.evaluation.estimate import Estimate, Outcome, signed
from bidwise.evaluation.intervals import unit_interval
from bidwise.json_files import from_json, to_json


@dataclass(frozen=True)
class Inner:
    name: str
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outer:
    written = ("count",)

    parts: dict[str, Inner]
    level: float | None = None
    size: float | str = 0.0
    pair: tuple[int, str] = (1, "a")
    flags: list[bool] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.parts)


numbers = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, st.text(max_size=5), st.lists(numbers, max_size=3).map(tuple))
outers = st.builds(
    Outer,
    st.dictionaries(st.text(max_size=3), inners, max_size=3),
    st.none() | numbers,
    numbers | st.text(max_size=3),
    st.tuples(st.integers(-9, 9), st.text(max_size=3)),
    st.lists(st.booleans(), max_size=3),
)


@given(outers)
def test_what_was_written_is_read_again(value):
    assert from_json(Outer, json.loads(json.dumps(to_json(value), allow_nan=False))) == value


def test_derived_values_are_written_and_not_read():
    assert to_json(Outer({"a": Inner("x")}))["count"] == 1
    assert from_json(Outer, {"parts": {}, "count": 17}) == Outer({})
    assert from_json(dict[str, Any], {"a": [1, None]}) == {"a": [1, None]}


def test_numbers_that_are_not_finite_are_null_and_read_as_nan():
    written = to_json(Inner("x", (math.nan, math.inf, 1.0)))
    assert written == {"name": "x", "numbers": [None, None, 1.0]}
    assert [math.isnan(x) for x in from_json(Inner, written).numbers] == [True, True, False]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "result must have the keys parts, level, size, pair, flags, found no parts"),
        ({"parts": {}, "sentence": ""}, "result must have the keys parts, level, size, pair, flags, found sentence"),
        ({"parts": {"a": {"name": 3}}}, "result.parts.a.name must be of the kind str, found 3"),
        (
            {"parts": {"a": {"name": "x", "numbers": [1, "2"]}}},
            r"result.parts.a.numbers\[1\] must be of the kind float",
        ),
        ({"parts": []}, "result.parts must be of the kind dict"),
        ({"parts": {"a": 3}}, "result.parts.a must have keys, found 3"),
        ({"parts": {}, "size": []}, r"result.size must be of the kind str, found \[\]"),
        ({"parts": {}, "level": 10**400}, "result.level must be of the kind float, found 1000"),
        ({"parts": {}, "pair": [1]}, "result.pair must be of the kind tuple"),
        ({"parts": {}, "pair": [True, "a"]}, r"result.pair\[0\] must be of the kind int, found True"),
        ([], "result must have keys, found"),
    ],
)
def test_what_does_not_belong_is_refused_with_its_place(data, message):
    with pytest.raises(InputError, match=f"^{message}"):
        from_json(Outer, data)


def estimate(low, high):
    return Estimate(difference=(low + high) / 2, ci_low=low, ci_high=high)


def test_an_interval_decides_what_may_be_said():
    assert estimate(0.1, 0.3).outcome is Outcome.BETTER
    assert estimate(-0.3, -0.1).outcome is Outcome.WORSE
    assert estimate(-0.1, 0.3).outcome is Outcome.UNCLEAR
    assert estimate(0.0, 0.3).outcome is Outcome.UNCLEAR
    assert Estimate(difference=1.0).outcome is Outcome.UNCLEAR  # no interval, nothing to say
    assert Estimate(difference=0.0, ci_low=-math.inf, ci_high=math.inf).outcome is Outcome.UNCLEAR


def test_estimates_are_written_alike_everywhere():
    lift = estimate(-0.0049, -0.0015)
    assert f"{100 * lift:.2f}" == "−0.32 [−0.49, −0.15]"
    assert f"{lift / 0.1:.1%}" == "−3.2 % [−4.9, −1.5]"
    assert f"{Estimate(difference=0.5):.1f}" == "+0.5"
    assert str(estimate(0.00123, 0.00127)) == "+0.001250 [+0.001230, +0.001270]"
    assert str(estimate(-300.0, 500.0)) == "+100.00 [−300.00, +500.00]"
    assert (lift / 0).outcome is Outcome.UNCLEAR


@pytest.mark.parametrize(
    ("number", "spec", "text"),
    [
        (0.0, ".2f", "0.00"),
        (-0.0, ".1f", "0.0"),
        (-1e-9, ".2f", "0.00"),
        (1234.5, ",.0f", "+1,234"),
        (math.inf, "", "–"),
    ],
)
def test_signs(number, spec, text):
    assert signed(number, spec) == text


def test_one_repeat_has_no_interval():
    assert not Estimate.of(unit_interval([0.3])).known
    several = Estimate.of(unit_interval([1.0, 2.0, 3.0]))
    assert (several.difference, round(several.ci_low, 3)) == (2.0, -0.484)
