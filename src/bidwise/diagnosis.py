"""`diagnose`: how much ranking signal a batch contains, and why a loss cannot use it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bidwise.checks import check_ads, check_logits, check_offsets, look_like_ctr
from bidwise.losses.api import cross_entropy
from bidwise.losses.definition import ctr_of
from bidwise.losses.named import WelfareLoss, single_loss
from bidwise.segments import Auctions

SATURATED = 1e-3  # ctr (1 - ctr) below which an ad hardly moves: |logit| above 6.9
_FEW = 0.05  # of the pairs
QUIET, LOUD = 0.05, 0.8  # bounds of the rank term's share of the gradient

# each count: its name, the share that triggers advice, the advice
COUNTS = {
    "non_finite_logits": ("logits not finite", 0.0, "Lower the learning rate; look for NaN in the features."),
    "ctr_as_logits": ("logits that look like CTR", 0.0, "Pass torch.logit(ctr): the loss takes the sigmoid."),
    "non_finite_bids": ("bids not finite", 0.0, "Drop these ads or repair their bids: look for NaN and overflow."),
    "non_positive_bids": ("bids not above 0", 0.0, "Drop these ads or repair their bids: a bid is above 0."),
    "clicks_out_of_range": ("clicks outside [0, 1]", 0.0, "Make clicks 0 or 1: look for NaN and for counts."),
    "teacher_out_of_range": ("teacher outside [0, 1]", 0.0, "Pass the teacher's CTR, not its logits; look for NaN."),
    "left_out": ("ads dropped", 0.0, "Repair the rows above: no number below counts these ads."),
    "empty_auctions": ("auctions without ads", 0.5, "Check offsets: most auctions contain no ad."),
    "single_ad_auctions": ("auctions of one ad", 0.5, "Check offsets: without a rival, only the log loss learns."),
    "no_click_auctions": ("auctions without a click", 0.5, "Make auctions larger or take a teacher: all values are 0."),
    "all_click_auctions": ("auctions all clicked", 0.5, "Check that ads without a click were not dropped."),
    "ecpm_ties": ("ties in eCPM", 0.1, "Look for repeated rows, a constant model or saturated CTRs."),
    "saturated": ("ctr (1 - ctr) < 0.001", 0.1, "Fine if clicks are so rare; else lower the learning rate."),
}


@dataclass(frozen=True)
class Part:
    """``count`` out of ``whole``.

    >>> print(Part(3, 1200, "ads"))
    3 of 1,200 ads (0.25 %)
    """

    count: int
    whole: int
    unit: str

    @property
    def share(self) -> float:
        """count / whole, 0 if both are 0."""
        return self.count / self.whole if self.whole else 0.0

    def __str__(self) -> str:
        return f"{self.count:,} of {self.whole:,} {self.unit} ({100 * self.share:.3g} %)"


class Finding(NamedTuple):
    """A line of the diagnosis; ``alarm`` if action is needed, with ``advice``."""

    name: str
    found: str
    alarm: bool
    advice: str


@dataclass(frozen=True)
class RankTerm:
    """The rank term of a loss, compared with the log loss of the same ads."""

    effective_pairs: Part  # different in value and in eCPM
    loss: float
    gradient: float  # Euclidean norm, with respect to the logits
    gradient_ratio: float  # to the log loss
    lam: float

    @property
    def gradient_share(self) -> float:
        """The rank term's share of the two gradient norms when the log loss counts lam times."""
        return 1 / (1 + self.lam / self.gradient_ratio) if self.gradient_ratio else 0.0

    def findings(self) -> Iterator[Finding]:
        """Lines of the table, each with advice for its likeliest cause."""
        if not (math.isfinite(self.loss) and math.isfinite(self.gradient)):
            todo = 'Divide the bids by their mean, as unit="batch" does: the rank term overflows.'
            yield Finding("rank term", f"{self.loss:.3g}", True, todo)
            return
        effective, share = self.effective_pairs, self.gradient_share
        if effective.whole == 0:
            todo = "No pairs to rank: put ads that compete into one auction."
        else:
            todo = "Most pairs tie and teach little: take a teacher with values that rarely tie, or see ties in eCPM."
        yield _finding("effective pairs", effective, effective.share < _FEW, todo)
        found = f"{self.gradient_ratio:.3g} (with lam = {self.lam:g}: {100 * share:.3g} % of both)"
        todo = "Raise lam" if share > LOUD else "Lower lam"
        todo += f": lam = {self.gradient_ratio:.2g} gives log loss and rank term an equal say."
        alarm = self.gradient > 0 and not QUIET <= share <= LOUD
        yield _finding("rank / log loss gradient", found, alarm, todo)


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`: numbers, ``findings`` with advice, and a table when printed.

    Ads with values that no loss can take are counted in ``left_out``, and in no other number.
    """

    ads: int
    auctions: int
    pairs: int  # unordered, inside auctions
    counts: dict[str, Part]  # by the names of COUNTS
    log_loss: float
    rank: RankTerm | None = None  # None for a loss without one

    @property
    def findings(self) -> list[Finding]:
        """Every finding, in the order of the table."""
        rows = ((self.counts[key], *row) for key, row in COUNTS.items() if key in self.counts)
        counted = [_finding(name, part, part.share > limit, todo) for part, name, limit, todo in rows]
        return [*counted, *(self.rank.findings() if self.rank else ())]

    @property
    def alarms(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.alarm]

    def __str__(self) -> str:
        table = [Finding("finding", "number", False, "advice"), *self.findings]
        name, number = max(len(row.name) for row in table), max(len(row.found) for row in table)
        totals = f"ads: {self.ads:,}, auctions: {self.auctions:,}, pairs: {self.pairs:,}"
        lines = [f"{totals}, findings that ask for action (marked !): {len(self.alarms)}"]
        for row in table:
            start = f"{'!' if row.alarm else ' '} {row.name:{name}}  {row.found:{number}}  "
            lines += textwrap.wrap(
                row.advice, len(start) + 60, initial_indent=start, subsequent_indent=" " * len(start)
            )
        return "\n".join(lines)


def diagnose(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None = None,
    *,
    teacher: Tensor | None = None,
    loss: str | nn.Module = "log_plus",
) -> Diagnosis:
    """Why a loss learns, or does not, from these ads: a table to print, with advice.

    Counts the pairs that can teach something, ties, auctions without pairs or clicks, saturated sigmoids; compares the
    rank term of the loss with its log loss by their gradients. Values that a loss would reject are counted, not raised,
    and their ads are ignored in all other numbers. Computed in float64 on the CPU, by sorting and without n x n pairs.

    Args:
        logits: model output ``(ads,)``; leading dimensions are not taken.
        clicks: 0 or 1 per ad, or soft labels between.
        bids: cost-per-click bids.
        offsets: bounds of the auctions, int64 ``(auctions + 1,)``; ``None``: all ads are one auction.
        teacher: another model's CTR, for losses that need one.
        loss: the loss you train with, a name in :data:`bidwise.LOSSES` or a loss of bidwise.

    >>> clicks, bids = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 2.0, 0.0, 3.0])
    >>> logits, offsets, loss = torch.tensor([0.5, -1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 4, 5]), WelfareLoss(lam=0.1)
    >>> found = diagnose(logits, clicks, bids, offsets, loss=loss)
    >>> print(found.rank.effective_pairs)  # among ads 0, 1 and 2: ad 3 has no bid, ad 4 no rival
    2 of 3 pairs (66.7 %)
    >>> for finding in found.alarms:
    ...     print(finding.name, "|", finding.found, "|", finding.advice)
    bids not above 0 | 1 of 5 ads (20 %) | Drop these ads or repair their bids: a bid is above 0.
    ads dropped | 1 of 5 ads (20 %) | Repair the rows above: no number below counts these ads.
    """
    logits = check_logits(logits)
    if logits.dim() != 1:
        raise ValueError(f"logits must have shape (ads,), found {tuple(logits.shape)}")
    columns = {"clicks": clicks, "bids": bids} | ({} if teacher is None else {"teacher": teacher})
    z, y, b, *p = (x.detach().cpu().double() for x in (logits, *(check_ads(k, x, logits) for k, x in columns.items())))
    if offsets is not None:
        offsets = check_offsets(offsets, len(logits), logits.device, values=True).cpu()
    with torch.inference_mode(False), torch.enable_grad():  # gradients are measured here, wherever this is called
        return _diagnosis(z, y, b, p[0] if p else None, Auctions.of(z, offsets), single_loss(loss))


def _diagnosis(z: Tensor, y: Tensor, b: Tensor, p: Tensor | None, auctions: Auctions, loss: nn.Module) -> Diagnosis:
    sick = {
        "non_finite_logits": ~z.isfinite(),
        "non_finite_bids": ~b.isfinite(),
        "non_positive_bids": b.isfinite() & (b <= 0),
        "clicks_out_of_range": ~((y >= 0) & (y <= 1)),  # NaN is outside
    }
    if p is not None:
        sick["teacher_out_of_range"] = ~((p >= 0) & (p <= 1))
    out = torch.stack(list(sick.values())).any(0)
    z, y, b, auction = (x[~out] for x in (z, y, b, auctions.of_ad))
    p = None if p is None else p[~out]
    sizes = torch.bincount(auction, minlength=auctions.count)
    bounds = None if auctions.count == 1 else Auctions.of_sizes(sizes).offsets
    clicked, not_clicked = (torch.bincount(auction[some], minlength=auctions.count) for some in (y > 0, y < 1))
    ctr = ctr_of(z)
    s = b * ctr
    same_ecpm = groups(auction, s)
    pairs, ecpm_ties = pairs_inside(auction), pairs_inside(same_ecpm)
    entropy, log_slope = _with_gradient(cross_entropy, z, y, None, "mean")
    counts = {name: _part(rows, "ads") for name, rows in sick.items()}
    counts["ctr_as_logits"] = Part(len(z) if look_like_ctr(z, y) else 0, len(z), "ads")
    counts |= {
        "left_out": _part(out, "ads"),
        "empty_auctions": _part(sizes == 0, "auctions"),
        "single_ad_auctions": _part(sizes == 1, "auctions"),
        "no_click_auctions": _part(clicked[sizes > 1] == 0, "with rivals"),
        "all_click_auctions": _part(not_clicked[sizes > 1] == 0, "with rivals"),
        "ecpm_ties": Part(ecpm_ties, pairs, "pairs"),
        "saturated": _part(ctr * torch.sigmoid(-z) < SATURATED, "ads"),
    }
    if not isinstance(loss, WelfareLoss):
        return Diagnosis(len(out), auctions.count, pairs, counts, entropy)
    options = loss.options
    same_value = groups(auction, b * (y if p is None or options.value == "clicks" else p))
    value_ties, ties_in_both = pairs_inside(same_value), pairs_inside(groups(same_value, same_ecpm))
    found, slope = _with_gradient(loss.with_options(lam=0.0, validate=False), z, y, b, bounds, p)
    gradient, beside = slope.norm().item(), log_slope.norm().item()
    if options.reduction == "sum":
        beside *= len(z)
    rank = RankTerm(
        effective_pairs=Part(pairs - value_ties - ecpm_ties + ties_in_both, pairs, "pairs"),
        loss=found,
        gradient=gradient,
        gradient_ratio=gradient / beside if beside else math.inf if gradient else 0.0,
        lam=float(loss.lam),
    )
    return Diagnosis(len(out), auctions.count, pairs, counts, entropy, rank)


def groups(within: Tensor, key: Tensor) -> Tensor:
    """Cuts groups by a key: ads of equal group and equal key get the same number, from 0 up.

    >>> groups(torch.tensor([0, 0, 0, 1]), torch.tensor([0.5, 0.5, 2.0, 0.5]))
    tensor([0, 0, 1, 2])
    """
    levels, level = torch.unique(key, return_inverse=True)
    numbers: Tensor = torch.unique(within * len(levels) + level, return_inverse=True)[1]
    return numbers


def pairs_inside(group: Tensor) -> int:
    """Unordered pairs of ads with the same number: a group of n has n (n - 1) / 2."""
    sizes = torch.bincount(group)
    return int((sizes * (sizes - 1) // 2).sum())


def _finding(name: str, found: object, alarm: bool, todo: str) -> Finding:
    return Finding(name, str(found), alarm, todo if alarm else "OK.")


def _part(rows: Tensor, unit: str) -> Part:
    return Part(int(rows.sum()), len(rows), unit)


def _with_gradient(loss: Callable[..., Tensor], logits: Tensor, *others: Any, **options: Any) -> tuple[float, Tensor]:
    logits = logits.clone().requires_grad_()
    found = loss(logits, *others, **options)
    return found.item(), torch.autograd.grad(found, logits)[0]
