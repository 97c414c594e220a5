"""The page of an evaluation: what ``result.json`` holds, for people to look at. One file, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bidwise.report import evaluation_figures as figures
from bidwise.report.drawing import MARKERS, Look, drawn, looks, shortened, themed
from bidwise.report.html_tables import Pairs, Result, calibration_table, comparison_table, models_table, signed
from bidwise.report.whiskers import Row, whiskers

DRAWN = 8  # models in a figure of curves; more cannot be told apart
OPEN = 40  # rows of comparisons that are shown without a click
OUTCOMES = {  # outcome -> (sign, words): never told by colour alone
    "better": ("▲", "Better"),
    "worse": ("▼", "Worse"),
    "unclear": ("≈", "No measurable change"),
    "few": ("?", "Too few auctions to tell"),
    "same": ("=", "Same ads shown"),
    "alone": ("·", "Nothing to compare"),
}


def evaluation_page(result: Result) -> str:
    """The HTML of ``report.html``, from the plain dict of ``result.json``; numbers may be ``None`` anywhere.

    >>> import bidwise, json
    >>> table = {"a": [0.5, 0.1] * 9, "y": [1, 0] * 9, "bid": [1.0] * 18, "auction": sorted(2 * [*range(9)])}
    >>> found = bidwise.evaluate(table, ctr="a", click="y", bid="bid", auction="auction")
    >>> evaluation_page(json.loads(found.to_json())).startswith("<!doctype html>")
    True
    """
    parents = {model: numbers["calibrated_from"] for model, numbers in result["models"].items()}
    twins = {model: parent for model, parent in parents.items() if parent is not None}
    originals = [model for model in parents if model not in twins]
    pairs = pairs_of(result["comparisons"])
    style = looks(originals)
    style |= {twin: style[model] for twin, model in twins.items()}
    first = [by["welfare"] for (_, baseline), by in pairs.items() if baseline == result["baseline"]]
    return template("evaluation.html").render(
        result=result,
        originals=originals,
        verdicts=verdicts_of(result, twins),
        facts=_facts(result, [c for c in first if c["model"] not in twins] or first),
        **models_table(result),
        differences=differences_of(result, pairs, twins, style),
        calibrated=calibration_table(result, pairs, twins),
        curves=_curves(result, originals, twins, style),
        look=style,
        shapes=MARKERS,
        distributions=[_distribution(at, c, style[c["model"]], result["cuts"]) for at, c in enumerate(first)],
        comparisons=comparison_table(pairs),
        shown=len(result["comparisons"]) <= OPEN,
        options=_options(result["options"]),
    )


def template(name: str) -> Template:
    """A page's template: everything is escaped, and a name that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("bidwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["themed"] = themed
    return environment.get_template(name)


def pairs_of(comparisons: Iterable[Result]) -> Pairs:
    pairs: dict[tuple[str, str], dict[str, Result]] = {}
    for comparison in comparisons:
        pairs.setdefault((comparison["model"], comparison["baseline"]), {})[comparison["metric"]] = comparison
    return pairs


