"""The Criteo experiment as a page tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidwise.report.criteo.criteo_figures import bids, curves, lam_grid, welfare
from bidwise.report.criteo.criteo_tables import grid_table, model_tables
from bidwise.report.criteo.findings import chosen_on, grid_log_loss, known, model_called, protocols_of
from bidwise.report.criteo.paper_tables import paper_tables, runtime_table
from bidwise.report.drawing import Picture
from bidwise.report.formatting import number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, families_drawn, in_order, loss_called
from bidwise.report.sections import Drawing, Run, RunPage, Section, drawings

Result = Mapping[str, Any]
FULL = 45_840_617  # ads of the challenge
BIDS = {  # kind of bids -> how they come about
    "deepfm": "exp(h + noise), h the output of an untrained DeepFM, brought to [0, 1]: the paper’s",
    "lognormal": "log-normal, independent of the ad",
    "advertiser": "log-normal around a level of each advertiser",
    "ctr": "log-normal, correlated with the true CTR",
}
INTEGERS = {
    "winners": "⌊(ln x)²⌋ above 2, as the winners of the challenge did",
    "printed": "⌊log₂ x⌋ above 2, as the paper prints, by which some numbers fall together",
}


def criteo_story(run: Run, key: str) -> RunPage:
    """Verdict, welfare against log loss, the paper's numbers, all of ours, λ, epochs, run time, bids, protocols."""
    name, result = run.name, run.result
    told = result["verdict"] or ["No verdict was written for this run."]
    return RunPage(
        name,
        "The paper’s Criteo experiment" + (", on simulated ads" if result["data"]["known_ctr"] else ""),
        told[0],
        [("", sentence) for sentence in told[1:]],
        _facts(result),
        [
            *_welfare(key, result),
            Section("The paper’s numbers beside ours", _comparable(result), tables=paper_tables(result)),
            *(
                Section(
                    f"All numbers: {model_called(model)}",
                    "Means over repeats on test auctions. " + _size(result["models"][model]),
                    tables=model_tables(result, model),
                )
                for model in result["models"]
            ),
            _lams(key, result),
            *_curves(key, result),
            Section(
                "What the losses cost",
                "Training steps timed in turns, so that a machine that slows down slows all losses alike. The paper "
                "reports +2.5 % for DeepFM (in a table that is headed DCN by mistake) and +0.8 % for DCN.",
                tables=runtime_table(result),
            ),
            _bids(key, result),
            _protocols(result),
            Section("The losses", terms=[(loss, loss_called(loss).about) for loss in in_order(_losses(result))]),
            Section("Notes", points=result["notes"] or []),
        ],
    )


def _losses(result: Result) -> list[str]:
    protocols = [losses for model in result["models"].values() for losses in protocols_of(model).values()]
    return list(dict.fromkeys(loss for losses in protocols for loss in losses))


def _facts(result: Result) -> list[tuple[str, str]]:
    data, config = result["data"], result["config"]
    splits, size, cuts = data.get("splits") or {}, config.get("auction_size"), config.get("cuts")
    repeats = config.get("repeats")
    auctions = f"test auctions of {size} ads" if size else "test auctions"
    counted = [
        (splits.get("train"), "training ads"),
        (splits.get("valid"), "validation ads"),
        (splits.get("test"), "test ads"),
        (data.get("auctions"), f"{auctions}, cut in {cuts} random ways" if cuts and cuts > 1 else auctions),
        (data.get("values"), f"values of {data['fields']} fields" if data.get("fields") else "values"),
        (repeats, "repeat of every training" if repeats == 1 else "repeats of every training"),
    ]
    found = [(f"{count:,}", what) for count, what in counted if count is not None]
    if config.get("rows"):
        found.insert(0, (f"{config['rows']:,}", "rows simulated on the device"))
    at = next((k + 1 for k, (_, what) in enumerate(found) if what == "test ads"), 0)
    found.insert(at, (per_cent(known(data.get("click_rate"))), "of the training ads are clicked"))
    if data["known_ctr"]:
        found.append((number(known(data.get("optimal_welfare")), 4), "optimal expected welfare: the true CTR decides"))
        truth = data.get("truth") or {}
        if truth:
            scores = f"{number(known(truth.get('auc')), 4)}, {number(known(truth.get('log_loss')), 4)}"
            found.append((scores, "AUC and log loss of the true CTR on test ads"))
    return found


