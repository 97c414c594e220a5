"""Run folders: files that are whole or absent, a configuration that must match, and where a run was made."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
import tomllib
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout, lock_descriptor
from numpy.typing import NDArray

import bidwise
from bidwise import distributed
from bidwise.checks import InputError
from bidwise.json_files import from_json, read_json, read_object, read_toml, to_json
from bidwise.urls import check_on_disk, shown_command

BYTES_AT_ONCE = 2**24
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHECKSUMS = "checksums.json"
LOCK = ".lock"  # in a folder that a run writes to: who that is


@contextmanager
def whole_file(path: Path, *, scratch: bool = False) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` at the end: a full disk or a kill leaves the old file.

    The next run overwrites the part that a killed run left; a second run at the same time gets an error. Two workers
    may write a ``scratch`` file at once, under different names; it is not forced onto the disk.
    """
    part = path.with_name(f"{path.name}{'.' + uuid.uuid4().hex if scratch else ''}.part")
    held = None if scratch else _own(part)
    try:
        with named(path):
            yield part
        if held is not None:  # onto the disk first: a power cut leaves the old file or the whole new one
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # the name is free again after a rename: another run may have taken it
        part.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)


class FullDisk(OSError):
    """A disk or quota without room for a file, with the name of the file, which Python, numpy and polars leave out."""


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise :class:`FullDisk` if there is no room for ``path``."""
    try:
        yield
    except Exception as error:
        number, text = getattr(error, "errno", None), str(error)
        if words := re.search(r"\(os error (\d+)\)| requested and \d+ written", text):  # polars; numpy
            number = int(words[1] or errno.ENOSPC)
        elif "transport error" in text and path.parent.exists() and not shutil.disk_usage(path.parent).free:
            number = errno.ENOSPC  # polars, at the end of a Parquet file
        if number in FULL and getattr(error, "filename", None) is None:
            raise FullDisk(f"{path} could not be written: {os.strerror(number)}") from None
        raise


def _own(part: Path) -> int:
    """The empty file ``part``, open and locked: two runs that write one file would rename each other's half."""
    while True:
        with suppress(FileNotFoundError):  # a link would lead out of the folder
            state = part.lstat()
            if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
                part.unlink()
        held = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        locked = True
        with suppress(OSError):  # a file system without locks
            locked = lock_descriptor(held, blocking=False)
        if locked and part.exists() and os.path.samestat(os.fstat(held), part.stat()):
            os.truncate(held, 0)
            return held
        os.close(held)
        if not locked:
            raise InputError(
                f"must be a file that no other run writes to, found {part.with_suffix('')}, which another run is "
                "writing; wait for it, or choose another name",
                argument="out",
            )  # otherwise its writer has renamed it since it was opened


def take_room(path: Path) -> None:
    """Reserve the space of a file: a full disk is an error here, where writing to a mapped file would be a crash."""
    if hasattr(os, "posix_fallocate"):
        try:
            with named(path), path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # systems that cannot promise
                path.unlink()
                raise


