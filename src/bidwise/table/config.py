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

from bidwise.auctions import slot_multipliers
from bidwise.checks import InputError, check_name, check_positive, check_seed, check_whole
from bidwise.losses.named import LOSSES, needs_teacher
from bidwise.models import TABLE_MODELS
from bidwise.run_folder import check_same, check_writable, to_toml, write_text
from bidwise.study.keep_best import CONTESTANTS
from bidwise.study.recipe import BASELINE, Recipe, has_lam
from bidwise.study.search import BUDGET
from bidwise.training.arguments import Options
from bidwise.urls import check_on_disk, shown

RECIPES = AUTO, SINGLE, ENSEMBLE, DISTILLED = ("auto", "single", "ensemble", "distilled")
METRICS = ("welfare", "log_loss", "auc")


@dataclass(frozen=True)
class Data:
    """The table and the roles of its columns; columns without a role are features."""

    click: str = ""
    bid: str = ""
    table: str | None = None  # the file or URL, where there is one
    separator: str | None = None  # of a text file; None: by its ending
    header: bool = True  # whether its first line has the names of columns
    auction: tuple[str, ...] = ()  # the columns that name it
    numeric: tuple[str, ...] = ()  # features whose type is not to be inferred
    categorical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    time: str | None = None
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
        for role in ("click", "bid"):
            if not getattr(self, role):
                raise InputError(
                    f"must name the column of {role}s, found none: --{role} COLUMN, or in [data]", argument=role
                )
        roles = self.roles
        for role in ("click", "bid", "weight", "position"):
            column = getattr(self, role)
            again = [other for other, its in roles if other != role and its == column]
            if again:
                raise InputError(
                    f"must be a column of its own, found {column!r}, which is also the {again[0]}", argument=role
                )
        named = [*self.numeric, *self.categorical, *self.ignore]
        for column in named:
            for role in [role for role, its in roles if its == column]:
                raise InputError(f"features must have no other role, found {column!r}, which is the {role}")
            if named.count(column) > 1:
                raise InputError(f"numeric, categorical and ignore must name a column once, found {column!r} twice")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise InputError(f"must be in (0, 1], found {self.sampling_rate}", argument="sampling_rate")
        slot_multipliers(self.slots)
        if self.position is not None and len(self.slots) < 2:
            raise InputError(
                "needs slots, the multiplier of each slot, such as --slots 1,0.8,0.6; found none", argument="position"
            )
        check_whole("auction_size", self.auction_size, 2)
        check_whole("bins", self.bins, 2)
        if self.min_count is not None:
            check_whole("min_count", self.min_count, 1)

    @property
    def roles(self) -> list[tuple[str, str]]:
        """Roles with their columns, which are no features."""
        names = ("click", "bid", "auction", "time", "teacher", "weight", "position", "truth")
        columns = {role: its if isinstance(its := getattr(self, role), tuple) else (its,) for role in names}
        return [(role, column) for role, its in columns.items() for column in its if column]


@dataclass(frozen=True)
class Model:
    """The model; what is left out is chosen by the search, or as the model's own defaults have it."""

    name: str | None = None
    embedding: int | None = None
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None
    cross: int | None = None
    std: float | None = None
    leaves: int | None = None  # of lightgbm's trees
    smooth: float | None = None  # ads that the mean counts in a click rate, of lightgbm

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("model", self.name, TABLE_MODELS)
        if not any(map(self.may_be, TABLE_MODELS)):
            name = self.name or next(iter(TABLE_MODELS))
            own = [f.name for f in fields(self) if f.name in options_of(name)]
            wrong = next(option for option in self.options if option not in own)
            raise InputError(f"is no option of {name}, which has {', '.join(own)}", argument=wrong)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were set, as the model's class takes them."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {name: value for name, value in values.items() if value is not None}

    def may_be(self, name: str) -> bool:
        """Whether a model of that name is meant, and has all options that were set."""
        return self.name in (None, name) and set(self.options) <= options_of(name)


def options_of(model: str) -> set[str]:
    """What a model can be told, beside the values of its fields."""
    return set(inspect.signature(TABLE_MODELS[model]).parameters) - {"cardinalities", "seed"}


