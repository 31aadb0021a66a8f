"""The short form of the campaigns on files; `make chaos` runs the long one."""

from chaos import fuzz, kills, races, torn_reads


def test_a_killed_writer_leaves_old_or_new_and_nothing_else():
    found = kills.campaign(9)
    assert found.pop("interrupted while writing") > 0
    assert found == {"whole": 9, "left over": 0}


def test_every_read_is_one_release():
    found = torn_reads.campaign(400)
    assert torn_reads.faults(found) == 0, found
    assert len(found) > 1


def test_a_damaged_file_is_refused_or_the_same():
    found, faults = fuzz.campaign(seconds=6)
    assert not faults, faults[0]
    assert found["refused"] > 100


def test_two_updates_at_once_lose_no_day():
    assert races.campaign(1) == {"both days kept": 1}
