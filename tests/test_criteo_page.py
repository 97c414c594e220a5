"""The page, figures and words of the Criteo experiment: complete, honest about chance, and readable in a browser."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from test_experiment_page import ENVIRONMENT, check_in_a_browser
from test_report import Page

from bidwise.checks import InputError
from bidwise.paper.criteo.criteo_sentences import criteo_notes, criteo_summary, criteo_verdict
from bidwise.paper.criteo.reported import PAPER, PAPER_RUNTIME
from bidwise.report.build import pictures, read_run, report, runs_page, write_figures
from bidwise.report.criteo.findings import finding, paper_gain
from bidwise.report.sections import Run

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
WITH_LAM = ("log_weighted", "log_teacher", "log_plus", "log_plus_teacher")
LAMS = (0.1, 1.0, 3.0, 5.0, 10.0)
GAINS = {"log_weighted": -0.012, "log_teacher": 0.004, "log_plus": 0.011, "log_plus_teacher": 0.014, "distilled": 0.006}
SETTINGS = {"deepfm": (256, 3), "dcn": (512, 2.1)}


def difference(of, centre, repeats, wide=0.005):
    """Both intervals; the one over auctions is the wider one for realised welfare."""
    half = None if repeats == 1 else wide
    auctions = 0.004 if of == "expected" else 0.03
    return {
        "of": of,
        "repeats": {
            "difference": centre,
            "ci_low": None if half is None else centre - half,
            "ci_high": None if half is None else centre + half,
        },
        "auctions": {"difference": centre, "ci_low": centre - auctions, "ci_high": centre + auctions},
    }


def numbers(model, name, protocol, repeats, known, random):
    shift = {"converged": 1.0, "tuned": 0.5}[protocol] * {"deepfm": 1.0, "dcn": 0.6}[model]
    gain = GAINS.get(name, 0.0) * shift
    welfare, expected = 1.79 + gain + 0.004, 1.81 + gain
    log_loss = 0.441 + {"converged": 0.02, "tuned": 0.0}[protocol] + abs(gain) * 0.3
    error = (lambda x: None) if repeats == 1 else (lambda x: x)
    reference = name == "log_loss"

    def against(shift=0.0):
        return None if reference else difference("expected" if known else "realised", gain + shift, repeats)

    found = {
        "welfare": welfare,
        "welfare_error": error(0.0041),
        "expected_welfare": expected if known else None,
        "expected_welfare_error": error(0.0011) if known else None,
        "auc": 0.806 - abs(gain) / 3,
        "auc_loss": 0.194 + abs(gain) / 3,
        "auc_loss_error": error(0.0003),
        "log_loss": log_loss,
        "log_loss_error": error(0.0006),
        "revenue": 1.52 + gain,
        "calibration_error": 0.0123,
        "predicted_over_observed": 1.021,
        "difference": against(),
        "difference_realised": None if reference else difference("realised", gain + 0.001, repeats, 0.012),
        "relative": None if reference else gain / 1.81,
        "repeats": {
            "welfare": [welfare + 0.004 * float(random.normal()) for _ in range(repeats)],
            "expected_welfare": [expected + 0.001 * float(random.normal()) for _ in range(repeats)] if known else None,
            "auc": [0.806 + 0.0003 * float(random.normal()) for _ in range(repeats)],
            "log_loss": [log_loss + 0.0005 * float(random.normal()) for _ in range(repeats)],
        },
    }
    if protocol == "tuned":
        other = {"welfare": welfare - 0.002, "expected_welfare": expected - 0.002 if known else None}
        found |= {"epoch": 1.25, "by_log_loss": other | {"difference": against(-0.001)}, "by_truth": None}
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
                "auc_loss": 0.195 + drop / 2 + abs(GAINS[name]) / 9,
                "auc_loss_error": None if repeats == 1 else 0.0004,
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
        "expected_welfare": [y + 0.02 for y in shape] if known else None,
    }


def model(name, protocols, repeats, known, losses, random):
    batch, epochs = SETTINGS[name]
    found = {
        "parameters": 1_234_567,
        "batch_size": batch,
        "epochs": epochs,
        "steps": round(800_000 * epochs / batch),
        "protocols": {
            p: {"losses": {n: numbers(name, n, p, repeats, known, random) for n in losses}} for p in protocols
        },
        "runtime": {
            n: {"segments": 15, "seconds": 42.1 + k, "sd": 0.6, "relative": 1 + 0.011 * k, "relative_sd": 0.004}
            for k, n in enumerate(losses)
        },
    }
    if "tuned" in protocols:
        found["grid"] = {n: grid(n, repeats, known) for n in losses if n in WITH_LAM}
        found["curves"] = {n: curve(k, epochs, known) for k, n in enumerate(losses)}
    return found


def criteo(models=("deepfm", "dcn"), protocols=("converged", "tuned"), repeats=3, known=True, losses=LOSSES):
    """A made-up result in the shape of a real one."""
    random = np.random.default_rng(0)
    edges = np.geomspace(0.72, 3.6, 61)
    counts, _ = np.histogram(np.exp(random.normal(0.5, 0.13, 20_000)), edges)
    result = {
        "kind": "criteo",
        "version": "0.1.0",
        "config": {
            "data": "criteo-1m",
            "models": list(models),
            "losses": list(losses),
            "protocol": "both" if len(protocols) == 2 else protocols[0],
            "repeats": repeats,
            "seed": 0,
            "auction_size": 256,
            "cuts": 10,
            "every": 0.25,
            "l2": 0.0,
            "embeddings": "lazy",
            "lams": list(LAMS),
            "lam": 3.0,
            "sigma": 3.0,
            "rate": 0.001,
        },
        "data": {
            "splits": {"train": 800_000, "valid": 100_000, "test": 100_000},
            "click_rate": 0.2561,
            "fields": 39,
            "values": 123_456,
            "integers": "winners",
            "min_count": 10,
            "auctions": 390,
            "known_ctr": known,
            "optimal_welfare": 1.9034 if known else None,
            "truth": {"auc": 0.8312, "log_loss": 0.4123} if known else None,
            "bids": {
                "kind": "deepfm",
                "noise": 0.1,
                "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
                "quantiles": {"0.0": 0.9, "0.01": 1.22, "0.5": 1.65, "0.99": 2.23, "1.0": 3.1},
            },
        },
        "models": {name: model(name, protocols, repeats, known, losses, random) for name in models},
        "paper": json.loads(json.dumps({name: PAPER[name] for name in models})),
    }
    result["verdict"], result["notes"] = criteo_verdict(result), criteo_notes(result)
    return result


def simulated():
    """A result on simulated rows, in larger batches, with lam of the first repeat."""
    result = criteo(("deepfm",))
    result["config"] |= {"data": "simulated", "rows": 10_000_000, "batch_size": 4096, "lam_repeats": 1}
    result["config"] |= {"precision": "mixed"}
    result["data"]["splits"] = {"train": 8_000_000, "valid": 1_000_000, "test": 1_000_000}
    found = result["models"]["deepfm"]
    found |= {"batch_size": 4096, "steps": 5859, "grid_log_loss": {"welfare": 1.7654, "log_loss": 0.4567}}
    for loss in found["protocols"]["tuned"]["losses"].values():
        if loss.get("lam"):
            loss["lam"] = [5.0] * 3
    result["verdict"], result["notes"] = criteo_verdict(result), criteo_notes(result)
    return result


def blank(value):
    """The same result with no numbers left but those that are chosen or counted, and the paper's."""
    kept = ("config", "paper", "histogram", "epoch", "epochs", "lam")
    if isinstance(value, dict):
        return {key: entry if key in kept else blank(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [blank(entry) for entry in value]
    return None if isinstance(value, float) else value


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
            return [run(blank(criteo()))]
        case "simulated":
            return [run(simulated())]
        case "two runs":
            return [run(criteo()), run(criteo(("deepfm",), known=False), "<b>again")]


SMALL = ["full", "real data", "one repeat", "one of each", "tuned alone", "log loss alone", "no numbers", "simulated"]
SMALL += ["two runs"]


@pytest.fixture(scope="module")
def pages():
    return {name: runs_page(small(name)) for name in SMALL}


def shown(share):
    """A share as tables show it, in hundredths."""
    return "0.00" if abs(share) < 1e-9 else f"{100 * share:+.2f}".replace("-", "−")


def each_loss(result):
    for found in result["models"].values():
        for protocol in found["protocols"].values():
            yield from protocol["losses"].items()


def test_every_number_is_on_the_page(pages):
    result, text = criteo(), Page(pages["full"]).text
    for name, loss in each_loss(result):
        assert name in text
        for key in ("welfare", "expected_welfare", "auc_loss", "log_loss"):
            assert f"{loss[key]:.4f} ± {loss[f'{key}_error']:.4f}" in text
        for key in ("revenue", "auc", "calibration_error"):
            assert f"{loss[key]:.4f}" in text
        for values in loss["repeats"].values():
            assert all(f"{value:.4f}" in text for value in values)
        found = [loss["difference"], *((loss.get(way) or {}).get("difference") for way in ("by_log_loss", "by_truth"))]
        for gap in filter(None, found):
            low, high = (gap["repeats"][end] for end in ("ci_low", "ci_high"))
            base = 1.81 if gap is found[0] else 1.808 if gap is found[1] else 1.813
            assert f"[{shown(low / base)}, {shown(high / base)}]" in text
    for found in result["models"].values():
        for rows in found["grid"].values():
            assert all(f"{row['log_loss']:.4f} ± 0.0010" in text for row in rows)
        assert all(f"{times['seconds']:.2f} ± 0.60" in text for times in found["runtime"].values())
    for words in (*result["verdict"], *result["notes"]):
        assert words in text
    for fact in ("800,000", "25.61 %", "390", "123,456", "1.9034", "0.8312, 0.4123", "95.09 %", "9,375 steps"):
        assert fact in text


def test_the_papers_numbers_stand_beside_ours(pages):
    text = Page(pages["full"]).text
    for model in PAPER.values():
        for loss in model.values():
            for key in ("welfare", "auc_loss", "log_loss"):
                assert f"{loss[key][0]:.4f} ± {loss[key][1]:.4f}" in text
            assert f"{loss['seconds'][0]:,.0f} ± {loss['seconds'][1]:.0f}" in text
    assert "+1.20 % ± 0.23" in text
    assert "✗ the other sign" in text
    assert "levels cannot be compared, only the signs" in text
    real = Page(pages["real data"]).text
    assert "levels cannot be compared" not in real
    assert "45,840,617; this run has 1,000,000 ads" in real


def test_the_papers_numbers_are_the_papers():
    assert {model: round(100 * paper_gain(found, "log_teacher")[0], 2) for model, found in PAPER.items()} == {
        "deepfm": 1.47,
        "dcn": 0.19,
    }
    slower = {m: round(100 * (t["log_weighted"][0] / t["log_loss"][0] - 1), 1) for m, t in PAPER_RUNTIME.items()}
    assert slower == {"deepfm": 2.5, "dcn": 0.8}


@pytest.mark.parametrize(
    ("repeats", "auctions", "kind"),
    [
        ((0.1, 0.3), (0.05, 0.4), "better"),
        ((-0.3, -0.1), (-0.4, -0.1), "worse"),
        ((0.1, 0.3), (-0.1, 0.5), "unclear"),
        ((-0.1, 0.5), (0.1, 0.3), "unclear"),
        ((0.1, 0.3), (-0.3, -0.1), "unclear"),
        ((None, None), (0.1, 0.3), "unclear"),
        ((math.nan, math.nan), (0.1, 0.3), "unclear"),
        ((0.0, 0.3), (0.1, 0.3), "unclear"),
    ],
)
def test_a_difference_counts_only_where_both_intervals_leave_out_0(repeats, auctions, kind):
    ends = {"repeats": repeats, "auctions": auctions}
    found = {name: {"difference": 0.2, "ci_low": low, "ci_high": high} for name, (low, high) in ends.items()}
    assert finding({"of": "expected", **found}) == kind
    assert finding(None) == "none"


def test_verdict_comes_first_and_counts_measured_losses(pages):
    result = criteo()
    text = Page(pages["full"].partition("</head>")[2]).text
    assert (
        text.index(result["verdict"][0]) < text.index("Test welfare against log loss") < text.index("How it was done")
    )
    assert result["verdict"][0] == (
        "With every loss tuned, 2 of 5 losses with DeepFM (the highest is log_plus_teacher at +0.39 % [+0.11, +0.66]) "
        "and none with DCN reach measurably more expected welfare than log loss; measurably less: 1 of 5 with DeepFM."
    )
    words = " ".join(result["verdict"])
    assert (
        "Of 4 gains in welfare that the paper reports, 0 are gains here too (trained in the same way), 2 are losses"
        in words
    )
    assert "by clicks, which is all that a platform has, 0" in words
    assert "+5.5 % with DeepFM, distilled (the paper: +2.5 %)" in words


def test_one_repeat_measures_nothing(pages):
    text = Page(pages["one repeat"]).text
    assert "One repeat has no interval over repeats, so no difference counts as measured." in text
    assert "no loss reaches measurably more" in text
    assert not re.search("[▲▼] (better|worse)", text)
    result = criteo(repeats=1)
    for _, loss in each_loss(result):  # as they are before they are written to a file
        for gap in filter(None, (loss["difference"], loss["difference_realised"])):
            gap["repeats"] |= {"ci_low": math.nan, "ci_high": math.nan}
    assert criteo_verdict(result) == criteo(repeats=1)["verdict"]
    assert "nan" not in criteo_summary(result)


def test_real_data_has_no_expected_welfare(pages):
    text = Page(pages["real data"]).text
    for words in ("Expected welfare", "Share of optimum", "optimal welfare", "by true CTR", "simulated"):
        assert words not in text
    assert "Realised welfare" in text
    assert "simulated" in Page(pages["full"]).text


def test_simulated_rows_batches_and_the_one_lam_are_told(pages):
    text = Page(pages["simulated"]).text
    for words in (
        "10,000,000",
        "rows simulated on the device",
        "The ads are simulated, 10,000,000 rows on the device, with a known CTR.",
        "DeepFM 3 epochs in batches of 4,096",
        "The paper’s way but for the size of the batches",
        "Trained to the end, as in the paper but for batches of 4,096",
        "Batches have 4,096 ads where the paper's have 256",
        "chosen on the first repeat",
        "of the first repeat, which alone trained all of them",
        "the epoch is also chosen by validation log loss",
        "The epoch chosen by validation log loss",
        "other ways to choose the epoch",
        "Products of matrices are in TF32",
        "1.7654",  # log loss over the same repeat as the grid
    ):
        assert words in text, words
    for words in ("in each repeat; test", "epoch and λ chosen", "most repeats chose", "chosen most often"):
        assert words not in text, words
    summary = criteo_summary(simulated())
    assert "the paper's protocol but for batches of 4,096" in summary
    assert "(λ chosen on the first repeat)" in summary


def test_protocols_that_were_not_run_are_not_told(pages):
    assert "Tuned" not in Page(pages["one of each"]).text
    assert "The weight λ" not in Page(pages["one of each"]).text
    assert "DeepFM. " not in pages["one of each"]
    assert "Converged" not in Page(pages["tuned alone"]).text
    assert "Trainings (DeepFM 3 epochs in batches of 256), looked at" in Page(pages["tuned alone"]).text
    assert "our protocol: tuned" in Page(pages["tuned alone"]).text
    assert "nothing to compare" in Page(pages["log loss alone"]).text


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


def test_same_run_gives_same_bytes(pages):
    assert runs_page(small("full")) == pages["full"]


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (criteo(), ["criteo_welfare", "criteo_lambda", "criteo_curves", "criteo_bids"]),
        (blank(criteo()), ["criteo_welfare", "criteo_lambda", "criteo_curves", "criteo_bids"]),
        (criteo(("dcn",), ("converged",), 1, False), ["criteo_welfare", "criteo_bids"]),
    ],
)
def test_figures_are_files(tmp_path, result, names):
    assert [picture.name for picture in pictures(run(result))] == names
    paths = write_figures(tmp_path, result)
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "png")]


