"""Run folders: files that are complete or absent, a configuration that must match, and the origin of a run."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray

import bidwise
from bidwise import distributed
from bidwise.checks import InputError
from bidwise.json_files import from_json, read_json, read_object, read_toml, to_json
from bidwise.urls import check_on_disk, shown_command

BYTES_AT_ONCE = 2**24
CHECKSUMS = "checksums.json"
LOCK = ".lock"  # in a folder that a run writes to


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` at the end: a full disk or a kill leaves the old file.

    The next run overwrites files of a killed run; a second run at the same time gets an error.
    """
    part = path.with_name(f"{path.name}.part")
    with _locked(path.with_name(f"{path.name}{LOCK}"), "file", path):
        part.unlink(missing_ok=True)  # writing through a link would leave the folder
        try:
            yield part
            with part.open("rb") as file:  # onto the disk first: a power cut leaves the old file or the whole new one
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def _locked(file: Path, kind: str, place: Path) -> Iterator[None]:
    """Lock a file, and remove it at the end; the system drops the lock of a killed process."""
    with suppress(FileNotFoundError):
        if file.lstat().st_nlink > 1:
            file.unlink()  # another name of a file elsewhere, which would be emptied
    lock = FileLock(file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        found = f"found {place}, which is in use by another run; wait for it, or choose another {kind}"
        raise InputError(f"must be a {kind} that no other run writes to, {found}", "out") from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is locked: another process that has opened it notices that it is gone
            file.unlink()
        lock.release()


def take_room(path: Path) -> None:
    """Reserve the space of a file: a full disk is an error here, while writing to a mapped file would crash."""
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # systems that cannot promise
                path.unlink()
                raise


@contextmanager
def locked_folder(out: str | Path) -> Iterator[Path]:
    """``out`` as a folder that no other process writes to meanwhile; it is removed again if it stays empty."""
    folder = check_writable(out)
    made = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(folder / LOCK, "folder", folder):
            yield folder
    finally:
        with suppress(OSError):  # something is in it
            for path in made:
                path.rmdir()


def write_text(path: Path, text: str) -> None:
    """``text`` at ``path``, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """``value`` as JSON; numbers that are not finite are ``null``."""
    write_text(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


class Result(Protocol):
    """The result of a run: a frozen dataclass, with its kind and the format of its fields."""

    kind: ClassVar[str]
    format: ClassVar[int]


R = TypeVar("R", bound=Result)


def result_json(result: Result) -> dict[str, Any]:
    """A result as ``result.json`` contains it."""
    return {"kind": result.kind, "format": result.format, **to_json(result)}


def write_result(folder: Path, result: Result) -> None:
    """``folder/result.json``."""
    write_json(folder / "result.json", result_json(result))


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """``folder/checksums.json``, last of all: :func:`check_files` compares the files of a finished run with it."""
    write_json(folder / CHECKSUMS, {name: checksum(folder / name) for name in names if (folder / name).is_file()})


def check_files(folder: Path, names: Sequence[str]) -> None:
    """Raise unless these files of a run folder are the ones its run wrote, byte for byte."""
    if not (folder / CHECKSUMS).is_file():
        found = f"no {CHECKSUMS} in {folder}" if folder.is_dir() else f"no folder {folder}"
        words = f"must be the folder of a finished run of bidwise train, found {found}"
        raise InputError(f"{words}; train again, or restore it from a copy", "run")
    recorded = read_object(folder / CHECKSUMS)
    for path in (folder / name for name in names):
        here, there = checksum(path) if path.is_file() else None, recorded.get(path.name)
        if here != there:
            found = "no file" if here is None else f"checksum {here} instead of {there}"
            fix = "restore it from a copy, or train again in a new folder"
            raise InputError(f"{path} must be the file that its run wrote, found {found}; {fix}")


def read_result(path: Path, kind: type[R]) -> R:
    """The result of a kind in a run folder, or in a file of its own."""
    path = path / "result.json" if path.is_dir() else path
    return result_from_json(kind, read_json(path), str(path))


def result_from_json(kind: type[R], data: Any, where: str = "result.json") -> R:
    """Read the output of :func:`result_json`; files without a format are of format 1."""
    if not isinstance(data, dict):
        raise InputError(f"{where} must be a result written by bidwise, found {type(data).__name__}")
    if (found := data.get("format", 1)) != kind.format:
        fix = "make it again in a new folder, or read it with the version that wrote it"
        raise InputError(f"{where} must be of format {kind.format}, found {found}; {fix}")
    return from_json(kind, {name: value for name, value in data.items() if name not in ("kind", "format")}, where)


def save(path: Path, value: Any) -> None:
    """Tensors, numbers and words in dictionaries and lists, whole or not at all."""
    with whole_file(path) as part, part.open("wb") as file:
        torch.save(value, file)


def load(path: Path) -> Any:
    """The output of :func:`save`, on the CPU; an error names a damaged file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch has many words for it
        raise InputError(
            f"{path} must be a file that bidwise wrote, found a damaged one; restore it from a copy, or make it again"
        ) from error


def read_array(path: Path) -> NDArray[Any]:
    """A numpy file as an array over it, without pickles; an error names it if its header is wrong."""
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy has many words for it
        raise InputError(f"{path} must be a numpy file of numbers, found: {error}") from None
    return array


def checksum(*parts: Path | torch.Tensor | bytes | str) -> str:
    """CRC-32 of files, numbers and text, one after the other.

    >>> checksum("ab", b"c") == checksum("abc")
    True
    """
    crc = 0
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                while block := file.read(BYTES_AT_ONCE):
                    crc = zlib.crc32(block, crc)
        elif isinstance(part, torch.Tensor):
            crc = zlib.crc32(part.detach().cpu().contiguous().view(torch.uint8).numpy().data, crc)
        else:
            crc = zlib.crc32(part.encode() if isinstance(part, str) else part, crc)
    return f"{crc:08x}"


def open_folder(out: str | Path, config: Mapping[str, Any]) -> Path:
    """``out``, made if need be, with ``config.toml`` in it; raises for a folder of another configuration."""
    folder = check_writable(out)
    text, path = to_toml(config), folder / "config.toml"
    if path.exists():
        check_same_run(folder, read_toml(path), tomllib.loads(text))
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return folder


def check_same_run(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise unless the run in a folder has this configuration."""
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if differing:
        words = ", ".join(f"{key} = {there.get(key)!r} there and {here.get(key)!r} here" for key in differing)
        fix = "choose another folder, or delete that one"
        raise InputError(f"must be a new folder or one of the same run, found {folder} with {words}; {fix}", "out")


def check_writable(out: str | Path) -> Path:
    """``out`` as a path, if it is or can become a folder that files can be written to; it is not created yet."""
    check_on_disk("out", out, "a folder", "copy the folder afterwards")
    folder = Path(out)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"must be a folder, found the file {there}", "out")
    return folder


def to_toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML, mappings as tables; keys without a value are dropped."""
    values = _with_values(to_json(config))
    try:
        import tomli_w
    except ImportError:  # a GPU machine may have only torch and numpy: a flat value of JSON is also valid TOML
        if any(isinstance(value, dict) for value in values.values()):
            raise
        return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return tomli_w.dumps(values)


def _with_values(value: Any) -> Any:
    return {k: _with_values(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and command of this process; ``environment.json`` of a run folder.

    Run folders are passed on: the user's home is ``~`` in the command, and URLs have no password and no signature.
    """
    program = Path(sys.argv[0])
    name = shown_command([str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)])
    if program.stem in ("bidwise", "__main__"):
        name = "python -m paper" if program.absolute().parent.name == "paper" else "bidwise"
    home = os.path.expanduser("~")
    typed = f"{name} {shown_command(sys.argv[1:])}".rstrip()
    return {
        "bidwise": bidwise.__version__,
        "commit": _commit(),
        "command": typed.replace(home, "~") if len(home) > 1 else typed,
        "machine": _processor(torch.device(device)),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **({"ranks": distributed.count()} if distributed.count() > 1 else {}),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the sources, with ``+`` if the checkout has changes; ``None`` outside of a checkout."""
    tracked = ["ls-files", "--error-unmatch", "__init__.py"]  # fails if bidwise is installed inside another project
    try:
        for words in (tracked, ["describe", "--always", "--dirty=+", "--exclude=*"]):
            run = subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.decode().strip()