@dataclass(frozen=True)
class Train:
    """How the model is trained; settings of the baseline that are left out are chosen by the search."""

    recipe: str | None = None  # None: auto, or single where a loss is named
    loss: str | None = None  # None: log_loss; of recipe distilled: distilled
    budget: int | None = None  # settings that the search tries; None: four for recipe auto, else 1
    members: int | None = None  # None: 4, of an ensemble
    teacher_model: str | None = None  # None: the model itself
    click_share: float | None = None  # None: 0, of labels that a teacher gives
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
    lam: float | None = None  # None: that of the loss, 3
    sigma: float | None = None  # None: that of the loss, 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss == AUTO:
            raise InputError("must be a loss, found auto; --recipe auto chooses among recipes", argument="loss")
        if self.loss is not None:
            check_name("loss", self.loss, LOSSES)
        recipe = self.recipe or (AUTO if self.loss is None else SINGLE)
        check_name("recipe", recipe, RECIPES)
        loss = self.loss or (DISTILLED if recipe == DISTILLED else BASELINE)
        budget = (BUDGET if recipe == AUTO else 1) if self.budget is None else self.budget
        for name, value in {"recipe": recipe, "loss": loss, "budget": budget}.items():
            object.__setattr__(self, name, value)
        if recipe == DISTILLED and not needs_teacher(loss):
            taught = ", ".join(filter(needs_teacher, LOSSES))
            raise InputError(f"of recipe distilled must be one of {taught}, found {loss}", argument="loss")
        check_name("metric", self.metric, METRICS)
        for name, least in (("budget", 1), ("members", 2)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)
        if self.teacher_model is not None:
            check_name("teacher_model", self.teacher_model, TABLE_MODELS)
        if self.click_share is not None and not 0 <= self.click_share < 1:
            raise InputError(f"must be in [0, 1), found {self.click_share}", argument="click_share")
        known = {f.name: value for f in fields(Options) if (value := getattr(self, f.name, None)) is not None}
        defaults: dict[str, Any] = {f.name: getattr(Recipe, f.name) for f in fields(Options)}
        Options(**defaults | known)
        if self.lam is not None:
            check_positive("lam", self.lam, or_zero=True)
        if self.sigma is not None:
            check_positive("sigma", self.sigma)
        for name, of in self.idle.items():
            if getattr(self, name) is not None:
                raise InputError(f"is of {of}, found recipe {recipe} with loss {loss}", argument=name)
        check_seed("seed", self.seed)

    @property
    def name(self) -> str:
        """What the recipe is called among others: a single model after its loss."""
        return str(self.loss if self.recipe == SINGLE else self.recipe)

    @property
    def contestants(self) -> tuple[str, ...]:
        """What recipe auto compares with the baseline: losses, and ``distilled``, the recipe."""
        if self.recipe != AUTO:
            return ()
        return CONTESTANTS if self.loss == BASELINE else (str(self.loss),)

    @property
    def distils(self) -> bool:
        """Whether a student learns from an ensemble."""
        return DISTILLED in (self.recipe, *self.contestants)

    @property
    def idle(self) -> dict[str, str]:
        """Keys that mean nothing to the recipe and its loss, with what they do belong to."""
        losses = self.contestants or (str(self.loss),)
        return {
            **({} if any(map(has_lam, losses)) else dict.fromkeys(("lam", "sigma"), "losses over pairs, as log_plus")),
            **({} if self.distils or self.recipe == ENSEMBLE else {"members": "recipes ensemble and distilled"}),
            **({} if self.distils else {"teacher_model": "recipe distilled"}),
            **({} if any(map(needs_teacher, losses)) else {"click_share": "losses with a teacher, as distilled"}),
        }


@dataclass(frozen=True)
class Config:
    """A training run, resolved.

    >>> config = resolved({"data": {"click": "y", "bid": "b"}}, {"train.loss": "log_plus"}, ["train.epochs=3"])
    >>> config.train.loss, config.train.recipe, config.train.epochs
    ('log_plus', 'single', 3)
    """

    data: Data
    model: Model = field(default_factory=Model)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        if self.train.click_share and self.data.position is not None:
            raise InputError(
                "must be 0 where clicks are corrected for their {}", argument="click_share", others=["position"]
            )

    def sections(self) -> dict[str, dict[str, Any]]:
        """By section, as a file has it, without what was left open; the table's URL without password and signature."""
        sections: dict[str, dict[str, Any]] = {}
        for section in SECTIONS:
            values = vars(getattr(self, section)).items()
            sections[section] = {k: list(x) if isinstance(x, tuple) else x for k, x in values if x is not None}
        if self.data.table is not None:
            sections["data"]["table"] = shown(self.data.table)
        return sections

    def flat(self) -> dict[str, Any]:
        """The same as ``section.key`` -> value."""
        return flattened(self.sections())

    def to_toml(self) -> str:
        """The file that gives this configuration again."""
        return to_toml(self.sections())


