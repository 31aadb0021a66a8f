"""Several files read as one: every value is what it is when its file is read alone, or the files are refused."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolayer import IsotonicCalibrator
from isolayer.cli.logs import read
from isolayer.errors import InputError

BIG = 2**53 + 1
WHOLE = {"id": [BIG, BIG + 2], "score": [0, 1], "place": ["a", "b"]}
OTHERS = {"score": [0.25, -1.5], "place": ["b", None], "id": [BIG + 4, BIG + 6]}  # in another order


def written(folder, kind, *files):
    for number, columns in enumerate(files):
        path = folder / f"{number}{kind}"
        if kind == ".parquet":
            pq.write_table(pa.table(columns), path)
        elif kind == ".csv":
            pd.DataFrame(columns).to_csv(path, index=False)
        else:
            path.write_text(pd.DataFrame(columns).to_json(orient="records", lines=True))
    return [str(folder / f"{number}{kind}") for number in range(len(files))]


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".ndjson"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_values_are_those_of_each_file(tmp_path, kind, order):
    files = [(WHOLE, OTHERS)[one] for one in order]
    found = read(written(tmp_path, kind, *files)).to_pyarrow().to_pydict()
    assert found == {name: [value for one in files for value in one[name]] for name in found}
    assert found.keys() == WHOLE.keys()


def test_a_glob_is_read_as_its_files_are(tmp_path):
    written(tmp_path, ".parquet", {"score": [0, 1] * 50, "label": [0, 1] * 50}, {"label": [1, 0], "score": [0.5, -0.5]})
    model = IsotonicCalibrator().fit_table(str(tmp_path / "*.parquet"))
    again = IsotonicCalibrator().fit([0.0, 1.0] * 50 + [0.5, -0.5], [0, 1] * 50 + [1, 0])
    np.testing.assert_allclose(model.predict_proba([0.3]), again.predict_proba([0.3]), atol=1e-9)


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".ndjson"])
def test_a_column_that_a_file_lacks_is_named(tmp_path, kind):
    files = written(tmp_path, kind, WHOLE, {name: WHOLE[name] for name in ("id", "score")})
    with pytest.raises(InputError, match=r"the same columns in all files, got 'place' in .*0.* and not in .*1"):
        read(files)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"id": ["7"]}, "one type of 'id' in all files, got numbers in .* and text in"),
        ({"id": [True]}, "one type of 'id' in all files, got numbers in .* and BOOLEAN in"),
        ({"id": [0.5]}, r"whole numbers of 'id' up to 2\^53, since other files have fractions, got 9007199254740993"),
    ],
)
def test_types_that_do_not_hold_all_values_are_refused(tmp_path, other, message):
    with pytest.raises(InputError, match=message):
        read(written(tmp_path, ".parquet", {"id": [BIG]}, other))


def test_numbers_and_text_of_text_files_are_text(tmp_path):
    files = written(tmp_path, ".csv", {"place": [1, 2]}, {"place": ["a", "b"]})
    assert read(files).to_pyarrow()["place"].to_pylist() == ["1", "2", "a", "b"]


@pytest.mark.parametrize(
    "others",
    [["true", "false"], ["10:00:00", "11:30:00"], ["2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z"], ["0.5", "1e3"]],
)
def test_unlike_values_of_csv_files_are_the_text_that_they_were(tmp_path, others):
    for one in (["1", str(BIG)], ["2026-01-31", "2026-01-02"], ["31/01/2026", "02/01/2026"]):
        files = written(tmp_path, ".csv", {"k": one, "n": [1, 2]}, {"k": others, "n": [3, 4]})
        found = read(files).to_pyarrow().to_pydict()
        assert found == {"k": [*one, *others], "n": [1, 2, 3, 4]}


def test_a_column_of_nothing_takes_the_type_of_the_others(tmp_path):
    files = written(tmp_path, ".parquet", {"hour": pa.nulls(2)}, {"hour": [1.5]})
    assert read(files).to_pyarrow()["hour"].to_pylist() == [None, None, 1.5]
