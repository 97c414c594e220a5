"""The grid of a sweep: one more section of a training configuration, whose lists multiply to trials."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bidwise.checks import InputError, check_name
from bidwise.losses.named import LOSSES, WelfareLoss
from bidwise.models import TABLE_MODELS
from bidwise.run_folder import to_toml
from bidwise.study.recipe import Recipe
from bidwise.table.config import (
    SECTIONS,
    SINGLE,
    Config,
    Model,
    Train,
    flattened,
    merged,
    options_of,
    read_toml,
    resolved,
    typed,
)
from bidwise.table.plan import candidates
from bidwise.urls import shown

MOST = 10_000  # trials
LONGEST = 100  # letters of a name
TABLES = (".parquet", ".csv", ".tsv", ".gz")
LOSS, RECIPE, MODEL, SEED = "train.loss", "train.recipe", "model.name", "train.seed"
OF_SOME = [f"train.{key}" for key in ("lam", "sigma", "members", "teacher_model", "click_share")]  # recipes and losses
#: What rows, auctions and measures depend on: trials that differ in it cannot be compared.
ALIKE = {"table", "click", "bid", "auction", "auction_size", "time", "weight", "position", "slots", "sampling_rate"}
ALIKE |= {"truth"}

Identity = tuple[tuple[str, Any], ...]
Known = tuple[str, Config]  # the name of a trial that is there, and its configuration


@dataclass(frozen=True)
class Trial:
    """One training of a grid; ``settings`` are those of the grid's values that mean something to its loss and model."""

    name: str
    setting: str  # what it has in common with those of other seeds and with no others, in words
    config: Config
    settings: dict[str, Any]

    @property
    def seed(self) -> int:
        """Of the split, the initial weights and the batches."""
        return self.config.train.seed


