"""The configuration of a training run: three sections of a TOML file, options above it, ``--set`` above both."""

from __future__ import annotations

import inspect
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bidwise import json_files
from bidwise.auctions import slot_multipliers
from bidwise.checks import InputError, check_name, check_positive, check_seed, check_whole
from bidwise.losses.named import LOSSES, needs_teacher
from bidwise.models import MODELS
from bidwise.run_folder import check_same_run, check_writable
from bidwise.study.compare import CONTESTANTS
from bidwise.study.recipe import BASELINE, Recipe, has_lam
from bidwise.training.arguments import Options
from bidwise.urls import check_on_disk, shown

RECIPES = AUTO, SINGLE, ENSEMBLE, DISTILLED = ("auto", "single", "ensemble", "distilled")
REFRESHED = "refreshed"  # name of a model that continues another run
CRITERIA = ("welfare", "log_loss", "auc")
FEATURES = ("numeric", "categorical", "bag", "ignore")  # options with columns that have no role
_OWN = {"click", "bid", "weight", "position", *FEATURES}  # uses of columns that have no other


@dataclass(frozen=True)
class Data:
    """The table and the roles of its columns; columns without a role are features."""

    click: str = ""
    bid: str | None = None  # a column, or a number that all ads bid; None: 1
    table: str | None = None  # the file or URL, if there is one
    separator: str | None = None  # of a text file; None: by its ending
    header: bool = True  # whether its first line has the names of columns
    auction: tuple[str, ...] = ()  # the columns that name it
    numeric: tuple[str, ...] = ()  # features with a given type
    categorical: tuple[str, ...] = ()
    bag: tuple[str, ...] = ()  # text with several values
    bag_separator: str = "|"  # between them
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # features that may tell the clicks all by themselves
    time: str | None = None
    time_format: str | None = None  # of text, as strptime has it; None: ISO, or numbers
    teacher: str | None = None
    weight: str | None = None
    position: str | None = None
    slots: tuple[float, ...] = (1.0,)
    sampling_rate: float | None = None
    truth: str | None = None
    auction_size: int = 256  # at most, without an auction column
    bins: int = 32
    min_count: int | None = None  # None: by the number of training rows

    def __post_init__(self) -> None:
        if not self.click:
            raise InputError(
                "must name the column of clicks, found none: --click COLUMN, or in [data]", argument="click"
            )
        if self.time_format is not None and self.time is None:
            raise InputError("needs {}, the column of times", argument="time_format", others=["time"])
        uses = [*self.roles, *((use, column) for use in FEATURES for column in getattr(self, use))]
        for at, (use, column) in enumerate(uses):
            others = [other for other, its in uses[:at] if its == column and _OWN & {use, other}]
            if others:
                words = f"must be a column of its own, found {column!r}, which is also of {{}}"
                raise InputError(words, argument=use, others=others)
        for column in self.keep:
            if column in [*self.ignore, *(its for _, its in self.roles)]:
                raise InputError(f"must name features, found {column!r}, which is none", argument="keep")
        if not self.bag_separator:
            raise InputError("must be one character or more, found none", argument="bag_separator")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise InputError(f"must be in (0, 1], found {self.sampling_rate}", argument="sampling_rate")
        if (self.sampling_rate or 1) < 1 and self.auction:
            words = "cannot be combined with {}: sampled auctions lack ads"
            raise InputError(words, argument="auction", others=["sampling_rate"])
        if self.auction and self.auction_size != type(self).auction_size:
            raise InputError("cannot be combined with {}", argument="auction_size", others=["auction"])
        slot_multipliers(self.slots)
        if self.position is not None and len(self.slots) < 2:
            words = "needs slots, the multiplier of each slot, such as --slots 1,0.8,0.6; found none"
            raise InputError(words, argument="position")
        for name, least in (("auction_size", 2), ("bins", 2), ("min_count", 1)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)

    @property
    def roles(self) -> list[tuple[str, str]]:
        """Roles with their columns, which are no features."""
        names = ("click", "bid", "auction", "time", "teacher", "weight", "position", "truth")
        columns = {role: its if isinstance(its := getattr(self, role), tuple) else (its,) for role in names}
        return [(role, column) for role, its in columns.items() for column in its if column]


@dataclass(frozen=True)
class ModelSettings:
    """The model; missing keys are chosen by the search, or take the model's defaults."""

    name: str | None = None
    embedding: int | None = None
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None
    cross: int | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if not any(map(self.may_be, MODELS)):
            name = self.name or next(iter(MODELS))
            own = options_of(name)
            wrong = next(option for option in self.options if option not in own)
            raise InputError(f"is no option of {name}, which has {', '.join(own)}", argument=wrong)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were set, as the model's class takes them."""
        return {name: value for name, value in vars(self).items() if name != "name" and value is not None}

    def may_be(self, name: str) -> bool:
        """Whether a model of that name is meant, and has all options that were set."""
        return self.name in (None, name) and set(self.options) <= set(options_of(name))


