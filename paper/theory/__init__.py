"""The paper's statements on finite instances: each function returns both sides of one of them.

An :class:`Instance` is one auction whose true CTR is known. A statement is a function of it that returns
:class:`Sides`, two numbers and the relation claimed between them: to be checked, plotted or broken.
Statements about expectations take a list of instances, each as likely as the others.

* ``ranking_bounds``: Sections 2 and 3, welfare and the losses on clicks
* ``teacher``: Section 4, the losses on a teacher's CTR, and what they say about a trained model
"""

from paper.theory.instance import Instance, Sides, squared_error
from paper.theory.ranking_bounds import (
    click_order_agreement,
    composite_margin,
    covariance_form,
    least_risk,
    misleading_pair,
    mistakes_identity,
    order_agreement,
    ranking_minimises_risk,
    risk_bounds_welfare,
    single_slot_reduction,
    slot_order,
    surrogate_error,
    truth_is_optimal,
    welfare_lost,
)
from paper.theory.teacher import (
    calibration,
    hinge_mistakes_error,
    mistakes_bound_welfare,
    positive_parts,
    teacher_bounds_welfare,
    teacher_calibration,
    teacher_hinge_error,
    teacher_mistakes_error,
    teacher_risk_error,
    welfare_certificate,
)

__all__ = [
    "Instance",
    "Sides",
    "calibration",
    "click_order_agreement",
    "composite_margin",
    "covariance_form",
    "hinge_mistakes_error",
    "least_risk",
    "misleading_pair",
    "mistakes_bound_welfare",
    "mistakes_identity",
    "order_agreement",
    "positive_parts",
    "ranking_minimises_risk",
    "risk_bounds_welfare",
    "single_slot_reduction",
    "slot_order",
    "squared_error",
    "surrogate_error",
    "teacher_bounds_welfare",
    "teacher_calibration",
    "teacher_hinge_error",
    "teacher_mistakes_error",
    "teacher_risk_error",
    "truth_is_optimal",
    "welfare_certificate",
    "welfare_lost",
]