def _split(key: str, result: Result, picture: Picture) -> dict[str, list[Drawing]]:
    """The figures of each model: the titles of its panels begin with its name."""
    figures = drawings(key, picture)
    return {
        model: [figure for figure in figures if figure.title.startswith(f"{model_called(model)}. ")]
        for model in result["models"]
    }


def _welfare(key: str, result: Result) -> list[Section]:
    kind = "Expected welfare (bid × true CTR of the winner)" if result["data"]["known_ctr"] else "Realised welfare"
    lead = (
        f"{kind} of each loss − that of log loss on the same auctions, in % of the log loss’s. Upper, thick line: 95 % "
        "interval over repeats, chance in training; lower, thin line: over test auctions, chance in the ads that met. "
        "A difference counts as measured, ▲ or ▼ and a full mark, only where both leave out 0 on the same side; "
        "otherwise ≈ and a hollow mark."
        + (" One repeat has no interval over repeats." if result["config"].get("repeats") == 1 else "")
    )
    return [
        Section(
            f"Test welfare against log loss: {model_called(model)}",
            lead if at == 0 else "As above.",
            legend=families_drawn(_losses(result)),
            figures=figures,
        )
        for at, (model, figures) in enumerate(_split(key, result, welfare(result)).items())
    ]


def _comparable(result: Result) -> str:
    """What may be compared with the paper's numbers."""
    ads = sum((result["data"].get("splits") or {}).values())
    if result["data"]["known_ctr"]:
        return (
            "These ads are simulated and the paper’s are not: levels cannot be compared, only the signs of "
            "differences. Welfare is realised in both; the gain of this run is of expected welfare, which varies less "
            "by chance."
        )
    words = "The paper has ten repeats on all of the challenge’s ads"
    if ads and ads != FULL:
        return f"{words}, {FULL:,}; this run has {ads:,} ads, so levels can differ for that reason alone."
    return f"{words}. Bids are drawn anew, so levels of welfare can differ for that reason alone."


def _size(model: Result) -> str:
    counted = [("parameters", "parameters"), ("batch_size", "ads in a batch"), ("steps", "steps")]
    return ", ".join(f"{model[key]:,} {words}" for key, words in counted if model.get(key)) + "."


def _lams(key: str, result: Result) -> Section:
    tables = []
    for name, model in result["models"].items():
        grid = {loss: rows for loss, rows in (model.get("grid") or {}).items() if rows}
        tables += [grid_table(model_called(name), grid, grid_log_loss(model))] if grid else []
    return Section(
        "The weight λ of the log loss",
        "Pairs + λ × log loss: the larger λ, the nearer a loss is to log loss. Test auctions, every λ at its own best "
        f"epoch by validation welfare{_tried(result['config'])}. The thick line is the model trained "
        "with log loss alone. Where the smallest λ dwarfs the rest it is beyond the frame; the table has it.",
        figures=drawings(key, lam_grid(result)),
        tables=tables,
    )


def _tried(config: Result) -> str:
    """Which repeats the panels by lam are over."""
    first = config.get("lam_repeats")
    if first == 1:
        return ", of the first repeat, which alone trained all of them"
    bars = "; bars are standard errors over repeats"
    return f", of the first {first} repeats, which alone trained all of them{bars}" if first else bars


def _curves(key: str, result: Result) -> list[Section]:
    lam = "was chosen" if result["config"].get("lam_repeats") else "most repeats chose"
    lead = (
        f"Validation auctions, mean over repeats, at the λ that {lam}. Epoch and λ are chosen by realised "
        "welfare, which is all that a platform has. A loss that peaks early and falls later is trained for too long. "
        "Early epochs beyond the frame are cut off."
    )
    found = {model: figures for model, figures in _split(key, result, curves(result)).items() if figures}
    return [
        Section(f"Over the epochs: {model_called(model)}", lead if at == 0 else "As above.", figures=figures)
        for at, (model, figures) in enumerate(found.items())
    ]


