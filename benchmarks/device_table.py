"""Sections of docs/results/benchmarks.md measured on a GPU."""

from __future__ import annotations

Rows = list[dict[str, str]]
WAYS = ("plain torch", "torch.compile", "direct", "pairs", "fast", "auto")


def losses(rows: Rows) -> str:
    """Loss and gradient of one auction, by size and way."""
    lines = [
        f"## Loss and gradient of one auction on {rows[0]['device']}",
        "",
        "Forward and backward in float32, as replays of a CUDA graph except where a method waits for the GPU (*).",
        "*plain torch* is the straightforward loss, *direct* the same in chunks, *pairs* a kernel over all pairs,",
        "*fast* a method without pairs. Error: of the gradient against float64, relative to its norm, for *auto* and",
        "*plain torch*. Signed weighted logistic is the rank term of `log_teacher`, signed logistic of `log`, positive",
        "logistic of `log_plus`, with a teacher of `log_plus_teacher`.",
        "",
        f"| loss | ads | {' | '.join(WAYS)} | memory of auto | error, plain |",
        f"|---|---|{'---|' * len(WAYS)}---|---|",
    ]
    by = {(r["member"], int(r["ads"]), r["way"]): r for r in rows}
    for member in dict.fromkeys(r["member"] for r in rows):
        for ads in sorted({int(r["ads"]) for r in rows if r["member"] == member}):
            cells = [_time(by.get((member, ads, way))) for way in WAYS]
            auto = by[member, ads, "auto"]
            errors = ", ".join(_error(by.get((member, ads, way))) for way in ("auto", "plain torch"))
            lines.append(f"| {member} | {ads:,} | {' | '.join(cells)} | {float(auto['peak_mb']):.1f} MB | {errors} |")
    lines += [
        "",
        *_reached(rows, "ms", "target_ms", lambda r: f"{r['member']}, {int(r['ads']):,} ads, {r['way']}", "ms"),
    ]
    return "\n".join(lines)


def ragged(rows: Rows) -> str:
    """Batches of many auctions."""
    ways = ("direct", "triton", "auto")
    lines = [
        f"## Many auctions in a batch on {rows[0]['device']}",
        "",
        f"| auctions | loss | {' | '.join(ways)} | error of auto |",
        f"|---|---|{'---|' * len(ways)}---|",
    ]
    by = {(r["auctions"], r["member"], r["way"]): r for r in rows}
    for auctions in dict.fromkeys(r["auctions"] for r in rows):
        for member in dict.fromkeys(r["member"] for r in rows):
            cells = [_time(by.get((auctions, member, way))) for way in ways]
            lines.append(f"| {auctions} | {member} | {' | '.join(cells)} | {_error(by[auctions, member, 'auto'])} |")
    return "\n".join(lines)


