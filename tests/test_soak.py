"""Soak, the short form: ``python -m benchmarks soak`` runs ten minutes."""

import numpy as np
import pytest

from benchmarks import soak


@pytest.mark.parametrize("kind", ["onnx", "numpy"])
def test_memory_stays_flat(kind, tmp_path):
    soak.prepared(tmp_path)
    found = soak.soaked(soak.asking(kind, tmp_path), 1.5)
    assert found["calls"] > 10
    assert found["growth"] < 5
    assert 0 < found["p99"] < 10


def test_a_leak_is_seen():
    kept = []
    found = soak.soaked(lambda call: kept.append(np.ones(10_000 if call < 20_000 else 1)), 0.5)
    assert found["growth"] > 5
