"""The findings of the Criteo experiment in words: verdict, notes, and the summary for the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bidwise.paper.criteo.trial import SETTINGS
from bidwise.report.criteo.findings import (
    PAPERS,
    chosen_on,
    estimate,
    finding,
    known,
    model_called,
    paper_gain,
    percentage,
    protocols_of,
    reference,
    share,
    told,
)
from bidwise.report.text_tables import aligned

Result = Mapping[str, Any]
Losses = Mapping[str, Result]
TITLES = {
    "converged": "trained to the end with λ = {lam:g}, the paper's protocol",
    "tuned": "every loss at its own best epoch and λ by validation welfare",
}
MARKS = {"better": "▲", "worse": "▼", "unclear": " ", "none": " "}
PAPER_REPEATS = 10
FEW_AUCTIONS = 100
HARM = 0.99  # of the welfare without early stopping: more than chance takes


def criteo_verdict(result: Result) -> list[str]:
    """The first sentence is the headline."""
    models = {model_called(name): protocols_of(model) for name, model in result["models"].items()}
    sentences = _few_auctions(result)
    for protocol in ("tuned", "converged"):
        run = {name: protocols[protocol] for name, protocols in models.items() if protocol in protocols}
        sentences += [_against_log_loss(result, run, protocol)] if run else []
    sentences += [
        *_tuning_words(models),
        *_paper_words(result),
        *_choice_words(result, models),
        *_clicks_words(result, models),
    ]
    return [*sentences, *_cost_words(result), *_few(result)]


def _against_log_loss(result: Result, models: Mapping[str, Losses], protocol: str) -> str:
    """How many losses are above and below log loss with each model, and the highest."""
    welfare = "expected welfare" if result["data"]["known_ctr"] else "realised welfare"
    start = "With every loss tuned" if protocol == "tuned" else f"Trained to the end, as in the paper{_but(result)}"
    others = {name: {loss: losses[loss] for loss in losses if loss != "log_loss"} for name, losses in models.items()}
    if not any(others.values()):
        return f"{start}: log loss alone was trained, so there is nothing to compare."
    above, below = (
        {name: [loss for loss in of if finding(of[loss]["difference"]) == kind] for name, of in others.items()}
        for kind in ("better", "worse")
    )
    if any(above.values()):
        parts = [
            f"{_of(losses, others[name])} losses with {name} (the highest is {_highest(models[name], losses)})"
            if losses
            else f"none with {name}"
            for name, losses in above.items()
        ]
        words = f"{' and '.join(parts)} reach measurably more {welfare} than log loss"
    else:
        highest = {name: _highest(losses, others[name]) for name, losses in models.items()}
        words = f"no loss reaches measurably more {welfare} than log loss with {' or '.join(models)}: the highest is "
        words += " and ".join(highest.values() if len(highest) == 1 else (f"{highest[n]} with {n}" for n in highest))
    if any(below.values()):
        worse = [f"{_of(losses, others[name])} with {name}" for name, losses in below.items() if losses]
        words += f"; measurably less: {', '.join(worse)}"
    return f"{start}, {words}."


def _but(result: Result) -> str:
    """What is not as in the paper."""
    size = other_batch_size(result)
    return f" but for batches of {size:,}" if size else ""


def other_batch_size(result: Result) -> int | None:
    """Ads of a batch, where a model has more or fewer than in the paper."""
    size: int | None = result["config"].get("batch_size")
    return size if size and {SETTINGS[model].batch_size for model in result["models"]} != {size} else None


def _of(some: Sequence[str], losses: Collection[str]) -> str:
    return f"{'all' if len(some) == len(losses) > 1 else len(some)} of {len(losses)}"


def _percent(losses: Losses, name: str) -> str:
    difference = losses[name]["difference"]
    return told(difference, reference(losses, difference))


def _highest(losses: Losses, some: Iterable[str]) -> str:
    best = max(some, key=lambda name: estimate(losses[name]["difference"]) or 0.0)
    return f"{best} at {_percent(losses, best)}"


def _tuning_words(models: Mapping[str, Mapping[str, Losses]]) -> list[str]:
    """Where early stopping by validation welfare did harm."""
    parts = []
    for name, protocols in models.items():
        found = [(protocols.get(protocol) or {}).get("log_loss") for protocol in ("tuned", "converged")]
        tuned, trained = (known((each or {}).get("expected_welfare")) for each in found)
        if tuned is not None and trained is not None and tuned < HARM * trained:
            parts.append(f"{percentage(tuned / trained - 1)} with {name}")
    if not parts:
        return []
    return [
        f"Log loss at its best epoch by validation welfare is below log loss trained to the end, {', '.join(parts)}: "
        "there were too few validation auctions to choose by, and tuned means little here."
    ]


def _paper_words(result: Result) -> list[str]:
    """The gains that the paper reports beside ours, in its protocol if that was run."""
    found = []
    for name, model in result["models"].items():
        protocols, paper = protocols_of(model), (result.get("paper") or {}).get(name) or {}
        protocol = "converged" if "converged" in protocols else next(iter(protocols), "")
        losses = protocols.get(protocol) or {}
        for loss in PAPERS:
            gain = paper_gain(paper, loss)
            if gain is not None and loss in losses:
                found.append((model_called(name), loss, gain, losses, protocol))
    if not found:
        return []
    kinds = [finding(losses[loss]["difference"]) for _, loss, _, losses, _ in found]
    same = all(entry[-1] == "converged" for entry in found)
    how = f"trained in the same way{_but(result)}" if same else "tuned"
    parts = [
        f"{model} {loss} {percentage(gain)} there, {_percent(losses, loss)} here"
        for model, loss, (gain, _), losses, _ in found
    ]
    better, worse = kinds.count("better"), kinds.count("worse")
    reported = "1 gain" if len(found) == 1 else f"{len(found)} gains"
    return [
        f"Of {reported} in welfare that the paper reports, {better} {_are(better, 'gain')} here too ({how}), {worse} "
        f"{_are(worse, 'loss')} here, {len(found) - better - worse} cannot be told: {'; '.join(parts)}."
    ]


def _are(count: int, word: str) -> str:
    return f"is a {word}" if count == 1 else f"are {word}{'es' if word.endswith('s') else 's'}"


def _choice_words(result: Result, models: Mapping[str, Mapping[str, Losses]]) -> list[str]:
    """What remains when the usual metric chooses epoch and lam."""
    parts = []
    for name, protocols in models.items():
        losses = protocols.get("tuned") or {}
        chosen = {loss: entry["by_log_loss"] for loss, entry in losses.items() if entry.get("by_log_loss")}
        if len(chosen) > 1 and "log_loss" in chosen:
            above = [loss for loss in chosen if finding(chosen[loss].get("difference")) == "better"]
            listed = ", ".join(f"{loss} {_percent(chosen, loss)}" for loss in above)
            parts.append(f"with {name} {listed or 'none'}")
    if not parts:
        return []
    what = "The epoch" if result["config"].get("lam_repeats") else "Epoch and λ"
    return [
        f"{what} chosen by validation log loss instead of welfare, measurably above log loss are: {'; '.join(parts)}."
    ]


def _clicks_words(result: Result, models: Mapping[str, Mapping[str, Losses]]) -> list[str]:
    """How many differences clicks show, where the true CTR is known."""
    if not result["data"]["known_ctr"]:
        return []
    entries = [
        entry
        for protocols in models.values()
        for losses in protocols.values()
        for entry in losses.values()
        if estimate(entry["difference"]) is not None
    ]
    expected, realised = (
        sum(finding(entry.get(key)) in ("better", "worse") for entry in entries)
        for key in ("difference", "difference_realised")
    )
    if not entries:
        return []
    return [
        f"By the true CTR {expected} of {len(entries)} differences to log loss can be told; by clicks, which is all "
        f"that a platform has, {realised}."
    ]


def _cost_words(result: Result) -> list[str]:
    """How much longer the slowest loss takes, beside what the paper reports."""
    parts = []
    for name, model in result["models"].items():
        ratios = {loss: entry["relative"] for loss, entry in (model.get("runtime") or {}).items() if loss != "log_loss"}
        if not ratios:
            continue
        slowest = max(ratios, key=lambda loss: ratios[loss])
        paper = (result.get("paper") or {}).get(name) or {}
        seconds = {loss: entry["seconds"][0] for loss, entry in paper.items() if entry.get("seconds")}
        most = max(seconds.values()) / seconds["log_loss"] - 1 if "log_loss" in seconds else None
        there = "" if most is None else f" (the paper: {100 * most:+.1f} %)"
        parts.append(f"{100 * (ratios[slowest] - 1):+.1f} % with {model_called(name)}, {slowest}{there}")
    return [f"Time of an epoch against log loss, of the slowest loss: {'; '.join(parts)}."] if parts else []


def _few_auctions(result: Result) -> list[str]:
    auctions = result["data"]["auctions"]
    if auctions >= FEW_AUCTIONS:
        return []
    return [f"{auctions} test auctions are a try, not a measurement: use {FEW_AUCTIONS} or more."]


def _few(result: Result) -> list[str]:
    repeats = result["config"]["repeats"]
    if repeats == 1:
        return ["One repeat has no interval over repeats, so no difference counts as measured."]
    if repeats < PAPER_REPEATS:
        return [f"{repeats} repeats tell only large differences; the paper has {PAPER_REPEATS}."]
    return []


def criteo_notes(result: Result) -> list[str]:
    """What a reader should know before quoting a number."""
    config, data = result["config"], result["data"]
    found = [
        "A difference counts as measured only where both of its 95 % intervals leave out 0 on the same side: the one "
        "over repeats, which tells of chance in training (initial weights, order of the ads), and the one over test "
        "auctions, which tells of chance in the ads that met. Each interval stands for itself: of many losses some "
        "will seem better or worse by chance.",
    ]
    if data["known_ctr"]:
        found.append(
            f"The ads are simulated{_rows(config)}, with a known CTR. "
            "Levels of welfare, AUC and log loss are therefore not comparable with the paper's; signs of differences "
            "are. Expected welfare takes the true CTR of the winner where realised welfare takes its click, and varies "
            "less by chance."
        )
    protocols = {name for model in result["models"].values() for name in protocols_of(model)}
    if "tuned" in protocols:
        lams = ", ".join(f"{lam:g}" for lam in config.get("lams") or ())
        tries = len(config.get("lams") or ())
        once = f", {chosen_on(config)} and used in all" if config.get("lam_repeats") else ""
        found.append(
            "Tuned: each loss has its own epoch in each repeat, and its own λ"
            + (f" out of {lams}" if lams else "")
            + f" where it has one{once}, by clicked welfare on validation auctions."
            + (f" Losses with λ thus have {tries} tries where the others have one." if tries > 1 else "")
            + ("" if once else " The curves show the λ that was chosen most often.")
        )
    weak = [
        f"{model_called(name)} {loss} {gain / error:.1f}"
        for name, paper in (result.get("paper") or {}).items()
        for loss in PAPERS
        for gain, error in [paper_gain(paper, loss) or (0.0, 0.0)]
        if error and gain < 2 * error
    ]
    if weak:
        found.append(
            f"Some gains of the paper are small against its own standard errors, in units of these: {', '.join(weak)} "
            "(taking its two means as independent)."
        )
    if "dcn" in result["models"]:
        found.append(
            "The paper trains DCN for 150,000 steps of 512 ads, which are 2.1 epochs of its data; here it is the "
            "epochs that are the same."
        )
    if other_batch_size(result):
        found.append(
            f"Batches have {config['batch_size']:,} ads where the paper's have 256 (DeepFM) or 512 (DCN). In training "
            "a batch is an auction: auctions are larger, and steps are fewer."
        )
    if config.get("precision", "float32") != "float32":
        found.append("Products of matrices are in TF32, all else in float32 (--precision mixed).")
    if config.get("embeddings") == "lazy":
        found.append(
            "Adam moves only the embeddings that a batch looked up (--embeddings lazy); dense updates go on moving "
            "all of them."
        )
    if data.get("integers") == "printed":
        found.append(
            "Integers became categories by the map that the paper prints, under which 3 falls together with 1, and "
            "4 to 7 with 2."
        )
    return found


def _rows(config: Result) -> str:
    return f", {config['rows']:,} rows on the device" if config.get("rows") else ""


def criteo_summary(result: Result) -> str:
    """A table for every model and protocol and the verdict; differences are in per cent of log loss's welfare."""
    expected = result["data"]["known_ctr"]
    lines = [_ads(result), ""]
    for name, model in result["models"].items():
        for protocol, losses in protocols_of(model).items():
            title = _title(protocol, result["config"])
            lines += [f"{model_called(name)}, {protocol}: {title}", ""]
            heads = ["loss", "welfare", "− log loss, % [95 %]", "AUC loss"]
            tuned = any(entry.get("lam") for entry in losses.values())
            rows = [_row(loss, losses, expected, tuned) for loss in losses]
            lines += [*aligned([*heads, "log loss", *(["λ"] if tuned else [])], rows), ""]
    lines += [
        "▲ above log loss, ▼ below it, where the intervals over repeats and over test auctions both leave out 0.",
        f"Welfare is {'expected, by the true CTR' if expected else 'realised, by clicks'}; differences are in % of the "
        "log loss's, each with the wider of its two intervals.",
        "",
    ]
    return "\n".join([*lines, *result["verdict"]])


