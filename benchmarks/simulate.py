"""The simulator: impressions a second of each click behaviour, and what it draws against its formulas.

One thread, best of several: ``python -m benchmarks simulate``.
"""

from __future__ import annotations

from benchmarks import Row, best_time, progress, quick
from isolayer.simulate import DependentClick, Distortion, DynamicBayesian, Feed, PositionBased, Trust, self_test

TARGET = 2e6  # impressions a second, position-based


def run() -> list[Row]:
    sessions = 2_000 if quick() else 20_000
    feeds = {
        "position-based, clicks": Feed(behaviour=PositionBased(), tasks=()),
        "position-based, six tasks and three downstream": Feed(behaviour=PositionBased()),
        "trust, clicks": Feed(behaviour=Trust(), tasks=()),
        "dynamic Bayesian, clicks": Feed(behaviour=DynamicBayesian(), tasks=()),
        "dependent clicks": Feed(behaviour=DependentClick(), tasks=()),
        "distortion by task, position and device": Feed(behaviour=Distortion()),
    }
    return [*(speed(name, feed, sessions) for name, feed in feeds.items()), laws()]


def speed(name: str, feed: Feed, sessions: int) -> Row:
    progress(f"simulate: {name}")
    rate = sessions * feed.positions / best_time(lambda: feed.log(sessions, seed=1), times=5)
    judged = name.startswith("position-based")
    target = f">= {TARGET / 1e6:.0f}M a second" if judged else ""
    return Row(f"impressions, {name}", target, f"{rate / 1e6:.1f}M a second", rate >= TARGET if judged else None)


def laws() -> Row:
    """The simulator's own test: correlations, examination and click rates against their formulas."""
    checks = self_test()
    failed = [check.name for check in checks if not check.holds]
    measured = f"{len(checks) - len(failed)} of {len(checks)} hold" + (f", not {', '.join(failed)}" if failed else "")
    return Row("self-test against formulas", "all", measured, not failed)
