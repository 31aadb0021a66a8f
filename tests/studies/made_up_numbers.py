"""Finished units with made-up numbers, from which the summaries of studies are tested."""

from __future__ import annotations

import numpy as np

from research.result import Finished


def flat(module, quick=True):
    """Finished units of an experiment whose every number is 1 with a little noise, for what summaries must survive."""
    rng = np.random.default_rng(0)

    class Ones(dict):
        def __missing__(self, key):
            return [] if key in ("daily", "drawn") else 1 + 0.01 * rng.random()

    return [Finished(unit, Ones()) for unit in module.units(quick)]


class Anything(dict):
    """Numbers of a unit: every key that is asked for has a value, made of the seed and of the best key words."""

    def __init__(self, seed: int, good: dict[str, float], lists: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.seed, self.good, self.lists = seed, good, lists

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> object:
        value = next((value for word, value in self.good.items() if word in key), 0.5) + 1e-6 * self.seed
        if key.endswith(("draws", "resampled")):
            return [value + 1e-6, value - 1e-6]
        if key.endswith("by day"):
            return [value] * 3
        return value


def outcome(module, good: dict[str, float]):
    units = module.units(True, 2)
    return module.summarise([Finished(unit, Anything(unit.seed, good)) for unit in units])


def with_setting(module, good: dict[str, float]):
    """The same, where the words are looked for in the setting and the key together."""
    done = []
    for unit in module.units(True, 2):
        of_unit = {"": next((value for word, value in good.items() if word in unit.setting), 0.5)}
        done.append(Finished(unit, Anything(unit.seed, of_unit)))
    return module.summarise(done)


def done(module, number, units=None):
    """Finished units whose every number is ``number(setting, key)``, with a little of the seed in it."""

    class Told(dict):
        def __init__(self, unit):
            super().__init__()
            self.unit = unit

        def __contains__(self, key):
            return "MCGrad" not in str(key)

        def __missing__(self, key):
            value = number(self.unit.setting, key) + 1e-6 * self.unit.seed
            return [value, value + 1e-6] if key.endswith("draws") else value

    return [Finished(unit, Told(unit)) for unit in units or module.units(True, 2)]


def lost(result):
    return [part.says for part in result.parts if part.held == "did not hold"]