def test_a_run_folder_becomes_a_page(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/result.json").write_text(json.dumps(criteo()), encoding="utf-8")
    report([tmp_path / "run"], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == runs_page([read_run(tmp_path / "run")])
    (tmp_path / "run/result.json").write_text('{"kind": "criteo", "data": {}}', encoding="utf-8")
    with pytest.raises(InputError, match=r"result\.json of run run must be whole"):
        report([tmp_path / "run"], tmp_path / "page.html")


def test_summary_has_a_table_for_each_model_and_protocol():
    result = criteo()
    text = criteo_summary(result)
    for model, protocol in itertools.product(("DeepFM", "DCN"), ("converged", "tuned")):
        assert f"{model}, {protocol}: " in text
    lines = text.splitlines()
    assert "▲ log_plus           1.8210  +0.61 [+0.33, +0.88]    0.1977    0.4643" in lines
    assert "▼ log_weighted       1.8040  −0.33 [−0.61, −0.06]    0.1960    0.4428  1 3 5" in lines
    sizes = f"{result['data']['splits']['train']:,} simulated ads, their CTR known, to train on; "
    assert lines[0].startswith(sizes)
    assert "simulated" not in criteo_summary(criteo(known=False)).splitlines()[0]
    assert lines[-len(result["verdict"]) :] == result["verdict"]
    assert all(len(line) <= 80 for line in lines if "  " in line)  # tables
    assert "expected" not in criteo_summary(criteo(known=False))
    assert "log_plus" in criteo_summary(criteo(("dcn",), ("converged",), 1, False))


def test_tuning_that_does_harm_is_told():
    result = criteo(("deepfm",))
    words = (
        "Log loss at its best epoch by validation welfare is below log loss trained to the end, −10.00 % with DeepFM"
    )
    assert not any(words in sentence for sentence in criteo_verdict(result))
    protocols = result["models"]["deepfm"]["protocols"]
    trained = protocols["converged"]["losses"]["log_loss"]["expected_welfare"]
    protocols["tuned"]["losses"]["log_loss"]["expected_welfare"] = 0.9 * trained
    assert any(words in sentence for sentence in criteo_verdict(result))


def test_a_run_of_few_auctions_says_so():
    result = criteo()
    assert not any("a try, not a measurement" in words for words in criteo_verdict(result))
    result["data"]["auctions"] = 39
    assert criteo_verdict(result)[0] == "39 test auctions are a try, not a measurement: use 100 or more."


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["full", "one of each", "no numbers"])
def test_page_in_a_browser(browser, pages, tmp_path, name, width, scheme):
    file = tmp_path / "report.html"
    file.write_text(pages[name], encoding="utf-8")
    check_in_a_browser(browser, file, width, scheme)
