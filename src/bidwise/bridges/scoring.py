"""Scores by an exported model: with numpy and onnxruntime, for servers that have no more."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.errors import InputError
from bidwise.json_files import read_object
from bidwise.values import Combinations, ListVocabulary, Numbers, Vocabulary, check_columns

SCORER_FORMAT = "bidwise scorer"
SCORER_VERSION = 4
INPUT, OUTPUT = "ids", "ctr"
_AT_ONCE = 4096  # ads


class Scorer:
    """An exported model: columns in, CTR out. Threads may share it.

    Args:
        file: the output of `bidwise export`, ``ctr.onnx``.
        encoder: the JSON file that maps columns to ids; by default ``ctr.json`` next to it.
        threads: of onnxruntime for one call; one is best for a few hundred ads.
    """

    def __init__(self, file: str | Path, *, encoder: str | Path | None = None, threads: int = 1) -> None:
        onnxruntime = import_module("onnxruntime")
        self.file = Path(file)
        self.about = _described(self.file, Path(encoder) if encoder else self.file.with_suffix(".json"))
        plain = [column for column in self.about["columns"] if column["kind"] != "cross"]
        self.columns = {str(column["name"]): _ids(column) for column in plain}
        self.crosses = [_cross(column, list(self.columns)) for column in self.about["columns"][len(plain) :]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with self._runs():
            self.session = onnxruntime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])

    def score(self, columns: Mapping[str, Any]) -> NDArray[np.float64]:
        """The CTR of every ad, from columns by name: arrays or lists, all of one length.

        Columns that the model does not know are not read. Values that training did not see count as rare.
        """
        return self.ctr(self.encode(columns))

    def encode(self, columns: Mapping[str, Any]) -> NDArray[np.int64]:
        """Ids of ads, ``(ads, columns)``."""
        check_columns(self.columns, columns, "the mapping")
        ids: list[list[int]] = []
        lengths, places = {}, []
        for name, column in self.columns.items():
            bag = isinstance(column, ListVocabulary)
            try:
                found: Any = column.ids(_listed(columns[name], bag))
            except InputError as error:
                raise InputError(f"column {name!r}: {error}") from None
            places.append(slice(len(ids), len(ids) + len(found)) if bag and len(found) > 1 else len(ids))
            ids += found if bag else [found]
            lengths[name] = len(ids[-1])
        if len({*lengths.values()}) > 1:
            words = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise InputError(f"columns must be of one length, found {words}")
        plain = np.array(ids, dtype=np.int64)
        crossed = [table.ids([plain[places[at]] for at in of]) for of, table in self.crosses]
        return np.vstack([plain, *crossed]).T

    def ctr(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The CTR of ads that are ids already."""
        blocks = [np.ascontiguousarray(ids[at : at + _AT_ONCE]) for at in range(0, len(ids), _AT_ONCE)]
        with self._runs():
            scores = [self.session.run([OUTPUT], {INPUT: block})[0].reshape(len(block)) for block in blocks]
            ctr = np.concatenate([np.zeros(0), *scores], dtype=np.float64)
        if not np.isfinite(ctr).all():
            row = int((~np.isfinite(ctr)).argmax())
            raise InputError(f"{self.file} must give finite CTRs, found {ctr[row]} in row {row}; export another model")
        return ctr

    @contextmanager
    def _runs(self) -> Iterator[None]:
        """onnxruntime's complaint about a file, as an error that names it."""
        try:
            yield
        except Exception as error:  # onnxruntime has many words for it
            found = str(error).strip().partition("\n")[0]
            raise InputError(f"{self.file} must be a model of bidwise export, found that it fails: {found}") from None


def pair_checksum(file: Path, encoder: Path) -> str:
    """CRC-32 of an ONNX file followed by its JSON file up to the last key, "checksum", which has it."""
    before, _, _ = encoder.read_bytes().rpartition(b'"checksum"')
    return f"{zlib.crc32(before, zlib.crc32(file.read_bytes())):08x}"


def _ids(column: Mapping[str, Any]) -> Vocabulary | Numbers:
    if column["kind"] == "numeric":
        return Numbers(column["edges"])
    words = column["vocabulary"], column["spelling"]
    if column["kind"] == "categorical":
        return Vocabulary(*words)
    return ListVocabulary(*words, slots=column["slots"], separator=column["separator"])


def _cross(column: Mapping[str, Any], names: list[str]) -> tuple[list[int], Combinations]:
    """Which columns are combined, and how."""
    words = [int(word) for word in column["vocabulary"]]
    return [names.index(name) for name in column["of"]], Combinations(words, column["sizes"], column["groups"])


def _listed(values: Any, lists: bool = False) -> list[Any]:
    """Values of Python's own types; of arrays with text, numbers or booleans, or ``lists`` of them."""
    if isinstance(values, list | tuple) or (lists and hasattr(values, "__array__")):
        return list(values)
    nullable = hasattr(getattr(values, "dtype", None), "numpy_dtype")  # in pandas; numpy makes decimals of large ids
    array = np.asarray(values, dtype=object if nullable else None)
    if array.ndim != 1 or array.dtype.kind not in "biufUO":
        raise InputError(f"must be a list or an array of text, numbers or booleans, found {array.dtype} {array.shape}")
    narrow = array.dtype.kind == "f" and array.dtype.itemsize < 8  # 0.1 is another number with 64 bits
    listed: list[Any] = array.astype(str).astype(np.float64).tolist() if narrow else array.tolist()
    return listed


def _described(file: Path, encoder: Path) -> dict[str, Any]:
    """The content of the JSON next to a model, if it belongs to this model."""
    for path in (file, encoder):
        if not path.is_file():
            raise InputError(f"must be a model of bidwise export with its .json, found no {path}", argument="file")
    about = read_object(encoder)
    if about.get("format") != SCORER_FORMAT or about.get("version") != SCORER_VERSION:
        raise InputError(
            f"{encoder} must be a scorer of version {SCORER_VERSION}, found something else; export it again"
        )
    if about.get("checksum") != pair_checksum(file, encoder):
        raise InputError(f"{encoder} and {file} must be of one export, found another checksum; export again")
    return about