def steps(rows: Rows) -> str:
    """Steps by model, batch, precision and loss."""
    lines = [
        f"## A training step on {rows[0]['device']}",
        "",
        "The step of `fit`, gather to update, with 1.1 million values in 39 fields; medians, losses alternating.",
        "",
        "| model | batch | precision | log loss | rows a second | what each loss adds |",
        "|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((r["model"], r["batch"], r["precision"]) for r in rows):
        some = [r for r in rows if (r["model"], r["batch"], r["precision"]) == key]
        base = next(r for r in some if r["loss"] == "log_loss")
        adds = ", ".join(f"{r['loss']} {100 * float(r['overhead']):+.1f} %" for r in some if r is not base)
        rate = float(base["rows_per_second"]) / 1e6
        lines.append(f"| {key[0]} | {int(key[1]):,} | {key[2]} | {_time(base)} | {rate:.2f} M | {adds} |")
    lines += ["", *_reached(rows, "overhead", "target", _step, "", 100)]
    return "\n".join(lines)


def without_graph(rows: Rows) -> str:
    """Steps called from Python."""
    lines = [
        f"## A DeepFM step compared with plain torch on {rows[0]['device']}",
        "",
        "Log loss. *plain torch* is the same network with `nn.Embedding`, `nn.Linear` and torch's fused Adam.",
        "",
        "| batch | precision | method | a step | rows a second | times plain torch |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        same = (r["batch"], r["precision"], "plain torch")
        plain = next(float(x["ms"]) for x in rows if (x["batch"], x["precision"], x["way"]) == same)
        ms, rate = float(r["ms"]), float(r["rows_per_second"]) / 1e6
        cells = (f"{int(r['batch']):,}", r["precision"], r["way"], f"{1e3 * ms:,.0f} µs", f"{rate:.2f} M")
        lines.append(f"| {' | '.join(cells)} | {plain / ms:.1f} |")
    return "\n".join(lines)


def epoch(rows: Rows) -> str:
    """Whole epochs."""
    lines = [
        f"## An epoch over {int(rows[0]['ads']):,} ads on {rows[0]['device']}",
        "",
        f"`fit`, shuffling included, {int(rows[0]['vocabulary']):,} values; the paper reports 2,635 s for DeepFM with",
        "a batch of 256. *first steps*: twenty earlier steps, in which a process compiles its kernels.",
        "",
        "| model | batch | precision | loss | seconds | rows a second | first steps | training loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        rate = float(r["rows_per_second"]) / 1e6
        seconds, first = (f"{float(r[key]):.1f} s" for key in ("seconds", "first_seconds"))
        cells = (r["model"], f"{int(r['batch']):,}", r["precision"], r["loss"], seconds, f"{rate:.2f} M", first)
        lines.append(f"| {' | '.join(cells)} | {float(r['training_loss']):.5f} |")
    lines += ["", *_reached(rows, "seconds", "target_seconds", lambda r: f"batch {r['batch']}, {r['precision']}", "s")]
    return "\n".join(lines)


def side_by_side(rows: Rows) -> str:
    """Several trainings on one GPU."""
    alone = float(rows[0]["rows_per_second"])
    lines = [
        f"## Repeats side by side on {rows[0]['device']}",
        "",
        "DeepFM with batches of 256, each in a thread with its own stream.",
        "",
        "| at once | seconds | rows a second, together | times one |",
        "|---|---|---|---|",
    ]
    for r in rows:
        rate = float(r["rows_per_second"])
        lines.append(f"| {r['together']} | {float(r['seconds']):.2f} | {rate / 1e6:.2f} M | {rate / alone:.2f} |")
    return "\n".join(lines)


def precision(rows: Rows) -> str:
    """What mixed precision changes."""
    where = "emulated: factors rounded to 10 bits" if rows[0]["tf32"] == "emulated" else rows[0]["device"]
    lines = [
        f"## What mixed precision changes, TF32 {where}",
        "",
        f"DeepFM, one epoch of {int(rows[0]['rows']):,} rows, {rows[0]['seeds']} seeds, each trained in both;",
        "validation metrics.",
        "",
        "| metric | float32 | sd over seeds | mixed − float32 of the same seed | its sd |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        numbers = (f"{float(r[key]):.2g}" for key in ("seed_sd", "mixed_change", "mixed_change_sd"))
        lines.append(f"| {r['metric']} | {float(r['float32']):.5f} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _time(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    ms, star = float(row["ms"]), "" if row["graph"] == "True" else " *"
    return (f"{1e3 * ms:,.1f} µs" if ms < 1 else f"{ms:,.2f} ms") + star


def _error(row: dict[str, str] | None) -> str:
    return "" if row is None or row["error"] == "nan" else f"{float(row['error']):.0e}"


def _step(row: dict[str, str]) -> str:
    return f"{row['model']}, batch {int(row['batch']):,}, {row['precision']}, {row['loss']}"


def _reached(rows: Rows, key: str, target: str, name, unit: str, scale: float = 1) -> list[str]:  # type: ignore[no-untyped-def]
    """Targets, and whether they were met."""
    aimed = [r for r in rows if r[target]]
    unit = unit or "%"
    lines = [f"| target | at most ({unit}) | measured ({unit}) | met |", "|---|---|---|---|"]
    for r in aimed:
        found, most = scale * float(r[key]), scale * float(r[target])
        lines.append(f"| {name(r)} | {most:.3g} | {found:.3g} | {'yes' if found <= most else 'no'} |")
    return lines


SECTIONS = {
    "device_losses": (losses, "device losses"),
    "device_ragged": (ragged, "device ragged"),
    "device_steps": (steps, "device steps"),
    "device_without_graph": (without_graph, "device without_graph"),
    "device_epoch": (epoch, "device epoch"),
    "device_side_by_side": (side_by_side, "device side_by_side"),
    "precision": (precision, "precision"),
}
