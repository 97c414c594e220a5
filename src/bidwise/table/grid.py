"""The grid of a sweep: one more section of a training configuration, whose lists multiply to trials."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, product
from pathlib import Path
from typing import Any

from bidwise.checks import InputError
from bidwise.table.config import (
    SINGLE,
    Config,
    merged,
    nested,
    option_key,
    options_of,
    read_toml,
    resolved,
    typed,
)

MOST = 10_000  # trials
LONGEST = 100  # letters of a name
MODEL = "model.name"
NAMES = ("train.loss", "train.recipe", MODEL)  # whose values say enough
#: What rows, auctions and measures depend on: trials that differ in it cannot be compared.
ALIKE = {"table", "click", "bid", "auction", "auction_size", "time", "weight", "position", "slots", "sampling_rate"}
ALIKE |= {"truth"}


@dataclass(frozen=True)
class Trial:
    """One training of a grid; ``settings`` are those of the grid's values that mean something to its loss and model."""

    name: str
    setting: str  # what it has in common with those of other seeds and with no others, in words
    config: Config
    settings: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What all trials share, and the lists of what differs, by ``section.key``.

    >>> lists = {"train.loss": ["log_loss", "log_plus"], "train.lam": [1, 3], "train.seed": [0, 1]}
    >>> grid = read_grid({"data": {"click": "y", "bid": "b"}, "sweep": lists})
    >>> [trial.name for trial in grid.trials()][1::2]  # log_loss has no lam: it trains once for each seed
    ['log_loss-seed_1', 'log_plus-lam_1-seed_1', 'log_plus-lam_3-seed_1']
    """

    shared: dict[str, Any]
    lists: dict[str, list[Any]]

    @property
    def size(self) -> int:
        """Combinations of the lists, of which some may be the same training."""
        return math.prod(map(len, self.lists.values()))

    def trials(self) -> list[Trial]:
        """All different trainings, each checked."""
        if self.size > MOST:
            raise InputError(f"[sweep] must have at most {MOST:,} combinations, found {self.size:,}; shorten its lists")
        trials: dict[Config, Trial] = {}
        called: dict[Config, str] = {}  # settings, by a configuration without its seed
        words: set[str] = set()
        names: set[str] = set()
        for values in product(*self.lists.values()):
            settings = dict(zip(self.lists, values, strict=True))
            config = self._resolved(settings)
            if config in trials:
                continue
            unseeded = replace(config, train=replace(config.train, seed=0))
            if unseeded not in called:
                others = {key: value for key, value in settings.items() if key != "train.seed"}
                called[unseeded] = _free(_words(others, ", ", " ") or config.train.name, words)
            name = re.sub(r"[^A-Za-z0-9._+-]+", "_", _words(settings, "-", "_") or config.train.name)
            name = _free(name[:LONGEST].strip(".") or "trial", names)
            trials[config] = Trial(name, called[unseeded], config, settings)
        return list(trials.values())

    def _resolved(self, settings: dict[str, Any]) -> Config:
        """The configuration of a combination, from whose settings goes what means nothing to its loss and model."""
        values = self.shared | settings
        named = resolved(nested({key: x for key, x in values.items() if key in NAMES or key.startswith("data.")}))
        idle = {f"train.{key}" for key in named.train.idle}
        if named.model.name is not None:
            own = {MODEL, *(f"model.{option}" for option in options_of(named.model.name))}
            idle |= {key for key in values if key.startswith("model.")} - own
        for key in idle & set(values):
            del values[key]
            settings.pop(key, None)
        return resolved(nested(values))


def read_grid(config: str | Path | Mapping[str, Any], settings: Sequence[str] = ()) -> Grid:
    """The grid of a TOML file or of its sections, with settings ``section.key=value`` above what all trials share."""
    sections = dict(config if isinstance(config, Mapping) else read_toml(Path(config)))
    part = sections.pop("sweep", None)
    shared = merged(sections, {}, settings)
    if not isinstance(part, Mapping) or not part:
        words = 'the configuration must have a section [sweep] with lists, as "train.lam" = [1, 3, 10], found '
        raise InputError(words + ("none" if part is None else repr(part)))
    lists: dict[str, list[Any]] = {}
    for key, value in part.items():  # train.lam in quotes or not
        inner = {f"{key}.{name}": x for name, x in value.items()} if isinstance(value, Mapping) else {key: value}
        lists |= {name: _list(name, values) for name, values in inner.items()}
    for setting in settings:
        if (key := setting.partition("=")[0].strip()) in lists:
            words = f"must not name what [sweep] has a list of, found {key}; change the list"
            raise InputError(words, argument="settings")
    # trials train what the grid says, and search nothing
    return Grid({"train.recipe": SINGLE, "train.budget": 1} | shared, lists)


def _list(key: str, values: Any) -> list[Any]:
    """The different values of a key of [sweep], each as the key wants it."""
    section, dot, name = key.partition(".")
    if not dot:
        words = f"must be section.key, as 'train.lam', found {key!r}; did you mean {option_key(key)!r}?"
        raise InputError(f"a key of [sweep] {words}")
    if section == "data" and name in ALIKE:
        words = f"found {key}, which changes them; run a sweep for each"
        raise InputError(f"[sweep] must compare trials on the same rows and auctions, {words}")
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"{key} in [sweep] must be a list of values, as [1, 3, 10], found {values!r}")
    return list(dict.fromkeys(typed(key, value) for value in values))


def _words(settings: Mapping[str, Any], between: str, inside: str) -> str:
    parts = ((key, key.partition(".")[2], _word(value)) for key, value in settings.items())
    return between.join(word if key in NAMES else f"{name}{inside}{word}" for key, name, word in parts)


def _word(value: Any) -> str:
    """A value with all its digits and no more.

    >>> _word(3.0), _word(1e-05), _word(0.123456789), _word((64, 32))
    ('3', '1e-05', '0.123456789', '64,32')
    """
    if isinstance(value, tuple):
        return ",".join(map(_word, value)) or "none"
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken; then it is taken. Some file systems do not tell a from A.

    >>> _free("A", {"a", "a-2"})
    'A-3'
    """
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    free = next(each for each in names if each.lower() not in taken)
    taken.add(free.lower())
    return free
