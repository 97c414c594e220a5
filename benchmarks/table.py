"""docs/results/benchmarks.md from the measured rows."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks import device_table
from benchmarks.harness import DOCS, RESULTS, read
from benchmarks.rivals import CHOSEN_ON, LONG, METHODS, NEW, compared
from bidwise.evaluation.intervals import unit_interval


def write_page(folder: Path = DOCS / "results") -> Path:
    """The page, from all results that exist."""
    parts = [HEAD]
    for name, (section, command) in SECTIONS.items():
        if (RESULTS / f"{name}.csv").exists():
            rows = read(name)
            first = rows[0]
            commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
            threads = " or ".join(dict.fromkeys(row["threads"] for row in rows))
            where = f"{first['device']}, {threads} threads, torch {first['torch']}, commit {commits}"
            bench = "" if command.startswith(APART) else "`make bench` or "
            parts.append(section(rows) + f"\n\n*{bench}`python -m benchmarks.{command}`; {where}.*")
    path = folder / "benchmarks.md"
    part = path.with_suffix(".part")
    part.write_text("\n\n".join(parts) + "\n")
    part.replace(path)
    return path


CRITEO = 36_672_493  # training ads of the paper
APART = ("device", "rivals", "welfare_losses", "pooled", "selection")  # not of `make bench`: for a GPU, or for hours
HEAD = """# Benchmarks