def _ads(result: Result) -> str:
    """What was trained and tested on."""
    data, config = result["data"], result["config"]
    simulated = "simulated ads, their CTR known, " if data["known_ctr"] else "ads "
    repeats = "1 repeat" if config["repeats"] == 1 else f"{config['repeats']} repeats"
    return (
        f"{data['splits']['train']:,} {simulated}to train on; {data['auctions']:,} test auctions of "
        f"{config['auction_size']}, cut {config['cuts']} times over; {repeats}"
    )


def _title(protocol: str, config: Result) -> str:
    title = TITLES.get(protocol, protocol).format(**{"lam": 3.0, **config})
    if protocol == "converged" and config.get("batch_size"):
        title += f" but for batches of {config['batch_size']:,}"
    if protocol == "tuned" and config.get("lam_repeats"):
        title += f" (λ {chosen_on(config)})"
    return title


def _row(name: str, losses: Losses, expected: bool, tuned: bool) -> list[str]:
    entry = losses[name]
    base = reference(losses, entry["difference"])
    difference = told(entry["difference"], base) if name != "log_loss" else ""
    if difference and share(estimate(entry["difference"]), base) is None:
        difference = "?"
    lams = list(dict.fromkeys(f"{lam:g}" for lam in entry.get("lam") or ()))
    return [
        f"{MARKS[finding(entry['difference'])]} {name}",
        f"{entry['expected_welfare' if expected else 'welfare']:.4f}",
        difference.replace(" %", ""),
        f"{entry['auc_loss']:.4f}",
        f"{entry['log_loss']:.4f}",
        *([" ".join(lams)] if tuned else []),
    ]