def verdicts_of(result: Result, twins: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    """The sentences under their outcome: those against the baseline, between others, and about calibration."""
    said: dict[str, list[dict[str, str]]] = {"baseline": [], "others": [], "calibration": []}
    for sentence in result["verdict"]:
        sign, words = OUTCOMES[sentence["outcome"]]
        against = "baseline" if sentence["baseline"] == result["baseline"] else "others"
        group = "calibration" if sentence["model"] in twins else against
        said[group].append({"kind": sentence["outcome"], "sign": sign, "words": words, "text": sentence["text"]})
    if not said["baseline"]:
        said["baseline"], said["calibration"] = said["calibration"], []
    return said


def _facts(result: Result, first: Sequence[Result]) -> list[tuple[str, str]]:
    """The counts under the verdict, as (number, what it counts)."""
    decisive = sorted({c["decisive_auctions"] for c in first})
    span = "–".join(f"{n:,}" for n in dict.fromkeys((*decisive[:1], *decisive[-1:])))
    return [
        (f"{result['auctions']:,}", "auctions"),
        (f"{result['ads']:,}", f"ads, {result['ads'] / max(result['auctions'], 1):.3g} in an auction"),
        *([(span, "decisive auctions, where the models show different ads")] if span else []),
        (f"{result['ads_left_out']:,}", "ads left out"),
        *(
            [("realised", "welfare and revenue: from logged clicks")]
            if result["welfare_of"] == "clicks"
            else [("expected", "welfare and revenue: under the true CTR")]
        ),
    ]


def differences_of(
    result: Result,
    pairs: Pairs,
    twins: Mapping[str, str],
    style: Mapping[str, Look],
    key: str = "",
) -> dict[str, Markup]:
    """Whiskers of welfare and of revenue, in per cent: models against the baseline, then calibrated twins."""
    groups = {
        f"against {result['baseline']}": [p for p in pairs if p[1] == result["baseline"] and p[0] not in twins],
        "calibrated, each against itself before": [p for p in pairs if p[1] == twins.get(p[0])],
        "calibrated, against the baseline calibrated": [p for p in pairs if p[1] in twins],
    }
    pictures = {}
    for metric in ("welfare", "revenue") if any(groups.values()) else ():
        rows = []
        for heading, members in groups.items():
            rows += [Row(heading)] if members else []
            rows += [_row(pairs[p][metric], style[p[0]].colour) for p in members]
        said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
        about = f"Difference of {metric} with 95 % intervals, in per cent of the baseline. {said}"
        panel = whiskers(metric, rows, f"difference of {metric}, % of the baseline", about)
        pictures[metric] = drawn(key + metric, panel)
    return pictures


def _row(comparison: Result, colour: str) -> Row:
    centre, low, high = (_times_100(comparison[f"relative{part}"]) for part in ("", "_ci_low", "_ci_high"))
    found = comparison["outcome"]
    if centre is None:
        words = "not defined: the baseline has none"
    elif low is None or high is None:
        words = f"{signed(centre)} %, no finite interval"
    else:
        words = f"{signed(centre)} % [{signed(low)}, {signed(high)}]" + (", too few" if found == "few" else "")
    return Row(comparison["model"], words, centre, low, high, found in ("better", "worse"), colour)


def _curves(
    result: Result, originals: Sequence[str], twins: Mapping[str, str], style: Mapping[str, Look]
) -> dict[str, Any]:
    """Calibration curves and ratios by bid, before and after calibration, of the models that there is room for."""
    models = result["models"]
    ranked = sorted(
        originals, key=lambda m: (m != result["baseline"], m != result["best"], -(models[m]["welfare"] or 0))
    )
    kept = [model for model in originals if model in ranked[:DRAWN]]
    groups = {"as predicted": kept, "after calibration": [twin for twin, model in twins.items() if model in kept]}
    pictures: list[dict[str, Any]] = []
    for key, draw, title, keys in (
        (
            "calibration_curve",
            figures.calibration_curves,
            "Observed against predicted CTR",
            ("predicted", "observed"),
        ),
        ("by_bid", figures.ratios_by_bid, "Predicted / observed clicks by bid", ("ratio",)),
    ):
        bins = {when: {name: models[name].get(key) or [] for name in names} for when, names in groups.items()}
        scale = figures.span((part for parts in bins.values() for own in parts.values() for part in own), *keys)
        for at, (when, parts) in enumerate(bins.items()):
            if any(part[keys[-1]] is not None for own in parts.values() for part in own):
                heading = f"{title}, {when}" if twins else title
                picture = draw(f"{key}{at}", parts, style, scale, f"{heading}: {', '.join(parts)}")
                pictures.append({"at": at, "title": heading, "picture": picture})
    pictures.sort(key=lambda figure: figure["at"])
    return {"models": kept, "left_out": [model for model in originals if model not in kept], "figures": pictures}


def _distribution(at: int, comparison: Result, look: Look, cuts: int) -> dict[str, Any]:
    """One comparison's histogram over auctions, and what it says in words."""
    spread = comparison["distribution"]
    counts, edges, same = spread["auctions"], spread["edges"], spread["unchanged"]
    moved = sum(counts)
    text = f"Welfare is the same in {same:,} of {same + moved:,} auctions" + (f" of {cuts} cuts" if cuts > 1 else "")
    title = f"{comparison['model']} against {comparison['baseline']}"
    if not moved or edges[0] >= edges[-1]:
        return {"title": title, "text": f"{text}.", "picture": None}
    lost = sum(n for n, end in zip(counts, edges[1:], strict=True) if end <= 0)
    won = sum(n for n, start in zip(counts, edges[:-1], strict=True) if start >= 0)
    near = moved - lost - won
    text += f", lower in {lost:,} and higher in {won:,}" + (f", barely changed in {near:,}." if near else ".")
    about = f"Distribution over auctions of the change of welfare, {title}. {text}"
    return {
        "title": title,
        "text": text,
        "picture": figures.distribution(f"spread{at}", edges, counts, look, about),
    }


def _options(options: Result) -> list[tuple[str, str]]:
    """The options that were set, as words."""
    said = {
        name: ", ".join(map(str, x)) if isinstance(x, list) else str(x) for name, x in options.items() if x is not None
    }
    return [(name.replace("_", " "), shortened(text, 160)) for name, text in said.items()]


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share
