"""The page, figures and words of the Criteo experiment: complete, honest about chance, and readable in a browser."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from paper_helpers import figures, said
from run_helpers import ENVIRONMENT, Page, check_in_a_browser

from bidwise.evaluation.estimate import Estimate
from bidwise.json_files import to_json
from bidwise.report.sections import Run
from bidwise.run_folder import result_from_json, result_json
from paper.comparisons import Difference
from paper.criteo_results import CriteoResult
from paper.criteo_view import PAPER
from paper.pages import experiment_pictures, experiment_summary, experiments_page

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
WITH_LAM = ("log_weighted", "log_teacher", "log_plus", "log_plus_teacher")
LAMS = (0.1, 1.0, 3.0, 5.0, 10.0)  # of this made-up run
GAINS = {"log_weighted": -0.012, "log_teacher": 0.004, "log_plus": 0.011, "log_plus_teacher": 0.014, "distilled": 0.006}
SETTINGS = {"deepfm": (256, 3), "dcn": (512, 2.1)}


def difference(known, centre, repeats, wide=0.005):
    """Both intervals, as JSON has them; the one over auctions is the wider one for realised welfare."""
    half, auctions = wide if repeats > 1 else math.nan, 0.004 if known else 0.03
    parts = [Estimate(difference=centre, ci_low=centre - width, ci_high=centre + width) for width in (half, auctions)]
    return Difference.between(*parts)


def numbers(model, name, protocol, repeats, known):
    shift = {"converged": 1.0, "tuned": 0.5}[protocol] * {"deepfm": 1.0, "dcn": 0.6}[model]
    gain = GAINS.get(name, 0.0) * shift
    welfare, expected = 1.79 + gain + 0.004, 1.81 + gain
    log_loss = 0.441 + {"converged": 0.02, "tuned": 0.0}[protocol] + abs(gain) * 0.3
    error = (lambda x: None) if repeats == 1 else (lambda x: x)
    reference = name == "log_loss"

    def against(shift=0.0):
        return None if reference else difference(known, gain + shift, repeats)

    levels = {
        "welfare": welfare,
        "welfare_error": error(0.0041),
        "expected_welfare": expected if known else None,
        "expected_welfare_error": error(0.0011) if known else None,
        "auc": 0.806 - abs(gain) / 3,
        "auc_error": error(0.0003),
        "log_loss": log_loss,
        "log_loss_error": error(0.0006),
        "difference": against(),
        "calibrated": against(0.003),
    }
    found = levels | {
        "revenue": 1.52 + gain,
        "calibration_error": 0.0123,
        "predicted_over_observed": 1.021,
    }
    if protocol == "tuned":
        other = levels | {"welfare": welfare - 0.002, "expected_welfare": expected - 0.002 if known else None}
        found |= {"epoch": 1.25, "by_welfare": other | {"difference": against(-0.001)}, "by_truth": None}
        if known:
            found["by_truth"] = other | {"expected_welfare": expected + 0.003, "difference": against(0.002)}
        if name in WITH_LAM:
            found["lam"] = [LAMS[(1 + k) % 5] for k in range(repeats)]
    return found


def grid(name, repeats, known):
    rows = []
    for lam in LAMS:
        drop = 0.03 / (1 + 3 * lam)
        rows.append(
            {
                "lam": lam,
                "welfare": 1.794 + GAINS[name] / 2 - drop,
                "welfare_error": None if repeats == 1 else 0.004,
                "expected_welfare": 1.81 + GAINS[name] / 2 - drop if known else None,
                "expected_welfare_error": 0.0012 if known and repeats > 1 else None,
                "auc": 0.805 - drop / 2 - abs(GAINS[name]) / 9,
                "auc_error": None if repeats == 1 else 0.0004,
                "log_loss": 0.443 + 3 * drop + abs(GAINS[name]),
                "log_loss_error": None if repeats == 1 else 0.001,
            }
        )
    return rows


def curve(k, epochs, known):
    xs = [0.25 * (j + 1) for j in range(int(epochs / 0.25))]
    shape = [1.79 + 0.002 * k - 0.1 * math.exp(-3 * x) - 0.004 * x * (1 if k % 2 else 2) for x in xs]
    return {
        "epoch": xs,
        "lam": 3.0 if 0 < k < 5 else None,
        "welfare": [y + 0.002 * math.sin(9 * x + k) for x, y in zip(xs, shape, strict=True)],
        "log_loss": [0.44 + 0.1 * math.exp(-3 * x) + 0.006 * x + 0.001 * k for x in xs],
        "expected_welfare": [y + 0.02 for y in shape] if known else [],
    }


def model(name, protocols, repeats, known, losses):
    batch, epochs = SETTINGS[name]
    found = {
        "parameters": 1_234_567,
        "batch_size": batch,
        "epochs": epochs,
        "steps": round(800_000 * epochs / batch),
        "protocols": {p: {"losses": {n: numbers(name, n, p, repeats, known) for n in losses}} for p in protocols},
    }
    if "tuned" in protocols:
        found["grid"] = {n: grid(n, repeats, known) for n in losses if n in WITH_LAM}
        if found["grid"]:
            base = numbers(name, "log_loss", "tuned", repeats, known)
            found["grid_log_loss"] = {key: base[key] for key in list(base)[:8]}
        found["curves"] = {n: curve(k, epochs, known) for k, n in enumerate(losses)}
    return found


def criteo(models=("deepfm", "dcn"), protocols=("converged", "tuned"), repeats=3, known=True, losses=LOSSES, **options):
    """A made-up result in the shape of a real one."""
    return result_from_json(CriteoResult, as_json(models, protocols, repeats, known, losses, **options))


def as_json(models, protocols, repeats, known, losses, **options):
    random = np.random.default_rng(0)
    edges = np.geomspace(0.72, 3.6, 61)
    counts, _ = np.histogram(np.exp(random.normal(0.5, 0.13, 20_000)), edges)
    config = {
        "models": list(models),
        "losses": list(losses),
        "protocol": "both" if len(protocols) == 2 else protocols[0],
        "repeats": repeats,
        **options,
    }
    data = {
        "name": "criteo-1m",
        "splits": {"train": 800_000, "valid": 100_000, "test": 100_000},
        "click_rate": 0.2561,
        "fields": 39,
        "values": 123_456,
        "integers": "winners",
        "min_count": 10,
        "optimal_welfare": 1.9034 if known else None,
        "truth": {"auc": 0.8312, "log_loss": 0.4123} if known else None,
        "bids": {
            "kind": "deepfm",
            "options": {"noise": 0.1},
            "mean": 1.66,
            "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
            "quantiles": {"0.0": 0.9, "0.01": 1.22, "0.5": 1.65, "0.99": 2.23, "1.0": 3.1},
        },
    }
    found = {name: model(name, protocols, repeats, known, losses) for name in models}
    return to_json({"kind": "criteo", "format": 4, "config": config, "data": data, "models": found})


def simulated():
    """A result on simulated rows, in larger batches, with lam of the first repeat."""
    options = {"rows": 10_000_000, "batch_size": 4096, "lam_repeats": 1, "precision": "mixed"}
    data = as_json(("deepfm",), ("converged", "tuned"), 3, True, LOSSES, **options)
    data["data"]["splits"] = {"train": 8_000_000, "valid": 1_000_000, "test": 1_000_000}
    found = data["models"]["deepfm"]
    found |= {"batch_size": 4096, "steps": 5859}
    found["grid_log_loss"] = {"welfare": 1.7654, "auc": 0.8, "log_loss": 0.4567}
    for loss in found["protocols"]["tuned"]["losses"].values():
        if loss.get("lam"):
            loss["lam"] = [5.0] * 3
    return result_from_json(CriteoResult, data)


def blank(value):
    """The same result with no numbers left but those that are selected, counted or never missing."""
    kept = ("config", "bids", "epoch", "epochs", "lam")
    if isinstance(value, dict):
        return {key: entry if key in kept else blank(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [blank(entry) for entry in value]
    return None if isinstance(value, float) else value


def without_numbers():
    return result_from_json(CriteoResult, blank(result_json(criteo())))


def run(result, name="criteo"):
    return Run(name, result, ENVIRONMENT)


def small(name):
    """The runs that pages are made of here; each has its own way to be awkward."""
    match name:
        case "full":
            return [run(criteo())]
        case "real data":
            return [run(criteo(known=False))]
        case "one repeat":
            return [run(criteo(repeats=1))]
        case "one of each":
            return [run(criteo(("dcn",), ("converged",), 1, False))]
        case "tuned alone":
            return [run(criteo(("deepfm",), ("tuned",)))]
        case "log loss alone":
            return [run(criteo(losses=("log_loss",)))]
        case "no numbers":
            return [run(without_numbers())]
        case "simulated":
            return [run(simulated())]
        case "two runs":
            return [run(criteo()), run(criteo(("deepfm",), known=False), "<b>again")]


SMALL = ["full", "real data", "one repeat", "one of each", "tuned alone", "log loss alone", "no numbers", "simulated"]
SMALL += ["two runs"]


@pytest.fixture(scope="module")
def pages():
    return {name: experiments_page(small(name)) for name in SMALL}


def each_loss(result):
    for _, _, protocol in result.protocols:
        yield from protocol.losses.items()


def test_every_number_is_on_the_page(pages):
    result, text = criteo(), Page(pages["full"]).text
    for name, loss in each_loss(result):
        assert name in text
        for key in ("welfare", "expected_welfare", "auc", "log_loss"):
            assert f"{getattr(loss, key):.4f} ± {getattr(loss, f'{key}_error'):.4f}" in text
        for key in ("revenue", "calibration_error"):
            assert f"{getattr(loss, key):.4f}" in text
        for base, selected in {1.81: loss, 1.808: loss.by_welfare, 1.813: loss.by_truth}.items():
            if selected is not None and selected.difference is not None:
                assert f"{selected.difference / base:%}" in text
        if loss.calibrated is not None:
            assert f"{loss.calibrated / 1.81:%}" in text
    for words in said(result):
        assert words in text
    for fact in ("800,000", "25.61 %", "all possible", "1.9034", "0.8312, 0.4123", "9,375 steps"):
        assert fact in text


def test_the_papers_numbers_stand_beside_ours(pages):
    text = Page(pages["full"]).text
    for model in PAPER.values():
        for welfare, auc_loss, log_loss in model.values():
            assert "{:.4f} ± {:.4f}".format(*welfare) in text
            assert all(f"{number:.4f}" in text for number in (1 - auc_loss, log_loss))
    assert "+1.20 % ± 0.23" in text  # log_weighted of DeepFM
    assert "+1.47 % ± 0.23" in text
    assert "beside this run (converged)" in text
    assert "beside this run (tuned)" in Page(pages["tuned alone"]).text


@pytest.mark.parametrize(
    ("repeats", "auctions", "kind"),
    [
        ((0.1, 0.3), (0.05, 0.4), "better"),
        ((-0.3, -0.1), (-0.4, -0.1), "worse"),
        ((0.1, 0.3), (-0.1, 0.5), "unclear"),
        ((-0.1, 0.5), (0.1, 0.3), "unclear"),
        ((0.1, 0.3), (-0.3, -0.1), "unclear"),
        ((math.nan, math.nan), (0.1, 0.3), "unclear"),
        ((0.0, 0.3), (0.1, 0.3), "unclear"),
    ],
)
def test_a_difference_counts_only_where_both_intervals_exclude_0(repeats, auctions, kind):
    parts = [Estimate(difference=0.2, ci_low=low, ci_high=high) for low, high in (repeats, auctions)]
    found = Difference.between(*parts)
    assert found.outcome == (100 * found).outcome == kind
    assert (100 * found).auctions == 100 * found.auctions


def test_verdict_comes_first_and_says_which_losses_are_better(pages):
    sentences = said(criteo())
    text = Page(pages["full"].partition("</head>")[2]).text
    assert text.index(sentences[0]) < text.index("Welfare against the baseline") < text.index("How it was done")
    assert sentences[0] == (
        "DeepFM, tuned (on validation auctions): 2 of 5 losses are measurably above log loss, the highest "
        "log_plus_teacher at +0.39 % [+0.11, +0.66]; below it: log_weighted; not distinguished from it: log_teacher, "
        "distilled."
    )
    assert sentences[1].startswith("DCN, tuned (on validation auctions): none of 5 losses is measurably above log loss")
    assert sentences[2].startswith("DeepFM, converged (trained to the end): ")
    assert "3 repeats reveal only large differences." in sentences
    assert "One repeat has no interval over repeats, so no difference counts as measured." in said(criteo(repeats=1))
    assert all("only log loss was trained" in words for words in said(criteo(losses=("log_loss",)))[:4])


def test_ads_of_unknown_ctr_have_no_expected_welfare(pages):
    text = Page(pages["real data"]).text
    assert "Expected welfare" not in text
    assert "true CTR" not in text
    assert "Differences are of realised welfare" in text
    assert "Differences are of expected welfare" in Page(pages["full"]).text


def test_simulated_rows_and_the_one_lam_are_told(pages):
    text = Page(pages["simulated"]).text
    for words in (
        "training ads of the world shared_tail",
        "DeepFM: 3 epochs in batches of 4,096, 5,859 steps",
        "No run repeats the paper’s training to the letter",
        "Selected on the first repeat, which alone trained every λ, and used in all.",
        "mean over the first repeat",
    ):
        assert words in text, words
    assert "which alone trained" not in Page(pages["full"]).text


def test_protocols_that_were_not_run_are_not_told(pages):
    assert "Tuned" not in Page(pages["one of each"]).text
    assert "The weight λ" not in Page(pages["one of each"]).text
    assert "DeepFM" not in Page(pages["one of each"]).text
    assert "Converged" not in Page(pages["tuned alone"]).text


@pytest.mark.parametrize("name", SMALL)
def test_page_is_well_formed_and_needs_nothing_else(pages, name):
    page = Page(pages[name])
    assert page.faults == []
    assert len(page.all("id")) == len(set(page.all("id")))
    targets = [link[1:] for key in ("href", "xlink:href") for link in page.all(key) if link.startswith("#")]
    targets += re.findall(r"url\(#(.*?)\)", pages[name]) + page.all("aria-labelledby")
    assert set(targets) <= set(page.all("id"))
    assert not re.search(r"\b(None|nan|inf|NaN|null|undefined)\b", page.text)
    assert "b" not in page.tags
    charts = re.findall(r"<svg role.*?</svg>", pages[name], re.DOTALL)
    assert charts
    assert not any(re.search(r"(fill|stroke): #", chart) for chart in charts)
    assert re.findall(r"https?://(?!www\.w3\.org/)", pages[name]) == []
    assert len(pages[name].encode()) < 1_100_000


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (criteo(), ["criteo_welfare", "criteo_lambda", "criteo_curves", "criteo_bids"]),
        (without_numbers(), ["criteo_welfare", "criteo_lambda", "criteo_curves", "criteo_bids"]),
        (criteo(("dcn",), ("converged",), 1, False), ["criteo_welfare", "criteo_bids"]),
    ],
)
def test_figures_are_files(tmp_path, result, names):
    assert [picture.name for picture in experiment_pictures(run(result)) if picture.panels] == names
    files = {f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "png")}
    assert {path.name for path in figures(tmp_path, result)} == files


def test_summary_has_a_table_for_each_model_and_protocol():
    result = criteo()
    lines = experiment_summary(result).splitlines()
    for model, protocol in itertools.product(("DeepFM", "DCN"), ("converged", "tuned")):
        assert any(line.startswith(f"{model}, {protocol} (") for line in lines)
    row = next(line for line in lines if line.startswith("  log_plus "))
    assert re.split("  +", row.strip())[:3] == ["log_plus", "1.8210 ± 0.0011", "▲ +0.61 % [+0.33, +0.88]"]
    sentences = said(result)
    assert lines[-len(sentences) :] == sentences
    assert "log_plus" in experiment_summary(criteo(("dcn",), ("converged",), 1, False))


def test_lams_at_an_end_of_their_grid_are_told():
    assert "grid" not in " ".join(said(criteo()))
    narrow = " ".join(said(criteo(lams=[1.0, 3.0, 5.0])))
    assert (
        "λ is at an end of its grid, 1 or 5, where one beyond may be better: DeepFM log_weighted 1 in 1 of 3" in narrow
    )


def test_a_run_of_few_ads_says_so():
    result = criteo()
    words = "9,999 test ads are a trial, not a measurement: use 10,000 or more."
    few = replace(result, data=replace(result.data, splits={**result.data.splits, "test": 9_999}))
    assert words in said(few)
    assert words not in said(result)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("name", ["full"])
def test_page_in_a_browser(browser, pages, tmp_path, name, width, scheme):
    file = tmp_path / "report.html"
    file.write_text(pages[name], encoding="utf-8")
    check_in_a_browser(browser, file, width, scheme)