@contextmanager
def locked_folder(out: str | Path) -> Iterator[Path]:
    """``out`` as a folder that no other process writes to meanwhile; it is removed again if it stays empty.

    The system drops the lock when the process ends, even if it is killed.
    """
    folder = check_writable(out)
    made = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"must be a folder that can be made, found {folder}: {error.strerror}", argument="out"
        ) from None
    file = folder / LOCK
    lock = FileLock(file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        holder = ""
        with suppress(OSError, ValueError):
            holder = ", " + " ".join(file.read_text(encoding="utf-8").split())[:200]
        raise InputError(
            f"must be a folder that no other run writes to, found {folder}, which is in use by another run{holder}; "
            "wait for it, or choose another folder",
            argument="out",
        ) from None
    native = isinstance(lock, FileLock)  # otherwise the system has no locks, and the content of the file is filelock's
    try:
        with suppress(OSError):  # a full disk is reported by the next file
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            if native:
                file.write_text(f"process {os.getpid()} on {platform.node()} since {since}\n", encoding="utf-8")
        yield folder
    finally:
        with suppress(OSError):
            if native:  # while it is locked: another process that has opened it notices that it is gone
                file.unlink()
        lock.release()
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
    """What a run found: a frozen dataclass that ``result.json`` holds, with its kind and the format of its fields."""

    kind: ClassVar[str]
    format: ClassVar[int]


R = TypeVar("R", bound=Result)


def result_json(result: Result) -> dict[str, Any]:
    """A result as ``result.json`` holds it."""
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
        words = f"must be the folder of a finished run of bidwise train, found no {CHECKSUMS} in {folder}"
        raise InputError(f"{words}; train again, or restore the file from a copy", argument="run")
    recorded = read_object(folder / CHECKSUMS)
    for name in names:
        path, there = folder / name, recorded.get(name)
        here = checksum(path) if path.is_file() else None
        if here != there:
            found = "no file" if here is None else f"checksum {here} instead of {there}"
            fix = "restore it from a copy, or train again in a new folder"
            raise InputError(f"{path} must be the file that its run wrote, found {found}; {fix}")


def read_result(path: Path, kind: type[R]) -> R:
    """The result of a kind in a run folder, or in a file of its own."""
    path = path / "result.json" if path.is_dir() else path
    return result_from_json(kind, read_json(path), str(path))


def result_from_json(kind: type[R], data: Any, where: str = "result.json") -> R:
    """What :func:`result_json` made; files without a format are of format 1."""
    if not isinstance(data, dict):
        raise InputError(f"{where} must be a result that bidwise wrote, found {type(data).__name__}")
    found, fix = data.get("format", 1), "make it again in a new folder, or read it with the version that wrote it"
    if not isinstance(found, int) or found > kind.format:
        raise InputError(f"{where} must be of format {kind.format} or older, found {found}; upgrade bidwise")
    if found < kind.format:
        raise InputError(f"{where} must be of format {kind.format}, found {found}, of an older bidwise; {fix}")
    return from_json(kind, {name: value for name, value in data.items() if name not in ("kind", "format")}, where)


def save(path: Path, value: Any) -> None:
    """Tensors, numbers and words in dictionaries and lists, whole or not at all."""
    with whole_file(path) as part, part.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # torch's word for a full disk
            raise FullDisk(f"{path} could not be written; is the disk full? {str(error).splitlines()[0]}") from error


def load(path: Path) -> Any:
    """What :func:`save` wrote, on the CPU; an error that names the file where it is damaged."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch has many words for it
        raise InputError(
            f"{path} must be a file that bidwise wrote, found a damaged one; restore it from a copy, or make it again"
        ) from error


def read_array(path: Path) -> NDArray[Any]:
    """A numpy file as an array over it, without pickles; an error names it, whatever its header claims."""
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
    """``out``, made if need be, with ``config.toml`` in it; refuses a folder of another configuration.

    A run of the same configuration resumes, so what is there is left alone.
    """
    folder = check_writable(out)
    text = to_toml(config)
    path = folder / "config.toml"
    if path.exists():
        check_same(folder, read_toml(path), tomllib.loads(text))
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return folder


def check_same(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise unless the run in a folder has this configuration."""
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if "experiment" in differing:
        differing = ["experiment"]
    if differing:
        words = ", ".join(f"{key} = {there.get(key)!r} there and {here.get(key)!r} here" for key in differing)
        raise InputError(
            f"must be a new folder or one of the same run, found {folder} with {words}; "
            "choose another folder, or delete that one",
            argument="out",
        )


def check_writable(out: str | Path) -> Path:
    """``out`` as a path, if it is or can become a folder that files can be written to; nothing is made yet."""
    check_on_disk("out", out, "a folder", "copy the folder afterwards")
    folder = Path(out)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"must be a folder, found the file {there}", argument="out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"must be a folder that can be written to, found {there}, which cannot", argument="out")
    return folder


def to_toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML, mappings as tables; keys without a value are left out."""
    values = _toml_value(config)
    try:
        import tomli_w
    except ImportError:  # a GPU machine may have torch and numpy alone: what JSON calls a flat value is also TOML's
        if any(isinstance(value, dict) for value in values.values()):
            raise
        return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return tomli_w.dumps(values)


def _toml_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _toml_value(entry) for key, entry in value.items() if entry is not None}
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_toml_value(entry) for entry in value]
    return value if isinstance(value, bool | int | float) else str(value)


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and command of this process; ``environment.json`` of a run folder.

    Run folders are passed on: the user's home is ``~`` in the command, and URLs have no password and no signature.
    """
    program, *arguments = sys.argv
    if Path(program).stem in ("bidwise", "__main__"):
        package = Path(program).absolute().parent.name
        program = f"python -m {package}" if Path(program).stem == "__main__" and package != "bidwise" else "bidwise"
    elif Path(program).is_relative_to(Path.cwd()):  # folders above a project are nobody's business
        program = str(Path(program).relative_to(Path.cwd()))
    typed = shown_command([program, *arguments])
    home = os.path.expanduser("~")
    if len(home) > 1:
        typed = typed.replace(home, "~")
    return {
        "bidwise": bidwise.__version__,
        "commit": _commit(),
        "command": typed,
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
    """The commit of the sources, ``+`` where they were changed since; ``None`` outside of a checkout."""
    here = Path(__file__).parent
    tracked = ["ls-files", "--error-unmatch", "__init__.py"]  # not so where bidwise is installed inside another project
    asked = (tracked, ["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "."])
    try:
        _, commit, changes = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")