def options_of(model: str) -> list[str]:
    """The keys of [model] that a model has."""
    check_name("model", model, MODELS)
    return [f.name for f in fields(ModelSettings) if f.name in inspect.signature(MODELS[model]).parameters]


@dataclass(frozen=True)
class Train:
    """How the model is trained; missing settings of the baseline are chosen by the search."""

    recipe: str = SINGLE
    loss: str | None = None  # None: log_loss; of recipe distilled: distilled
    budget_seconds: float | None = None  # of CPU, for the search; None: by the table, but no search for a named loss
    crosses: bool = True  # look for combinations of columns
    refit: bool = True  # serve the recipe trained on all rows
    members: int | None = None  # None: 4, of an ensemble
    calibrate: bool = True
    metric: str = "log_loss"  # of few auctions welfare is mostly chance
    epochs: float | None = None
    patience: float | None = None  # None: 2 with a constant learning rate, else no end before the last epoch
    every: float = 0.5
    batch_size: int | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    l2: float | None = None
    precision: str | None = None  # None: float32
    clip: float | None = None  # None: no clipping
    lam: float | None = None  # None: the loss's, 3
    sigma: float | None = None  # None: the loss's, 1
    seed: int = 0
    continue_from: str | None = None  # folder of the run to continue

    def __post_init__(self) -> None:
        check_name("recipe", self.recipe, RECIPES)
        loss = self.loss or (DISTILLED if self.recipe == DISTILLED else BASELINE)
        check_name("loss", loss, LOSSES)
        object.__setattr__(self, "loss", loss)
        if self.recipe == DISTILLED and not needs_teacher(loss):
            taught = ", ".join(filter(needs_teacher, LOSSES))
            raise InputError(f"of recipe distilled must be one of {taught}, found {loss}", argument="loss")
        given = {name: value for name, value in vars(self).items() if value is not None}
        check_name("metric", self.metric, CRITERIA)
        elsewhere = {"recipe": self.recipe in (AUTO, DISTILLED), "budget_seconds": bool(self.budget_seconds)}
        elsewhere["crosses"] = not self.crosses
        for name in [name for name, wrong in elsewhere.items() if wrong and self.continue_from is not None]:
            raise InputError("cannot be combined with --continue; remove it", argument=name)
        check_whole("members", given.get("members", 2), 2)
        check_positive("budget_seconds", given.get("budget_seconds", 0.0), or_zero=True)
        options = [f.name for f in fields(Options)]
        Options(**{name: given.get(name, getattr(Recipe, name)) for name in options})
        check_positive("lam", given.get("lam", 0), or_zero=True)
        check_positive("sigma", given.get("sigma", 1))
        for name, of in self.idle.items():
            if name in given:
                raise InputError(f"is of {of}, found recipe {self.recipe} with loss {loss}", argument=name)
        check_seed("seed", self.seed)

    @property
    def searches(self) -> bool:
        """Whether settings are searched: by default for a single model of the log loss."""
        if self.budget_seconds is not None:
            return self.budget_seconds > 0
        plain = self.recipe == SINGLE and self.loss == BASELINE
        return self.continue_from is None and (self.recipe == AUTO or plain)

    @property
    def name(self) -> str:
        """The name of the recipe: a single model has the name of its loss."""
        if self.continue_from is not None:
            return REFRESHED
        return str(self.loss if self.recipe == SINGLE else self.recipe)

    @property
    def contestants(self) -> tuple[str, ...]:
        """The candidates of recipe auto: losses, and ``distilled``, the recipe."""
        if self.recipe != AUTO:
            return ()
        return CONTESTANTS if self.loss == BASELINE else (str(self.loss),)

    @property
    def distils(self) -> bool:
        """Whether a student learns from an ensemble."""
        return DISTILLED in (self.recipe, *self.contestants)

    @property
    def idle(self) -> dict[str, str]:
        """Keys without effect on the recipe and its loss, with the settings they belong to."""
        losses = self.contestants or (str(self.loss),)
        pairwise = any(map(has_lam, losses))
        keys = {
            "lam": (pairwise, "losses over pairs, as log_plus"),
            "sigma": (pairwise, "losses over pairs, as log_plus"),
            "members": (self.distils or self.recipe == ENSEMBLE, "recipes ensemble and distilled"),
        }
        return {key: of for key, (used, of) in keys.items() if not used}


@dataclass(frozen=True)
class Config:
    """A training run, resolved.

    >>> config = resolved({"data": {"click": "y", "bid": "b"}}, {"train.loss": "log_plus"}, ["train.epochs=3"])
    >>> config.train.loss, config.train.recipe, config.train.epochs
    ('log_plus', 'single', 3)
    """

    data: Data
    model: ModelSettings = field(default_factory=ModelSettings)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        if self.train.continue_from is not None and needs_teacher(str(self.train.loss)) and self.data.teacher is None:
            words = f"must need no teacher if a run continues another, found {self.train.loss}; name a column of"
            raise InputError(f"{words} logged predictions, --teacher COLUMN", argument="loss")

    def flat(self) -> dict[str, Any]:
        """``section.key -> value`` without missing keys; the table's URL without password and signature."""
        values = {f"{at}.{key}": x for at in SECTIONS for key, x in vars(getattr(self, at)).items() if x is not None}
        values = {key: list(x) if isinstance(x, tuple) else x for key, x in values.items()}
        return values if self.data.table is None else values | {"data.table": shown(self.data.table)}