def _bids(key: str, result: Result) -> Section:
    found = result["data"].get("bids") or {}
    noise = found.get("noise", (found.get("options") or {}).get("noise"))
    terms = [("kind", f"{found['kind']}: {BIDS.get(found['kind'], 'not known to this page')}")] if found else []
    terms += [("noise", f"standard deviation {noise:g} of log bids")] if noise is not None else []
    quantiles = {share: known(bid) for share, bid in (found.get("quantiles") or {}).items()}
    told = ", ".join(f"{100 * float(share):g} %: {bid:.3g}" for share, bid in quantiles.items() if bid is not None)
    terms += [("quantiles", told)] if told else []
    lead = "The challenge’s ads come without bids: they are drawn, once for all models and losses."
    return Section("Bids", lead, figures=drawings(key, bids(result)), terms=terms)


def _protocols(result: Result) -> Section:
    config, data = result["config"], result["data"]
    integers, least = data.get("integers"), data.get("min_count")
    words = "Every loss trains the same model on the same ads, from the same initial weights, with the same batches"
    words += f" and Adam at a rate of {config['rate']:g}" if config.get("rate") is not None else ""
    words += f"; σ = {config['sigma']:g} in losses of pairs" if config.get("sigma") is not None else ""
    prepared = [f"integers become categories by {INTEGERS[integers]}"] if integers in INTEGERS else []
    prepared += [f"categories seen less than {least:,} times in training are one"] if least else []
    size = f" of {config['auction_size']} ads" if config.get("auction_size") else ""
    paragraphs = [
        f"{words}. A repeat has its own initial weights and order of the ads. In training a batch is an auction.",
        f"Test ads are cut into auctions{size} at random; an auction shows the ad with the highest bid × predicted "
        "CTR. Realised welfare is bid × click of that ad"
        + (", expected welfare bid × true CTR." if data["known_ctr"] else ": nobody knows the true CTR here."),
    ]
    if prepared:
        told = "; ".join(prepared)
        paragraphs.append(f"{told[0].upper()}{told[1:]}.")
    run = dict.fromkeys(protocol for model in result["models"].values() for protocol in protocols_of(model))
    terms = [(PROTOCOLS.get(name, name), _protocol(name, result)) for name in run]
    return Section("How it was done", paragraphs=paragraphs, terms=terms)


def _protocol(name: str, result: Result) -> str:
    """What a protocol does, in plain words."""
    config = result["config"]
    trained = [
        f"{model_called(model)} {found['epochs']:g} {'epoch' if found['epochs'] == 1 else 'epochs'}"
        + (f" in batches of {found['batch_size']:,}" if found.get("batch_size") else "")
        for model, found in result["models"].items()
        if found.get("epochs")
    ]
    length = f" ({', '.join(trained)})" if trained else ""
    if name == "converged":
        but = " but for the size of the batches" if config.get("batch_size") else ""
        lam = f"λ = {config['lam']:g}, " if config.get("lam") is not None else ""
        return (
            f"The paper’s way{but}: every model trains to the end{length} and keeps its last weights; {lam}nothing is "
            "chosen. The teacher is the log-loss model at its end."
        )
    if name != "tuned":
        return "A protocol that this page has no words for."
    every, patience = config.get("every"), config.get("patience")
    lams = ", ".join(f"{lam:g}" for lam in config.get("lams") or ())
    shared = any("converged" in protocols_of(model) for model in result["models"].values())
    words = f"{'The same trainings' if shared else f'Trainings{length}'}, looked at on validation auctions"
    words += f" every {'epoch' if every == 1 else f'{every:g} epochs'}" if every else ""
    words += ". Every loss gets the epoch, and where it has a λ the λ"
    words += f" (of {lams})" if lams else ""
    once = config.get("lam_repeats")
    words += ", at which realised welfare on validation auctions is highest"
    words += f", λ {chosen_on(config)} and the epoch in each" if once else ", in each repeat"
    words += "; test auctions take no part. "
    words += "The teacher is the log-loss model at its best epoch. For comparison "
    words += f"{'the epoch is' if once else 'epoch and λ are'} also chosen by validation log loss"
    words += " and, as nobody could, by the true CTR." if result["data"]["known_ctr"] else "."
    words += f" A training stops after {patience:g} epochs without anything better." if patience else ""
    return words
