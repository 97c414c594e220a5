"""Changes to paper/theory.py, a line replaced in each, that its tests notice: all were run, and none survives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
THEORY = TESTS.parents[1] / "paper" / "theory.py"
MUTANTS = [
    ("ROUNDING = 1e-12", "ROUNDING = 1e-3"),
    ("max(self.scale, abs(self.left), abs(self.right))", "max(1.0, abs(self.left), abs(self.right))"),
    ("self.left <= self.right + rounding", "self.left < self.right - rounding"),
    ("(self.true_ecpm[:, None] - self.true_ecpm).abs().sum()", "(self.true_ecpm[:, None] - self.true_ecpm).sum()"),
    ('self.true_ecpm if value == "truth" else self.teacher_ecpm', "self.true_ecpm"),
    ("ties, len(self) ** 2 * cap * (1 + sigma * cap)", "ties, 0.0"),
    ("(each.known_teacher - each.truth).square()", "(each.known_teacher - each.truth).abs()"),
    ("    if bid_cap < largest:", "    if bid_cap < 0:"),
    ("deciding[instance.true_ecpm.argmax()]", "deciding[instance.true_ecpm.argmin()]"),
    ("instance.best_welfare() - instance.welfare(), instance.loss", "instance.best_welfare(), instance.loss"),
    ("shown / shown.sum()", "shown"),
    ("(instance.welfare(slots), instance.best_welfare(slots)", "(instance.welfare(slots), instance.welfare(slots)"),
    ("(ecpm[:-1] > highest_below)[: len(slots)].all()", "(ecpm[:-1] > highest_below)[:1].all()"),
    ("(ecpm[:-1] > highest_below)", "(ecpm[:-1] >= highest_below)"),
    ("true_ecpm < worth", "true_ecpm <= worth"),
    ("[: len(slots) - 1]]", "[:0]]"),
    ("gaps.abs() / 2  # R(f)", "gaps.abs() / 4  # R(f)"),
    ("not (excess + excess.T).any()", "not excess.any()"),
    ("order = instance.ecpm[:, None] >= instance.ecpm", "order = instance.ecpm[:, None] > instance.ecpm"),
    ("instance.predicting(instance.truth).loss(), -instance.spread / 2", "-instance.spread / 2, -instance.spread / 2"),
    ("loss(), -instance.spread / 2", "loss(), -instance.spread"),
    ("right = instance.welfare() + instance.loss() / 2", "right = instance.welfare() + instance.loss()"),
    ('ties=tied(instance.ecpm)', "ties=False"),
    ('instance.sides(instance.loss(gap="positive"), right', "instance.sides(right, right"),
    ("= pointwise(instance.prediction, instance.truth) -", "= pointwise(instance.truth, instance.truth) -"),
    ("lam * margin, instance.loss() - true.loss() + lam * margin", "lam * margin, instance.loss() + lam * margin"),
    ("slope = 2 / cap if sigma", "slope = 1 / cap if sigma"),
    ("cap = bid_cap_of([instance], bid_cap)\n    slope", "cap = bid_cap_of([instance], None)\n    slope"),
    ("abs(instance.loss(surrogate=surrogate, sigma=slope) - instance.loss())", "0.0"),
    ("max(1.0, slope * cap - 1) * instance.spread / 2", "max(1.0, slope * cap) * instance.spread / 2"),
    ("-sigma * len(instance) ** 2", "-sigma * len(instance)"),
    ("right = (sigma * ads) ** 2 *", "right = (sigma * ads) *"),
    ("chances @ losses.square() - (chances @ losses).square()", "chances @ losses.square()"),
    ("p_i = (epsilon / 2) / p_j", "p_i = epsilon / p_j"),
    ("(b_i * y_i >= b_j * y_j) == in_order", "(b_i * y_i > b_j * y_j) == in_order"),
    ("return self.ads * (self.ads - 1)", "return self.ads**2"),
    ("self.pairs / 2 * self.bid_cap * max(1.0, sigma", "self.pairs * self.bid_cap * max(1.0, sigma"),
    ("self.pairs * sigma * self.bid_cap**2", "self.pairs * sigma * self.bid_cap"),
    ('abs(each.loss("teacher") - each.loss())', "0 * each.loss()"),
    ("(left, terms.pairs * terms.bid_cap * math.sqrt", "(left, 2 * terms.pairs * terms.bid_cap * math.sqrt"),
    ("near + terms.error(sigma)", "2 * near + terms.error(sigma)"),
    ("truth - min([truth, *others])", "truth - min([*others])"),
    ("for each in instances])\n    others = [", "for each in instances[:1]])\n    others = ["),
    ("each.welfare() + positive_hinge(each, sigma) for", "each.welfare() for"),
    ("reached + terms.slack(sigma) + terms.error(sigma)", "reached + terms.slack(sigma)"),
    ("hypotheses, epsilon=error)", "hypotheses, epsilon=2 * error)"),
    ("abs(max(-a, 0.0) - max(-b, 0.0))", "0.0"),
    ('welfare() + instance.loss(gap="positive"), "<="', 'welfare() + 2 * instance.loss(gap="positive"), "<="'),
    ("terms.sides(left, terms.error(sigma), sigma)", "terms.sides(left, 2 * terms.error(sigma), sigma)"),
    ("= max(1.0, sigma * cap - 1) * instance.spread / 2", "= max(1.0, sigma * cap - 1) * instance.spread"),
    ("far = BoundTerms(len(instance), cap, epsilon=0.0).slack(sigma)", "far = middle"),
    ("(left, error + terms.slack(sigma), sigma)", "(left, 2 * error + terms.slack(sigma), sigma)"),
    ("by_teacher = [Instance(each.bids, each.known_teacher", "by_teacher = [Instance(each.bids, each.truth"),
    ("math.sqrt(terms.ads * terms.epsilon)", "math.sqrt(terms.epsilon)"),
    ('sides(instance.loss(surrogate=surrogate, sigma=sigma), right, "=="', 'sides(right, right, "=="'),
    ("cap = bid_cap_of([instance], bid_cap)\n    left", "cap = bid_cap_of([instance], None)\n    left"),
    ("    if len(sizes) != 1:", "    if not sizes:"),
    ("len(self) ** 2 * cap * (1", "1e9 * cap * (1"),
    ("scale=self.ads**2 *", "scale=1e9 *"),
    ("scale = max(len(instances[0])", "scale = 1e9 * max(len(instances[0])"),
    ("scale=float(losses.abs()", "scale=1e9 * float(losses.abs()"),
    ("scale=float(losses.abs().max()) *", "scale=0.0 *"),
    ("scale=max(abs(a), abs(b))", "scale=1e9 * max(abs(a), abs(b))"),
    ('epsilon, "==", scale=1.0)', 'epsilon, "==", scale=1e9)'),
]  # fmt: skip


@pytest.mark.skipif("BIDWISE_LONG" not in os.environ, reason="takes minutes: make test-long")
@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_a_mutant_does_not_survive(tmp_path, number):
    before, after = MUTANTS[number]
    source = THEORY.read_text(encoding="utf-8")
    assert source.count(before) == 1
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "__init__.py").touch()
    (tmp_path / "paper" / "theory.py").write_text(source.replace(before, after), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(TESTS / "test_theory.py")]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1, f"{before} -> {after} survives"


def test_every_mutant_is_of_one_place():
    source = THEORY.read_text(encoding="utf-8")
    assert len(MUTANTS) >= 40
    assert [before for before, _ in MUTANTS if source.count(before) != 1] == []
