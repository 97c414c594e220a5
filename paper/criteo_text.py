"""Text in the layout of the Criteo Display Advertising Challenge: fields, lines, and files of simulated ads.

Integers become categories by one of two maps. Missing integers are id 1 in both; negative ones (there are some, -1 to
-3) are at most 2 and stay what they are, each with a token of its own.

* ``printed``, the paper's: x for x <= 2 and floor(log2 x) above. As printed, 3 becomes 1 and 4 to 7 become 2: they
  share the tokens of the values 1 and 2.
* ``winners``, of the challenge's winners, whom the paper follows: x for x <= 2 and floor((ln x)^2) above, with tokens
  of their own: 3 and 4 become ``ln2:1``, never the token of the value 1.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError, check_seed, check_whole
from bidwise.data.store import SPLITS
from bidwise.run_folder import whole_file
from bidwise.workers import Progress, ahead, cores
from paper.criteo_world import CHUNK, SHARED_TAIL, Sample, numpy_uniform, sampled

INTEGERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
NAMES = (*INTEGERS, *CATEGORIES)

VALUES = 2**24  # a category's number takes three bytes of its name, its column the fourth
ABOVE = 3  # first token of the winners' logarithms
WORKERS = 4  # chunks in work at once, at most: each takes some 60 MB


def split_sizes(rows: int, argument: str = "rows") -> dict[str, int]:
    """Ads of training, validation and test: a tenth for each of the last two, to the nearest, training has the rest.

    >>> split_sizes(45_840_617)
    {'train': 36672493, 'valid': 4584062, 'test': 4584062}
    """
    tenth = (rows + 5) // 10
    if tenth < 1:
        raise InputError(f"must be enough for every part of the split 8:1:1, found {rows:,}", argument=argument)
    return dict(zip(SPLITS, (rows - 2 * tenth, tenth, tenth), strict=True))


def printed(x: NDArray[np.int64]) -> NDArray[np.int32]:
    """x for x <= 2, floor(log2 x) above.

    >>> printed(np.array([-2, 0, 2, 3, 4, 7, 8])).tolist()
    [-2, 0, 2, 1, 2, 2, 3]
    """
    exponent = np.frexp(np.maximum(x, 1).astype(np.float64))[1] - 1  # exact, where a logarithm is rounded
    return np.where(x <= 2, x, exponent).astype(np.int32)


def winners(x: NDArray[np.int64]) -> NDArray[np.int32]:
    """x for x <= 2, 3 + floor((ln x)^2) above: the 3 keeps the tokens apart.

    >>> winners(np.array([-2, 0, 2, 3, 4, 5, 100])).tolist()
    [-2, 0, 2, 4, 4, 5, 24]
    """
    logarithm = np.log(np.maximum(x, 1))
    return np.where(x <= 2, x, ABOVE + np.floor(logarithm * logarithm)).astype(np.int32)


MAPS = {"winners": winners, "printed": printed}  # integers to tokens


def hex_names(column: int, numbers: NDArray[Any]) -> NDArray[np.uint32]:
    """Names of the values ``numbers`` of category ``column``, to be written as eight hex digits.

    A bijection of 32 bits (the last steps of MurmurHash3: shifts and odd factors, each of which can be undone), applied
    to 2^24 (column + 1) + number: no two values of any columns share a name, and no vocabulary is held.

    >>> [f"{name:08x}" for name in hex_names(0, np.arange(3))]
    ['47ba7b95', '4a232301', 'e43cf8d1']
    """
    mixed = numbers.astype(np.uint32)
    mixed += np.uint32(VALUES * (column + 1))
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def lines(clicks: NDArray[Any], values: NDArray[Any], missing: NDArray[np.bool_]) -> bytes:
    r"""Text of the ads: ``label, I1 ... I13, C1 ... C26`` between tabs, missing values empty.

    Args:
        clicks: ``(ads,)``, 0 or 1.
        values: ``(39, ads)``, integers of at most eight digits, then numbers of categories from 0, below 2^24.
        missing: ``(39, ads)``.

    >>> lines(np.array([1]), np.full((39, 1), -2), np.arange(39)[:, None] > 1)[:10]
    b'1\t-2\t-2\t\t\t'
    """
    import polars as pl  # GPU machines draw ads without it

    digits = pl.Series([f"{number:04x}" for number in range(2**16)])
    table = [pl.Series("label", clicks.astype(np.uint8))]
    for at, name in enumerate(NAMES):
        if at < len(INTEGERS):
            column = pl.Series(values[at])
        else:
            names = hex_names(at - len(INTEGERS), values[at])
            column = digits.gather(names >> np.uint32(16)) + digits.gather(names & np.uint32(0xFFFF))
        table.append(pl.select(pl.when(pl.Series(~missing[at])).then(column).alias(name)).to_series())
    text = io.BytesIO()
    pl.DataFrame(table).write_csv(text, include_header=False, separator="\t", quote_style="never")
    return text.getvalue()


def simulate(
    out: str | Path,
    rows: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> float:
    """Write ``rows`` ads to ``out`` in the raw layout, gzipped if it ends in .gz; their true CTR to ``out``.ctr.npy.

    Returns the click rate. A longer file begins with the lines of a shorter one. What makes people click is the
    same for all seeds: the world ``shared_tail`` of :data:`~paper.criteo_world.CRITEO_WORLDS`.
    """
    check_whole("rows", rows, 1)
    check_seed("seed", seed)
    out = Path(out)
    if out.exists() and not out.is_file():
        raise InputError(f"must be a file to write, found {out}, which is none", argument="out")
    out.parent.mkdir(parents=True, exist_ok=True)
    truth, clicks = out.with_name(out.name + ".ctr.npy"), 0

    def work(number: int) -> tuple[int, Sample, bytes]:
        whole = sampled(SHARED_TAIL, numpy_uniform(seed, number), torch.zeros(CHUNK, dtype=torch.float64))
        chunk = Sample(*(column[..., : rows - number * CHUNK] for column in whole))
        block = lines(chunk.clicks.numpy(), chunk.values.numpy(), chunk.missing.numpy())
        return number, chunk, gzip.compress(block, 1, mtime=0) if out.suffix == ".gz" else block

    with (
        whole_file(out) as text_part,
        whole_file(truth) as truth_part,
        text_part.open("wb") as text,
        truth_part.open("wb") as numbers,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(numbers, header)
        for number, chunk, block in ahead(work, range(-(-rows // CHUNK)), min(WORKERS, cores())):
            text.write(block)
            numbers.write(chunk.ctr.numpy().astype("<f4").tobytes())
            clicks += int(chunk.clicks.sum())
            if progress is not None:
                progress("simulating", min(1.0, (number + 1) * CHUNK / rows))
    return clicks / rows