@dataclass(frozen=True)
class Grid:
    """What all trials share, by section, and the lists of what differs.

    >>> lists = {"train.loss": ["log_loss", "log_plus"], "train.lam": [1, 3], "train.seed": [0, 1]}
    >>> grid = read_grid({"data": {"click": "y", "bid": "b"}, "sweep": lists})
    >>> [trial.name for trial in grid.trials() if trial.seed == 1]  # log_loss has no lam: it trains once for each seed
    ['log_loss-seed_1', 'log_plus-lam_1-seed_1', 'log_plus-lam_3-seed_1']
    """

    sections: dict[str, dict[str, Any]]
    lists: dict[str, list[Any]]

    @property
    def size(self) -> int:
        """Combinations of the lists, of which some may be the same training."""
        return math.prod(map(len, self.lists.values()))

    def trials(self, known: Mapping[Identity, Known] | None = None) -> list[Trial]:
        """All different trainings, each checked; ``known`` has those that are there, which keep name and words."""
        if self.size > MOST:
            raise InputError(f"[sweep] must have at most {MOST:,} combinations, found {self.size:,}; shorten its lists")
        known = known or {}
        trials: dict[Identity, Trial] = {}
        taken = {name.lower() for name, _ in known.values()}  # some file systems do not tell a from A
        settings_called: dict[Identity, str] = {}
        models: set[Model] = set()
        for values in product(*self.lists.values()):
            config, settings = self._resolved(dict(zip(self.lists, values, strict=True)))
            identity = identity_of(config)
            if identity in trials:
                continue
            if config.model not in models:
                for recipe in candidates(config):
                    _check_model(recipe)
                models.add(config.model)
            kind = tuple(pair for pair in identity if pair[0] != SEED)
            if kind not in settings_called:
                settings_called[kind] = _setting(settings, config, set(settings_called.values()))
            if identity in known:  # in its own words: what is a default here may have been left open there
                name, there = known[identity]
                config = replace(there, data=replace(there.data, table=config.data.table))
            else:
                name = _free(_name(settings, config), taken)
            taken.add(name.lower())
            trials[identity] = Trial(name, settings_called[kind], config, settings)
        return list(trials.values())

    def counted(self, trials: Sequence[Trial]) -> str:
        """How many trials there are, and why not as many as combinations: ``6 trials, not 8: lam means nothing to
        log_loss``."""
        number = f"{len(trials):,} trial{'s' if len(trials) > 1 else ''}"
        if len(trials) == self.size:
            return number
        idle: dict[str, dict[str, None]] = {}
        for trial in trials:
            for key in self.lists:
                if key not in trial.settings:
                    section, _, name = key.partition(".")
                    to = candidates(trial.config)[0].model if section == "model" else trial.config.train.name
                    idle.setdefault(name, {})[to] = None
        why = "; ".join(f"{name} means nothing to {', '.join(to)}" for name, to in idle.items())
        return f"{number}, not {self.size:,}: {why or 'the others are the same'}"

    def _resolved(self, settings: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
        """The configuration of a combination, and what is left of it without values that mean nothing to it."""
        values = flattened(self.sections) | settings
        for key in list(values):
            deciding = (MODEL,) if key.startswith("model.") else (LOSS, RECIPE)
            if any(each in self.lists for each in (key, *deciding)) and not _applies(values, key):
                del values[key]
                settings.pop(key, None)
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for key, value in values.items():
            section, _, name = key.partition(".")
            sections[section][name] = value
        return resolved(sections), settings

    def shown_sections(self) -> dict[str, dict[str, Any]]:
        """What all trials share, as it may be passed on: the table's URL without password and signature."""
        data = self.sections["data"]
        return self.sections | {"data": data | {"table": shown(data["table"])} if data.get("table") else data}

    def to_toml(self) -> str:
        """The file that gives this grid again."""
        return to_toml({**self.shown_sections(), "sweep": self.lists})


def read_grid(config: str | Path | Mapping[str, Any], settings: Sequence[str] = ()) -> Grid:
    """The grid of a TOML file or of its sections, with settings ``section.key=value`` above what all trials share."""
    if not isinstance(config, Mapping) and Path(config).suffix.lower() in TABLES:
        raise InputError(
            f"must be a TOML file with a section [sweep], found the table {shown(config)}; name it there: "
            "table in [data]",
            argument="config",
        )
    contents = config if isinstance(config, Mapping) else read_toml(Path(config))
    for section in contents:
        check_name("a section of the configuration", section, [*SECTIONS, "sweep"])
    part = contents.get("sweep")
    if not isinstance(part, Mapping) or not part:
        raise InputError(
            'the configuration must have a section [sweep] with lists, as "train.lam" = [1, 3, 10], found '
            + ("none" if part is None else repr(part))
        )
    lists = _lists(part)
    shared = merged({section: values for section, values in contents.items() if section != "sweep"}, {}, settings)
    for key, value in {"recipe": SINGLE, "budget": 1}.items():  # trials train what the grid says, and search nothing
        if f"train.{key}" not in lists:
            shared["train"].setdefault(key, value)
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in lists:
            raise InputError(
                f"must not name what [sweep] has a list of, found {key}; change the list", argument="settings"
            )
    return Grid(shared, lists)


def identity_of(config: Config) -> Identity:
    """What makes two trainings the same, defaults filled in; the table may have moved, and 1 is 1.0."""
    flat = {**_defaults(config), **config.flat(), "data.table": None}
    return tuple(sorted((key, tuple(x) if isinstance(x, list) else x) for key, x in flat.items()))


def _defaults(config: Config) -> dict[str, Any]:
    """What the model and the losses take where nothing is set."""
    defaults: dict[str, Any] = {"train.precision": "float32"}
    if config.train.budget == 1:  # else it is searched
        (recipe,) = candidates(config)
        parameters = inspect.signature(TABLE_MODELS[recipe.model]).parameters
        options = {key: parameters[key].default for key in Model.__dataclass_fields__ if key in parameters}
        defaults |= {f"model.{key}": value for key, value in {**options, "name": recipe.model}.items()}
        defaults |= {f"train.{key}": value for key, value in vars(recipe).items() if key in Train.__dataclass_fields__}
    names = config.train.contestants or (str(config.train.loss),)
    pairwise = [loss for name in names if isinstance(loss := LOSSES[name], WelfareLoss)]
    for key, own in {
        "lam": {float(loss.lam) for loss in pairwise},
        "sigma": {float(loss.options.sigma) for loss in pairwise},
    }.items():
        if len(own) == 1:  # contestants could have several
            defaults[f"train.{key}"] = own.pop()
    return defaults


def _check_model(recipe: Recipe) -> None:
    """Raise unless the model can be built, on a table of two small fields."""
    try:
        recipe.build([2, 2], 0)
    except InputError as error:
        raise InputError(f"model.{error}, in {recipe.model}") from None
    except (ValueError, RuntimeError) as error:  # torch's words for what does not fit into the memory, and others
        found = ", ".join(f"{key} = {_word(value)}" for key, value in recipe.options.items())
        why = str(error).splitlines()[0]
        raise InputError(
            f"[model] must be a model that can be built, found {recipe.model} with {found}: {why}"
        ) from None


def _lists(part: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of [sweep] by section.key, which may stand in quotes or not; every value as its key wants it."""
    flat: dict[str, Any] = {}
    for key, value in part.items():
        flat |= {f"{key}.{inner}": x for inner, x in value.items()} if isinstance(value, Mapping) else {key: value}
    lists = {}
    for key, values in flat.items():
        section, dot, name = key.partition(".")
        if not dot:
            inside = [known for known, each in SECTIONS.items() if key in each.__dataclass_fields__]
            hint = f"; did you mean '{inside[0]}.{key}'?" if inside else ""
            raise InputError(f"a key of [sweep] must be section.key, as 'train.lam', found {key!r}{hint}")
        check_name("the section of a key of [sweep]", section, SECTIONS)
        if section == "data" and name in ALIKE:
            raise InputError(
                f"[sweep] must compare trials on the same rows and auctions, found {key}, which changes them; run a "
                "sweep for each"
            )
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{key} in [sweep] must be a list of values, as [1, 3, 10], found {values!r}")
        read = [typed(section, name, value) for value in values]
        lists[key] = [value for at, value in enumerate(read) if value not in read[:at]]
    return lists


def _applies(values: Mapping[str, Any], key: str) -> bool:
    """Whether a setting means anything to the loss and the model of a combination."""
    section, _, name = key.partition(".")
    if section == "model" and name != "name":
        return MODEL not in values or name in options_of(str(Model(values[MODEL]).name))
    return key not in OF_SOME or name not in Train(values.get(RECIPE), values.get(LOSS)).idle


def _setting(settings: Mapping[str, Any], config: Config, taken: set[str]) -> str:
    """The words of a setting; where another has the same, lists and text as TOML writes them."""
    values = {key: value for key, value in settings.items() if key != SEED}
    words = ", ".join(_part(key, value, " ") for key, value in values.items()) or config.train.name
    if words not in taken:
        return words
    exact = (f"{key.partition('.')[2]} {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return _free(", ".join(exact), {word.lower() for word in taken})


def _name(settings: Mapping[str, Any], config: Config) -> str:
    """A folder's name: ``log_plus-lam_3-seed_1``."""
    words = "-".join(_part(key, value, "_") for key, value in settings.items()) or config.train.name
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", words)[:LONGEST].strip(".") or "trial"


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered where another trial has it.

    >>> _free("a", {"a", "a-2"})
    'a-3'
    """
    number = 1
    while (name if number == 1 else f"{name}-{number}").lower() in taken:
        number += 1
    return name if number == 1 else f"{name}-{number}"


def _part(key: str, value: Any, between: str) -> str:
    return _word(value) if key in (LOSS, RECIPE, MODEL) else f"{key.partition('.')[2]}{between}{_word(value)}"


def _word(value: Any) -> str:
    """A value with all its digits and no more.

    >>> _word(3.0), _word(1e-05), _word(0.123456789), _word((64, 32))
    ('3', '1e-05', '0.123456789', '64 32')
    """
    if isinstance(value, list | tuple):
        return " ".join(map(_word, value)) or "none"
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
