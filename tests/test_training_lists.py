"""Lists in training: batches of whole lists, streamed from row groups that cut them, and models that ask for them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isolayer import InputError
from isolayer.debias import DualLearning
from isolayer.training.columns import Columns
from isolayer.training.list_rows import group_lists
from isolayer.training.parquet_batches import LogBatches, ParquetLogs
from isolayer.training.train import Fit, train


def listed(path, lengths, row_group, files=1):
    """A log of lists of given lengths; its feature is the number of the row, ids start again in every file."""
    path.mkdir(exist_ok=True)
    rows = 0
    for file in range(files):
        ids = np.repeat([f"q{number}" for number in range(len(lengths))], lengths)
        number = np.arange(len(ids)) + rows
        rows += len(ids)
        table = pa.table({"x": number.astype(np.float32), "y": number % 2, "k": number % 3, "q": ids})
        pq.write_table(table, path / f"{file}.parquet", row_group_size=row_group)
    return path


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=8, max_size=20),
    row_group=st.integers(3, 20),
    world=st.sampled_from([1, 2]),
    files=st.sampled_from([1, 2]),
)
def test_every_list_is_read_whole_once_by_one_process(tmp_path_factory, lengths, row_group, world, files):
    path = listed(tmp_path_factory.mktemp("log"), lengths, row_group, files)
    logs = ParquetLogs(path, Columns(["x"], ["y"], ["k"], list_id="q"), held_out=0.25, buffer=30)
    ends = np.cumsum(np.tile(lengths, files))
    seen = []
    for training in (True, False):
        counts = set()
        for rank in range(world):
            batches = list(LogBatches(logs, batch_size=1, train=training, place=lambda rank=rank: (rank, world)))
            counts.add(len(batches))
            for batch in batches:
                for one in batch.lists.unique():
                    rows = batch.features[batch.lists == one, 0].numpy()
                    which = int(np.searchsorted(ends, rows[0], side="right"))
                    start = 0 if which == 0 else ends[which - 1]
                    assert rows.tolist() == list(range(start, ends[which]))  # whole, and in order
                    seen.append(which)
        assert len(counts) == 1  # a process that had more batches would wait for ever
    assert len(set(seen)) == len(seen)
    if world == 1:
        assert sorted(seen) == list(range(files * len(lengths)))


def test_batches_have_about_as_many_rows_as_asked_for_and_orders_differ(tmp_path):
    logs = ParquetLogs(
        listed(tmp_path / "log", [5] * 200, 64), Columns(["x"], ["y"], ["k"], list_id="q"), held_out=0.1, buffer=300
    )
    one, two = (list(LogBatches(logs, batch_size=52, train=True, epoch=lambda e=e: e)) for e in (0, 1))
    assert [len(batch.features) for batch in one] == [50] * 18
    assert not torch.equal(one[0].features, two[0].features)


def test_lists_that_are_scattered_are_refused():
    with pytest.raises(InputError) as error:
        group_lists([("a", pa.chunked_array([[1, 1, 2]])), ("a", pa.chunked_array([[1]]))], "query")
    assert str(error.value) == (
        "column 'query': expected the rows of a list to follow one another, got list 1 in several places; sort the log "
        "by this column"
    )


def test_a_model_that_compares_rows_of_a_list_asks_for_lists(tmp_path):
    def model():
        torch.manual_seed(0)
        return DualLearning(nn.Linear(1, 4), width=4, contexts={"k": 3}, tasks=("y",))

    path, asked = listed(tmp_path / "log", [4] * 60, 50), {"features": ["x"], "tasks": ["y"], "contexts": ["k"]}
    with pytest.raises(InputError) as error:
        train(model(), path, **asked, folder=tmp_path / "run")
    assert str(error.value).startswith(
        "list_id: expected the column of the list each row belongs to, since DualLearning compares the rows of a list"
    )
    assert not (tmp_path / "run").exists()
    fit = Fit(epochs=1, batch_size=16, progress=False, list_id="q")
    with pytest.raises(InputError, match="not known at serving"):
        train(model(), path, **asked | {"features": ["x", "q"]}, folder=tmp_path / "run", fit=fit)
    assert train(model(), path, **asked, folder=tmp_path / "run", fit=fit).epochs == 1
