"""What engines get is what the files say, and every dialect can parse it."""

import pytest
import sqlglot
from sql_snapshots import FOLDER, statements

STATEMENTS = statements()


def test_every_file_is_of_a_statement():
    assert {path.name for path in FOLDER.glob("*.sql")} == set(STATEMENTS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_statement_is_the_file(name):
    """A change is meant? ``python tests/sql_snapshots.py`` writes the files anew."""
    assert (FOLDER / name).read_text() == STATEMENTS[name]
    tree = sqlglot.parse_one(STATEMENTS[name], read=name.split(".")[1])
    assert "calibrated_prob" in tree.named_selects or "weight_squared" in tree.named_selects
