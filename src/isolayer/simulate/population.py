"""Users and items: their traits, and the latent relevance that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isolayer.settings import count, number, seed
from isolayer.simulate.behaviours import Single

Ids = NDArray[np.int32]

_BILINEAR = 0.3  # share of the visible relevance's variance that comes from user x item, the rest from the item


@dataclass(frozen=True)
class Population:
    r"""Users and items with standard normal traits; the features of an impression are those of both.

    Columns of ``features`` are ``features // 3`` traits of the user, then traits of the item. The last of these is the
    *spurious* one: it hardly affects relevance, yet a logging policy may rank by it. The visible relevance is
    approximately standard normal,

    :math:`v = \sqrt{1 - \rho^2}\,(\sqrt{.7}\, a \cdot item + \sqrt{.3}\, user \cdot item / \sqrt d) + \rho\, spurious`,

    and the true latent relevance is :math:`z = \sqrt{1 - h^2}\, v + h\, \xi` with :math:`\xi` standard normal and
    absent from the features.

    Args:
        users: Number of users.
        items: Number of items.
        features: Number of features.
        hidden: :math:`h`, how much of relevance is absent from the features, from 0 to 1.
        spurious_relevance: :math:`\rho`, correlation of the spurious trait with visible relevance.
        seed: Seed of the traits; logs have their own seeds.

    >>> Population(users=5, items=7, features=6).item_traits.shape
    (7, 4)
    """

    users: int = 10_000
    items: int = 20_000
    features: int = 12
    hidden: float = 0.3
    spurious_relevance: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("users", 1), ("items", 2), ("features", 6)):
            count(name, getattr(self, name), least, advice="raise it")
        for name in ("hidden", "spurious_relevance"):
            number(name, getattr(self, name), 0, 1, ends="[]", advice="give a share")
        seed("seed", self.seed)

    @property
    def user_columns(self) -> int:
        """Number of features that are traits of the user."""
        return self.features // 3

    @cached_property
    def user_traits(self) -> Single:
        """Traits of every user, ``[users, user_columns]``."""
        shape = (self.users, self.user_columns)
        return np.random.default_rng([self.seed, 1]).standard_normal(shape, dtype=np.float32)

    @cached_property
    def item_traits(self) -> Single:
        """Traits of every item, ``[items, features - user_columns]``, the spurious one last."""
        shape = (self.items, self.features - self.user_columns)
        return np.random.default_rng([self.seed, 2]).standard_normal(shape, dtype=np.float32)

    def direction(self, name: str) -> Single:
        """A unit-variance function of all item traits except the spurious one, determined by its name, ``[items]``."""
        return self._along(self._weights(name))

    def _weights(self, name: str) -> NDArray[np.float64]:
        columns = self.features - self.user_columns - 1
        return np.random.default_rng([self.seed, 3, *name.encode()]).standard_normal(columns)

    def _along(self, weights: NDArray[np.float64]) -> Single:
        return np.asarray(self.item_traits[:, :-1] @ (weights / np.linalg.norm(weights)), dtype=np.float32)

    @cached_property
    def appeal(self) -> Single:
        """The part of visible relevance that depends on the item alone, ``[items]``."""
        return self.direction("appeal")

    @cached_property
    def novelty(self) -> Single:
        """The function of the item that relevance drifts towards, independent of its appeal, ``[items]``."""
        own, appeal = self._weights("novelty"), self._weights("appeal")
        return self._along(own - (own @ appeal) / (appeal @ appeal) * appeal)

    @cached_property
    def popularity(self) -> Single:
        """Popularity of each item, of unit variance and correlated .71 with its appeal, ``[items]``."""
        own, appeal = self._weights("popularity"), self._weights("appeal")
        own = own - (own @ appeal) / (appeal @ appeal) * appeal
        return self._along(own / np.linalg.norm(own) + appeal / np.linalg.norm(appeal))

    def visible(self, user: Ids, item: Ids) -> Single:
        """Relevance that the features determine, about standard normal, for users ``[s]`` and items ``[s, k]``."""
        d, rho = self.user_columns, self.spurious_relevance
        affinity = np.einsum("skd,sd->sk", self.item_traits[:, :d][item], self.user_traits[user])
        own = math.sqrt((1 - _BILINEAR) * (1 - rho**2)) * self.appeal[item]
        both = math.sqrt(_BILINEAR * (1 - rho**2) / d) * affinity
        return np.asarray(own + both + rho * self.spurious(item), dtype=np.float32)

    def spurious(self, item: Ids) -> Single:
        """The spurious trait of each item, in the shape of ``item``."""
        return self.item_traits[:, -1][item]

    def features_of(self, user: Ids, item: Ids) -> Single:
        """Features of users ``[s]`` shown items ``[s, k]``, ``[s * k, features]``."""
        out = np.empty((*item.shape, self.features), dtype=np.float32)
        out[..., : self.user_columns] = self.user_traits[user][:, None]
        out[..., self.user_columns :] = self.item_traits[item]
        return out.reshape(-1, self.features)