This page is generated from `benchmarks/results/*.csv`. Losses: forward and backward in float32 with value checks,
medians of interleaved runs. *plain* is the straightforward loss in torch, with all n x n pairs and autograd; *compiled*
is `torch.compile` of it. Ratios are taken within one run, because times on a shared machine drift more than ratios."""


def members(rows: list[dict[str, str]]) -> str:
    by = {(r["loss"], r["method"]): r for r in rows}
    lines = [
        "## Every member, one auction of 256 ads",
        "",
        "| value, gap, surrogate | plain | ours | ours / plain |",
        "|---|---|---|---|",
    ]
    for loss in dict.fromkeys(r["loss"] for r in rows):
        mine, base = by[loss, "ours"], by[loss, "plain"]
        lines.append(f"| {loss} | {_us(base)} | {_us(mine)} | {float(mine['times_plain']):.2f} |")
    reached = sum(float(r["times_plain"]) <= 0.6 for r in rows if r["method"] == "ours")
    lines += ["", f"{reached} of {len(rows) // 2} members take at most 0.6 of the plain time."]
    return "\n".join(lines)


def sizes(rows: list[dict[str, str]]) -> str:
    lines = [
        "## One auction of n ads",
        "",
        "| loss | ads | plain | compiled | ours | plain / ours | memory beyond inputs |",
        "|---|---|---|---|---|---|---|",
    ]
    by = {(r["loss"], int(r["ads"]), r["method"]): r for r in rows}
    taken = {(r["loss"], int(r["ads"])): float(r["peak_mb"]) for r in read("losses_memory")}
    for loss in dict.fromkeys(r["loss"] for r in rows):
        for ads in sorted({int(r["ads"]) for r in rows}):
            mine, base = by[loss, ads, "ours"], by.get((loss, ads, "plain"))
            compiled = by.get((loss, ads, "compiled"))
            gain = f"{float(base['ms']) / float(mine['ms']):,.1f} ×" if base else "n × n does not fit"
            memory = f"{taken[loss, ads]:.0f} MB" if (loss, ads) in taken else ""
            lines.append(f"| {loss} | {ads:,} | {_ms(base)} | {_ms(compiled)} | {_ms(mine)} | {gain} | {memory} |")
    return "\n".join(lines)


def ragged(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Many auctions",
        "",
        "| loss | auctions | ads | Python loop | ours | faster |",
        "|---|---|---|---|---|---|",
    ]
    by = {(r["loss"], r["auctions"], r["method"]): r for r in rows}
    for loss, auctions in dict.fromkeys((r["loss"], r["auctions"]) for r in rows):
        mine, loop = by[loss, auctions, "ours"], by[loss, auctions, "loop"]
        gain = float(loop["ms"]) / float(mine["ms"])
        lines.append(
            f"| {loss} | {int(auctions):,} | {int(mine['ads']):,} | {_ms(loop)} | {_ms(mine)} | {gain:,.0f} × |"
        )
    return "\n".join(lines)


def crossover(rows: list[dict[str, str]]) -> str:
    lines = [
        "## What `auto` chooses from",
        "",
        "Value `teacher`. The last column is the time of `auto` divided by that of the better method; 1 is the right",
        "choice. `auto` was fitted to this table afterwards (`python -m benchmarks.crossover`), so its choice may now",
        "differ.",
        "",
        "| gap, surrogate | auctions × ads | direct | fast | auto / better |",
        "|---|---|---|---|---|",
    ]
    by = {(r["loss"], r["auctions"], r["ads"], r["method"]): r for r in rows}
    for loss, auctions, ads in dict.fromkeys((r["loss"], r["auctions"], r["ads"]) for r in rows):
        direct, fast, auto = (by[loss, auctions, ads, method] for method in ("direct", "fast", "auto"))
        better = min(float(direct["ms"]), float(fast["ms"]))
        shape = f"{auctions} × {int(ads) // int(auctions):,}" if "," not in loss else f"{auctions}, ragged"
        lines.append(f"| {loss} | {shape} | {_ms(direct)} | {_ms(fast)} | {float(auto['ms']) / better:.2f} |")
    return "\n".join(lines)


def _ms(row: dict[str, str] | None) -> str:
    return (
        ""
        if row is None
        else f"{float(row['ms']):,.3g} ms"
        if float(row["ms"]) < 1000
        else f"{float(row['ms']):,.0f} ms"
    )


def _us(row: dict[str, str]) -> str:
    return f"{1000 * float(row['ms']):,.0f} µs"


def auctions(rows: list[dict[str, str]]) -> str:
    first = rows[0]
    lines = [
        f"## A million auctions on {'the CPU' if first['on'] == 'cpu' else first['on']}",
        "",
        f"{int(first['ads']):,} ads, {first['slots']} slots, input checks included.",
        "",
        "| pricing | ms |",
        "|---|---|",
        *(f"| {r['case']} | {float(r['ms']):,.1f} |" for r in rows),
    ]
    return "\n".join(lines)


def evaluation(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Metrics and the whole evaluation",
        "",
        "Methods are timed only after they agree to 1e-9. The command ran on a busy machine: read its CPU seconds.",
        "",
        "| case | method | ads | seconds | CPU seconds | peak memory of the process |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        memory = "" if r["peak_mb"] == "nan" else f"{float(r['peak_mb']):,.0f} MB"
        cpu = "" if r["cpu_s"] == "nan" else f"{float(r['cpu_s']):.1f}"
        seconds = f"{float(r['ms']) / 1e3:.2f}"
        lines.append(f"| {r['case']} | {r['method']} | {int(r['ads']):,} | {seconds} | {cpu} | {memory} |")
    return "\n".join(lines)


def coverage(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Coverage of 95 % intervals: of the difference in welfare, and of one model's metrics",
        "",
        f"Student's t over real auctions, {int(rows[0]['simulations']):,} simulated data sets each, with clicks, bids",
        "and two noisy models. *Too few*: the verdict of so many data sets; *covered*: of all, and of the others. The",
        "last four columns cover the welfare, revenue, AUC and log loss of a single model.",
        "",
        "| market | auctions | decisive | differ | few | covered | if enough | welfare | revenue | AUC | log loss |",
        "|---" * 11 + "|",
    ]
    for r in rows:
        counts = f"{int(r['auctions']):,} | {float(r['decisive']):.0f} | {float(r['changed']):.0f}"
        enough = "" if r["covered_where_enough"] == "nan" else f"{float(r['covered_where_enough']):.1%}"
        levels = " | ".join(f"{float(r[f'{name}_covered']):.1%}" for name in ("welfare", "revenue", "auc", "log_loss"))
        few, covered = f"{float(r['too_few']):.1%}", f"{float(r['covered']):.1%}"
        lines.append(f"| {r['world']} | {counts} | {few} | {covered} | {enough} | {levels} |")
    return "\n".join(lines)


def pooled(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Pooled welfare: coverage, equal models found different, power",
        "",
        f"{int(rows[0]['simulations']):,} simulated data sets each; all auctions of m ads that could be drawn.",
        "*Too few*: the verdict of so many data sets; *covered*: of the others. *Found different*: of all; where",
        "models are equal, wrongly. *Error of one cut*: its standard error over the pooled one's, then the mean's",
        "of 20 cuts. Power, at equal coverage: pooled, one cut, 20 cuts.",
        "",
        "| world | ads, m | effective clicks | too few | covered | found different | error of one cut, 20 | power |",
        "|---" * 8 + "|",
    ]
    for r in rows:
        covered = float(r["covered_where_enough"] or "nan")
        parts = [f"{float(r[f'power_{name}']):.0%}" for name in ("pooled", "one_cut", "cuts")]
        cells = [r["world"], f"{int(r['ads']):,}, {int(r['size']):,}", f"{float(r['effective_clicks']):.0f}"]
        cells += [f"{float(r['too_few']):.1%}", "" if covered != covered else f"{covered:.1%}"]
        cells += [
            f"{float(r['found_different']):.1%}",
            f"{float(r['one_cut_error']):.2f}, {float(r['cuts_error']):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} | {', '.join(parts) if float(r['true_difference']) else ''} |")
    return "\n".join(lines)


def effective_clicks(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Coverage by effective clicks",
        "",
        "20,000 ads, m = 32, click rates of 0.06 to 1.1 %, data sets grouped by their effective clicks.",
        "",
        "| models | σ of log bids | effective clicks | data sets | covered |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        last = f"{r['from']} to {r['to']}" if int(r["to"]) < 1000 else f"{r['from']} and more"
        lines.append(f"| {r['models']} | {r['bids']} | {last} | {int(r['data_sets']):,} | {float(r['covered']):.1%} |")
    return "\n".join(lines)


def selection(rows: list[dict[str, str]]) -> str:
    names = {"one cut": "welfare of one cut", "welfare": "pooled welfare", "log_loss": "log loss"}
    lines = [
        "## True welfare lost by selecting on validation",
        "",
        f"In % of what selection by the truth reaches, mean of {rows[0]['repeats']} repeats with 95 % intervals.",
        "",
        "| world | selected | by | lost | worst repeat |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        lost, low, high, worst = (float(r[name]) for name in ("lost", "ci_low", "ci_high", "worst"))
        interval = f"{lost:.2f} % [{low:.2f}, {high:.2f}]".replace("-", "−")
        lines.append(f"| {r['world']} | {r['selected']} | {names[r['by']]} | {interval} | {worst:.2f} % |")
    return "\n".join(lines)


def training(rows: list[dict[str, str]]) -> str:
    by = {(r["loss"], r["method"]): r for r in rows}
    first = next(r for r in rows if r["method"] == "one after the other")
    repeats, timed, rounds, ads, batch = (int(first[x]) for x in ("repeats", "repeats_timed", "runs", "ads", "batch"))
    lines = [
        f"## Training {repeats} repeats at once",
        "",
        f"An epoch of {repeats} repeats of the 50-50-1 network, {ads:,} ads each, in batches of {batch}.",
        "*one after the other*: torch's layers, Adam, autograd and log loss, and all n x n pairs, as without bidwise;",
        "the ratio thus combines batching and our loss methods. It is timed on",
        f"{timed} repeats in each of {rounds} alternating rounds and scaled to {repeats}; *at once*: `fit` with a",
        "batch of models, all timed. Medians over rounds. Both are timed only after their weights agree to 1e-4",
        "after an epoch from the same weights and batches.",
        "",
        "| loss | one after the other | at once | faster | target |",
        "|---|---|---|---|---|",
    ]
    for loss in dict.fromkeys(r["loss"] for r in rows):
        base, mine = by[loss, "one after the other"], by[loss, "at once"]
        gain, target = f"{float(mine['faster']):.1f} ×", f"{float(mine['target']):g} ×"
        lines.append(f"| {loss} | {_ms(base)} | {_ms(mine)} | {gain} | {target} |")
    reached = sum(float(r["faster"]) >= float(r["target"]) for r in rows) // 2
    lines += ["", f"{reached} of {len(rows) // 2} losses reach their target."]
    return "\n".join(lines)


def categories_steps(rows: list[dict[str, str]]) -> str:
    first = rows[0]
    lines = [
        "## What a loss adds to a training step over categories",
        "",
        f"39 fields with {int(first['vocabulary']):,} values in total, lazy updates, σ = λ = 3; step: batch to",
        f"new weights. Losses alternate in {first['segments']} segments of {first['steps']} steps each; *adds* is the",
        f"median ratio to log loss within a segment. *an epoch*: as many steps as {CRITEO:,} ads need.",
        "",
        "| model, batch | loss | a step | sd | an epoch | adds | sd | target |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        own = ["", "", ""]
        if r["loss"] != "log_loss":
            own = [_percent(r["overhead"]), _percent(r["overhead_sd"]), f"≤ {_percent(r['target'])}"]
        model, sd = f"{r['model']}, {r['batch']}", f"{float(r['ms_sd']):.3g} ms"
        epoch = f"{float(r['ms']) / 1e3 * -(-CRITEO // int(r['batch'])):,.0f} s"
        lines.append(f"| {model} | {r['loss']} | {_ms(r)} | {sd} | {epoch} | {' | '.join(own)} |")
    others = [r for r in rows if r["loss"] != "log_loss"]
    reached = sum(float(r["overhead"]) <= float(r["target"]) for r in others)
    return "\n".join([*lines, "", f"{reached} of {len(others)} reach their target."])


def _percent(share: str) -> str:
    return f"{100 * float(share):.3g} %"


def categories_vocabulary(rows: list[dict[str, str]]) -> str:
    lines = [
        "## A training step by the number of values",
        "",
        f"DeepFM, batch {rows[0]['batch']}, log loss; *slower* is the median ratio to the smallest vocabulary.",
        "Lazy updates touch the rows of the batch, dense ones all rows, like torch's Adam.",
        "",
        "| updates | values | a step | sd | slower | target |",
        "|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: (r["updates"] != "lazy", int(r["vocabulary"]))):
        target = f"≤ {float(r['target']):g} ×" if r["target"] else ""
        sd, slower = f"{float(r['ms_sd']):.3g} ms", f"{float(r['slower']):.2f} ×"
        lines.append(f"| {r['updates']} | {int(r['vocabulary']):,} | {_ms(r)} | {sd} | {slower} | {target} |")
    return "\n".join(lines)


def categories_loader(rows: list[dict[str, str]]) -> str:
    first = rows[0]
    lines = [
        "## Shuffled batches of ids",
        "",
        f"{int(first['rows']):,} ads of {first['fields']} int32 ids in random order, batches of {first['batch']}; the",
        "memory-mapped file had been read before.",
        "",
        "| ids in | rows a second | target |",
        "|---|---|---|",
        *(f"| {r['features']} | {float(r['rows_per_second']):,.0f} | ≥ {float(r['target']):,.0f} |" for r in rows),
    ]
    return "\n".join(lines)


def categories_pipeline(rows: list[dict[str, str]]) -> str:
    lines = [
        "## Data in the shape of Criteo's",
        "",
        f"From the shell, start-up included; median of {rows[0]['runs']} runs and the largest peak.",
        "",
        "| command | rows | seconds | rows a second | peak memory of the process |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        seconds, rate = f"{float(r['ms']) / 1e3:.1f}", f"{float(r['rows_per_second']):,.0f}"
        peak = f"{float(r['peak_mb']):,.0f} MB"
        lines.append(f"| `python -m paper {r['command']}` | {int(r['rows']):,} | {seconds} | {rate} | {peak} |")
    return "\n".join(lines)


def ranks(rows: list[dict[str, str]]) -> str:
    """Several processes, together and apart."""
    lines = [
        f"## Ranks on one machine of {rows[0]['cores']} virtual cores",
        "",
        "The batch is that of all ranks together; every process has one thread. *a model each*: as many processes",
        "training separately, an upper bound. *efficiency*: rows a second relative to one process times the number of",
        "processes; four processes on two cores cannot exceed one half. *sent*: by each rank in a step.",
        "",
        "| model | batch | loss | ranks | a step | rows a second | a model each | efficiency | sent | waiting |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rate = {(r["model"], r["batch"], r["loss"], r["ranks"], r["way"]): float(r["rows_per_second"]) for r in rows}
    for r in (row for row in rows if row["way"] == "together"):
        apart = rate.get((r["model"], r["batch"], r["loss"], r["ranks"], "apart"))
        cells = [r["model"], f"{int(r['batch']):,}", r["loss"], r["ranks"], f"{float(r['ms']):.1f} ms"]
        cells += [f"{float(r['rows_per_second']):,.0f}", "" if apart is None else f"{apart:,.0f}"]
        cells += [f"{float(r['efficiency']):.0%}", f"{float(r['kb_per_step']) / 1e3:.2f} MB"]
        lines.append(f"| {' | '.join(cells)} | {float(r['waiting']):.0%} |")
    return "\n".join(lines)


def rivals(rows: list[dict[str, str]]) -> str:
    packages = dict.fromkeys(row["package"] for row in rows if row["method"] != "bidwise")
    lines = [
        "## `bidwise train` and what others would use",
        "",
        "Tables of our own making (`benchmarks/made_tables.py`). *b*: one effect per value and per number. *c1*,",
        "*c15*: hierarchies, numbers, combinations of two and three columns, drift; *c15_long* has five times the",
        "rows. *arrivals*: hierarchies in which new ids arrive all the time. *numbers*: no categories. *bags*: lists",
        "of values. The newest fifth of the rows is for testing. Every method is tuned by log loss on the newest",
        "fifth of the others, then fitted to all of them. Welfare: all auctions of 32 ads that could be drawn from",
        "the test rows, by true CTR, in % of what the true CTR reaches; mean over tables, and difference to logistic",
        "regression on the same tables. With one table of a kind, differences between methods may be chance; a method",
        "that is missing was not measured. CPU seconds",
        f"include encoding and tuning. {', '.join(packages)}.",
        "*boxes*: 20 numbers; 30 effects, each where one to four of them are above or below a bound. *tastes*:",
        "products of hidden vectors of readers and articles. *idle*: 32 columns, 24 of them without",
        "effect, and fewer rows.",
        f"`bidwise train` was developed with tables of the kinds *{'*, *'.join(CHOSEN_ON)}* in view, of other",
        f"seeds; the kinds *{'*, *'.join(NEW)}* were drawn when all settings had been chosen, and measured once.",
        "",
        "| kind, rows | method | tables | welfare | to logistic regression | AUC | log loss | seconds | memory |",
        "|---" * 9 + "|",
    ]
    rows = compared(rows, CHOSEN_ON + NEW + LONG)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        here = [row for row in rows if row["kind"] == kind]
        base = {row["seed"]: float(row["welfare"]) for row in here if row["method"] == "logistic"}
        for name in [name for name in METHODS if any(row["method"] == name for row in here)]:
            own = [row for row in here if row["method"] == name]

            def mean(column: str, own: list[dict[str, str]] = own) -> float:
                return statistics.mean(float(row[column]) for row in own)

            gains = [float(row["welfare"]) - base[row["seed"]] for row in own if row["seed"] in base]
            gain = f"{statistics.mean(gains):+.1f}" if gains else ""
            gain += f" ({min(gains):+.1f} to {max(gains):+.1f})" if len(gains) > 1 else ""
            cells = [f"{kind}, {int(own[0]['rows']):,}", METHODS[name].title, f"{len(own)}", f"{mean('welfare'):.1f}"]
            cells += ["" if name == "logistic" else gain.replace("-", "−"), f"{mean('auc'):.4f}"]
            cells += [f"{mean('log_loss'):.5f}", f"{mean('seconds'):.0f}", f"{mean('peak_mb'):.0f} MB"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def welfare_losses(rows: list[dict[str, str]]) -> str:
    """Differences to the log loss over tables, each table one unit."""
    tables, kinds = {(r["kind"], r["seed"]) for r in rows}, [*dict.fromkeys(r["kind"] for r in rows)]
    served = [*dict.fromkeys(r["served"] for r in rows)]
    by = {(r["kind"], r["seed"], r["served"], r["loss"], r["lam"]): r for r in rows}

    def gains(loss: str, lam: str, how: str, column: str, only: str = "") -> list[float]:
        own = [key for key in tables if only in ("", key[0])]
        return [float(by[*key, how, loss, lam][column]) - float(by[*key, how, "log_loss", ""][column]) for key in own]

    def interval(found: list[float]) -> str:
        each = unit_interval(found)
        return f"{each.estimate:+.2f} [{each.low:+.2f}, {each.high:+.2f}]".replace("-", "−")

    losses = [*dict.fromkeys((r["loss"], r["lam"]) for r in rows if r["loss"] != "log_loss")]
    base = {how: statistics.mean(float(by[*key, how, "log_loss", ""]["welfare"]) for key in tables) for how in served}
    lines = [
        "## Welfare losses, ensembles and distillation over what `bidwise train` finds",
        "",
        f"{len(tables)} tables of {len(kinds)} kinds, as below, of seeds that no setting was chosen on. The network is",
        "the one that the search chose by log loss, with its settings; L2 is for each unit of log loss. Change of",
        "welfare in points of the optimum, mean over tables [95 % interval]; several losses are compared, so one in",
        "twenty intervals misses 0 by chance. Log loss",
        f"reaches {base[served[0]]:.1f} % by itself and {base[served[1]]:.1f} % with the regression.",
        "",
        "| loss | λ | alone | alone, calibrated | with the regression | with the regression, calibrated |",
        "|---" * 6 + "|",
    ]
    for loss, lam in losses:
        cells = [interval(gains(loss, lam, how, column)) for how in served for column in ("before", "welfare")]
        lines.append(f"| {loss} | {lam and f'{float(lam):g}'} | {' | '.join(cells)} |")
    lines += ["", "With the regression and calibrated, by kind of table, mean:", ""]
    lines += [f"| loss | λ | {' | '.join(kinds)} |", "|---" * (2 + len(kinds)) + "|"]
    for loss, lam in losses:
        cells = [f"{statistics.mean(gains(loss, lam, served[1], 'welfare', kind)):+.2f}" for kind in kinds]
        lines.append(f"| {loss} | {lam and f'{float(lam):g}'} | {' | '.join(cells).replace('-', '−')} |")
    return "\n".join(lines)


SECTIONS = {  # results -> (their section, the command that measures them)
    "losses_members": (members, "losses members"),
    "losses_sizes": (sizes, "losses sizes"),
    "losses_ragged": (ragged, "losses ragged"),
    "losses_crossover": (crossover, "losses crossover"),
    "training": (training, "training"),
    "auctions_cpu": (auctions, "auctions"),
    "auctions_cuda": (auctions, "auctions"),
    "evaluation": (evaluation, "evaluation"),
    "coverage": (coverage, "coverage"),
    "pooled": (pooled, "pooled"),
    "effective_clicks": (effective_clicks, "pooled"),
    "selection": (selection, "selection cuda"),
    "categories_steps": (categories_steps, "categories steps"),
    "categories_vocabulary": (categories_vocabulary, "categories vocabulary"),
    "categories_loader": (categories_loader, "categories loader"),
    "categories_pipeline": (categories_pipeline, "categories pipeline"),
    "ranks": (ranks, "ranks"),
    "welfare_losses": (welfare_losses, "welfare_losses"),
    "rivals": (rivals, "rivals"),
    **device_table.SECTIONS,
}

if __name__ == "__main__":
    print(write_page())