SECTIONS: dict[str, Any] = {"data": Data, "model": Model, "train": Train}


def read_toml(path: Path) -> dict[str, Any]:
    """The sections of a configuration file, or an error that names it."""
    check_on_disk("the configuration", path, "a file", "copy it first")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} must be a TOML file, found one that is no text") from None
    except (tomllib.TOMLDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} must be a TOML file, found: {error}") from None


def flattened(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Sections as ``section.key`` -> value."""
    return {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}


def resolved(
    sections: Mapping[str, Any], options: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
) -> Config:
    """The configuration that :func:`merged` sections are; an error says ``seed`` of an option, else ``train.seed``."""
    values: dict[str, dict[str, Any]] = {}
    try:
        values = merged(sections, options, settings)
        return Config(**{section: SECTIONS[section](**part) for section, part in values.items()})
    except InputError as error:
        key = error.argument if "." in error.argument else option_key(error.argument)
        if key in (options or {}):
            error.argument = "model" if key == "model.name" else key.partition(".")[2]
        elif key in flattened(values):
            error.argument = key
        raise


def merged(
    sections: Mapping[str, Any], options: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """A file's sections, options ``{"data.click": "y"}`` above them, and settings ``section.key=value`` above both;
    what is not known is refused with the nearest name."""
    if "sweep" in sections:
        raise InputError("a training must have no grid, found a section [sweep]; use bidwise sweep, or leave it out")
    for section, part in sections.items():
        check_name("a section of the configuration", section, SECTIONS)
        if not isinstance(part, Mapping):
            raise InputError(f"[{section}] must be a section with keys, found {part!r}")
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in [*flattened(sections).items(), *(options or {}).items(), *map(_assignment, settings)]:
        section, _, key = name.partition(".")
        values[section][key] = typed(section, key, value)
    return values


def _assignment(setting: str) -> tuple[str, Any]:
    """``train.epochs=3 -> ("train.epochs", 3)``."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    section, dot, _ = name.partition(".")
    if not equals or not dot:
        raise InputError(
            f"must be section.key=value, as train.learning_rate=3e-4, found {setting!r}", argument="settings"
        )
    check_name(f"the section of {name}", section, SECTIONS)
    return name, _value(text)


def option_key(name: str) -> str:
    """Where an option belongs: ``click -> data.click``, ``model -> model.name``, ``loss -> train.loss``."""
    if name == "model":
        return "model.name"
    for section, part in SECTIONS.items():
        if name in part.__dataclass_fields__:
            return f"{section}.{name}"
    return f"data.{name}"  # not known: refused with the nearest name


def open_run(out: str | Path, config: Config) -> Path:
    """``out`` as a folder, if it is new or of the same configuration; nothing is made yet."""
    folder = check_writable(out)
    path = folder / "config.toml"
    if not path.exists() and not (folder / "result.json").exists():
        return folder
    sections = read_toml(path) if path.exists() else {}
    if set(sections) != set(SECTIONS):
        raise InputError(
            f"must be a new folder or one of the same run, found {folder}, which has a run of another kind",
            argument="out",
        )
    # the table may have moved: its rows say whether it is the same
    there, here = (each.flat() | {"data.table": None} for each in (resolved(sections), config))
    check_same(folder, there, here)
    return folder


def begin(folder: Path, config: Config) -> None:
    """Make the folder and leave the configuration there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        write_text(folder / "config.toml", config.to_toml())


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


def typed(section: str, key: str, value: Any) -> Any:
    """``value`` as the key wants it; ``"1,0.8"`` is a list where one is expected."""
    hints = typing.get_type_hints(SECTIONS[section])
    check_name(f"a key of [{section}]", key, hints)
    wanted = hints[key]
    if isinstance(wanted, types.UnionType):
        wanted = next(kind for kind in typing.get_args(wanted) if kind is not type(None))
    if typing.get_origin(wanted) is tuple:
        inner = typing.get_args(wanted)[0]
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        read = [_value(part.strip()) if isinstance(part, str) and inner is not str else part for part in parts]
        return tuple(_one(f"{section}.{key}", inner, part) for part in read)
    return _one(f"{section}.{key}", wanted, value)


def _one(name: str, wanted: type, value: Any) -> Any:
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if wanted is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value).strip() or str(value)  # a tab is a separator
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InputError(f"must be finite, found {value}", argument=name)
        return value
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InputError(f"must be {words[wanted]}, found {value!r}", argument=name)
