"""The numbers of the Criteo experiment: what was selected, means over repeats, paired differences to the log loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bidwise.paper.criteo_trial import Lams, Measured, Trained, Trial, trial_of
from bidwise.study.compare import Difference, mean_and_error, paired
from bidwise.study.criteo_results import (
    CONVERGED,
    TUNED,
    AtLam,
    CriteoConfig,
    Curve,
    EachRepeat,
    Levels,
    LossResult,
    Protocol,
    Selected,
)
from bidwise.study.recipe import BASELINE, best, has_lam

SELECTIONS = {"by_welfare": "welfare", "by_truth": "expected_welfare"}  # beside validation log loss


@dataclass(frozen=True)
class Numbers:
    """What the trials of a run found about one model."""

    config: CriteoConfig
    trained: Mapping[Trial, Trained]
    model: str

    def of_trial(self, repeat: int, loss: str, lam: float | None, protocol: str = "tuned") -> Trained:
        return self.trained[trial_of(self.config, self.model, repeat, loss, lam, protocol)]

    def best_lam(self, loss: str) -> float:
        """The lam with the lowest validation log loss, summed over the repeats that tried all."""

        def value(lam: float) -> float:
            return sum(each.value for each in self._at(loss, lam))

        return best(self.config.lams, TUNED, value) or self.config.lam

    def chosen(self, loss: str, protocol: str, selection: str) -> list[Measured]:
        """For each repeat the model that a selection takes, of all epochs and lams; ``last`` takes the end.

        With ``lam_repeats`` lam is already selected, and a selection takes the epoch alone.
        """
        lams = self.config.lams_of(loss, protocol)
        if self.config.lam_repeats is not None and len(lams) > 1:
            lams = (self.best_lam(loss),)
        tried = [
            [self.of_trial(repeat, loss, lam, protocol).selections[selection] for lam in lams]
            for repeat in range(self.config.repeats)
        ]
        if selection == CONVERGED:
            return [each[0] for each in tried]
        return [best(each, selection, lambda tested: tested.value) or each[0] for each in tried]

    def protocol(self, name: str) -> Protocol:
        """The numbers of every loss; in the tuned protocol also as other selections have them."""
        selections = {"": CONVERGED} if name == "converged" else {"": TUNED, **SELECTIONS}
        bases = {
            by: self.chosen(BASELINE, name, selection) for by, selection in selections.items() if self._has(selection)
        }
        losses = {}
        for loss in self.config.losses:
            tested = {by: self.chosen(loss, name, selections[by]) for by in bases}
            numbers: dict[str, Any] = {
                by: Selected(**self._selected(tested[by], bases[by], loss)) for by in bases if by
            }
            for key in ("revenue", "calibration_error", "predicted_over_observed"):
                numbers[key] = float(np.mean([getattr(each, key) for each in tested[""]]))
            realised = [[each.welfare.numpy() for each in models] for models in (tested[""], bases[""])]
            losses[loss] = LossResult(
                **self._selected(tested[""], bases[""], loss),
                difference_realised=None if loss == BASELINE else paired(*realised),
                repeats=EachRepeat(**_each_repeat(tested[""])),
                **numbers,
            )
        return Protocol(losses)

    def _has(self, selection: str) -> bool:
        return selection in self.of_trial(0, BASELINE, None).selections

    def _selected(self, tested: Sequence[Measured], base: Sequence[Measured], loss: str) -> dict[str, Any]:
        """The fields of :class:`Selected`."""
        tuned = not np.isnan(tested[0].epoch)

        def difference(values: Callable[[Measured], Tensor]) -> Difference | None:
            return None if loss == BASELINE else paired(*([values(m).numpy() for m in each] for each in (tested, base)))

        return {
            **_levels(tested),
            "difference": difference(lambda measured: measured.main_welfare),
            "calibrated": difference(lambda measured: measured.calibrated),
            "epoch": float(np.mean([each.epoch for each in tested])),
            "lam": tuple(each.lam for each in tested if tuned and each.lam is not None),
        }

    def grid(self) -> dict[str, tuple[AtLam, ...]]:
        """Test numbers by lam, each at its own best epoch, over the repeats that tried every lam."""
        return {
            loss: tuple(AtLam(lam=lam, **_levels(self._at(loss, lam))) for lam in self.config.lams)
            for loss in filter(has_lam, self.config.losses)
        }

    def grid_log_loss(self) -> Levels:
        """The tuned log loss over the repeats of the grid."""
        return Levels(**_levels(self._at(BASELINE, None)))

    def _at(self, loss: str, lam: float | None) -> list[Measured]:
        return [self.of_trial(repeat, loss, lam).selections[TUNED] for repeat in self.config.trying_lams]

    def curves(self) -> dict[str, Curve]:
        """Validation metrics over the epochs, at the lam that was selected most often."""
        curves = {}
        for loss in self.config.losses:
            lam = Counter(each.lam for each in self.chosen(loss, "tuned", TUNED)).most_common(1)[0][0]
            seen = [self.of_trial(repeat, loss, lam).curve for repeat in range(self.config.repeats)]
            names = [name for name in ("welfare", "log_loss", "expected_welfare") if name in seen[0]]
            means = {name: tuple(np.mean([curve[name] for curve in seen], axis=0).tolist()) for name in names}
            curves[loss] = Curve(epoch=tuple(seen[0]["epoch"]), lam=lam, **means)
        return curves


def selected_lams(config: CriteoConfig, trained: Mapping[Trial, Trained]) -> Lams:
    """For each model and loss the lam that is used in all repeats."""
    numbers = {model: Numbers(config, trained, model) for model in config.models}
    return {(m, loss): of.best_lam(loss) for m, of in numbers.items() for loss in filter(has_lam, config.losses)}


def _each_repeat(tested: Sequence[Measured]) -> dict[str, tuple[float, ...]]:
    return {
        "welfare": tuple(float(each.welfare.mean()) for each in tested),
        "expected_welfare": tuple(float(x.mean()) for each in tested if (x := each.expected_welfare) is not None),
        "auc": tuple(each.auc for each in tested),
        "log_loss": tuple(each.log_loss for each in tested),
    }


def _levels(tested: Sequence[Measured]) -> dict[str, float]:
    """The fields of :class:`Levels`: means over repeats and their standard errors, where there are any."""
    levels = {}
    for name, values in _each_repeat(tested).items():
        if values:
            levels[name], levels[f"{name}_error"] = mean_and_error(values)
    return levels