SECTIONS: dict[str, Any] = {"data": Data, "model": ModelSettings, "train": Train}


def nested(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By section, as a file has it: ``{"train.epochs": 3} -> {"data": {}, "model": {}, "train": {"epochs": 3}}``."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections[section][key] = value
    return sections


def read_config(path: Path) -> dict[str, Any]:
    """The sections of a configuration file, or an error that names it."""
    check_on_disk("the configuration", path, "a file", "copy it first")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    return json_files.read_toml(path, "a TOML file")


def resolved(
    sections: Mapping[str, Any], options: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
) -> Config:
    """The configuration of a file's sections, options ``{"data.click": "y"}`` above them, and settings
    ``section.key=value`` above both.

    An unknown name is rejected with the nearest one. An error names an option as ``seed``, any other as ``train.seed``.
    """
    values: dict[str, Any] = {}
    try:
        for section, part in sections.items():
            check_name("a section of the configuration", section, SECTIONS)
            if not isinstance(part, Mapping):
                raise InputError(f"[{section}] must be a section with keys, found {part!r}")
            values |= {f"{section}.{key}": value for key, value in part.items()}
        values |= dict(options or {}) | dict(map(_assignment, settings))
        values = {name: _typed(name, value) for name, value in values.items()}
        return Config(**{section: SECTIONS[section](**part) for section, part in nested(values).items()})
    except InputError as error:
        key = error.argument if "." in error.argument else option_key(error.argument)
        if key in (options or {}):
            error.argument = "model" if key == "model.name" else key.partition(".")[2]
        elif key in values:
            error.argument = key
        raise


def _assignment(setting: str) -> tuple[str, Any]:
    """``train.epochs=3 -> ("train.epochs", 3)``."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or "." not in name:
        words = f"must be section.key=value, as train.learning_rate=3e-4, found {setting!r}"
        raise InputError(words, argument="settings")
    return name, _value(text)


def option_key(name: str) -> str:
    """The section of an option: ``click -> data.click``, ``model -> model.name``, ``loss -> train.loss``."""
    if name == "model":
        return "model.name"
    for section, part in SECTIONS.items():
        if name in part.__dataclass_fields__:
            return f"{section}.{name}"
    return f"data.{name}"  # unknown: rejected with the nearest known name


def open_run(out: str | Path, config: Config) -> Path:
    """``out`` as a folder, if it is new or of the same configuration; it is not created yet."""
    folder = check_writable(out)
    path = folder / "config.toml"
    if not path.exists() and not (folder / "result.json").exists():
        for name in ("test.parquet", "report.html", "evaluation"):
            if (folder / name).exists():
                raise InputError(f"must be a new folder, found {folder} with {name} in it", argument="out")
        return folder
    sections = read_config(path) if path.exists() else {}
    if set(sections) != set(SECTIONS):
        words = f"must be a new folder or one of the same run, found {folder}, which has a run of another kind"
        raise InputError(words, argument="out")
    # the table may have moved: its rows say whether it is the same
    check_same_run(folder, *(each.flat() | {"data.table": None} for each in (resolved(sections), config)))
    return folder


def _value(text: str) -> Any:
    """The value of a setting, as TOML reads it; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5, which TOML does not know
    except ValueError:
        return text


def _typed(name: str, value: Any) -> Any:
    """``value`` with the type of ``section.key``; ``"1,0.8"`` is a list where one is expected."""
    section, _, key = name.partition(".")
    check_name(f"the section of {name}", section, SECTIONS)
    hints = typing.get_type_hints(SECTIONS[section])
    check_name(f"a key of [{section}]", key, hints)
    wanted = hints[key]
    if isinstance(wanted, types.UnionType):
        wanted = next(kind for kind in typing.get_args(wanted) if kind is not type(None))
    if typing.get_origin(wanted) is tuple:
        inner = typing.get_args(wanted)[0]
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        read = [_value(part.strip()) if isinstance(part, str) and inner is not str else part for part in parts]
        return tuple(_one(name, inner, part) for part in read)
    return _one(name, wanted, value)


_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    str: ("text", (str, int, float)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
}


def _one(name: str, wanted: type, value: Any) -> Any:
    words, kinds = _KINDS[wanted]
    if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
        raise InputError(f"must be {words}, found {value!r}", argument=name)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"must be finite, found {value}", argument=name)
    return str(value).strip() or str(value) if wanted is str else value  # a tab is a separator
