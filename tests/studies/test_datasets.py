"""Every loader on a small file of the published schema, written here; KuaiRand also on the real slice where it is."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from isolayer.errors import InputError
from research import datasets
from research.data import data_path
from research.datasets import (
    SOURCES,
    aliccp,
    avazu,
    criteo,
    kuairand,
    mslr,
    open_bandit,
    open_bandit_items,
    open_bandit_prior,
)

DATA = data_path("kuairand_pure")


def write_kuairand(folder: Path, suffix: str) -> None:
    tables = {
        "log_standard_1": {
            "user_id": [7, 9],
            "video_id": [1, 2],
            "is_click": [1, 0],
            "tab": [0, 1],
            "author_id": [5, 5],
        },
        "log_standard_2": {"user_id": [8], "video_id": [3], "is_click": [1], "tab": [1], "author_id": [6]},
        "log_random_1": {"user_id": [9], "video_id": [1], "is_click": [0], "tab": [4], "author_id": [5]},
        "user_features": {"user_id": [9, 7], "register_days": [90, 70], "onehot_feat4": [1.5, 2.5]},
        "video_features_basic": {"video_id": [1, 2, 3], "video_type": ["AD", "NORMAL", "AD"], "author_id": [0, 0, 0]},
    }
    folder.mkdir(parents=True)
    write = pa_csv.write_csv if suffix == "csv" else pq.write_table
    for name, columns in tables.items():
        write(pa.table(columns), folder / f"{name}.{suffix}")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_kuairand_joins_features_and_marks_what_is_missing(tmp_path, suffix):
    write_kuairand(tmp_path / "data", suffix)
    columns = kuairand(tmp_path)
    assert columns["is_click"].tolist() == [1, 0, 1]
    assert columns["register_days"].tolist() == [70, 90, -1]  # user 8 has no features
    np.testing.assert_array_equal(columns["onehot_feat4"], [2.5, 1.5, np.nan])
    assert columns["video_type"].tolist() == ["AD", "NORMAL", "AD"]
    assert columns["author_id"].tolist() == [5, 5, 6]  # the log's own column stays
    assert kuairand(tmp_path / "data", log="random")["tab"].tolist() == [4]


@pytest.mark.skipif(
    not DATA.is_dir(), reason="the KuaiRand slice is not here: set ISOLAYER_DATA to the folder above it"
)
def test_kuairand_slice_has_its_known_rates():
    columns = kuairand(DATA)
    assert len(columns["is_click"]) == 228_329
    for tab, rate in ((0, 0.09), (1, 0.49), (4, 0.59)):
        assert columns["is_click"][columns["tab"] == tab].mean() == pytest.approx(rate, abs=0.02)
    assert (columns["register_days"] > 0).mean() > 0.9


MSLR = "2 qid:1 1:3 2:0.5 136:7\n0 qid:1 2:1 136:1\n4 qid:9 1:1 136:0\n"


def test_mslr_reads_a_file_a_folder_and_the_archive_alike(tmp_path):
    file = tmp_path / "rankeval-0.8.2" / "rankeval" / "test" / "data" / "msn1.fold1.train.5k.txt"
    file.parent.mkdir(parents=True)
    file.write_text(MSLR)
    with tarfile.open(tmp_path / "rankeval-0.8.2.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "rankeval-0.8.2", "rankeval-0.8.2")
    for path in (file, tmp_path / "rankeval-0.8.2", tmp_path / "rankeval-0.8.2.tar.gz"):
        columns = mslr(path)
        assert columns["grade"].tolist() == [2, 0, 4]
        assert columns["query"].tolist() == [1, 1, 9]
        assert columns["features"].shape == (3, 136)
        assert columns["features"][:, [0, 1, 135]].tolist() == [[3, 0.5, 7], [0, 1, 1], [1, 0, 0]]
    with pytest.raises(InputError, match=r"MSLR: expected .*fold1\.test\.5k\.txt, got nothing there; to get it: the"):
        mslr(tmp_path / "rankeval-0.8.2.tar.gz", part="test")


OBD = """,timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0,user-item_affinity_1
0,2019-11-24 00:00:34.762830+00:00,1,3,0,0.5,bb,0.0,1.0
1,2019-11-24 00:00:12.000000+00:00,0,1,1,0.25,aa,2.0,0.0
"""
ITEMS = ",item_id,item_feature_0,item_feature_1\n0,1,0.5,yy\n1,0,-0.5,xx\n"
PRIOR = """all:
  alpha:
    - 47.0
    - 8.0
  beta:
    - 2.0
    - 3.0
men:
  alpha:
    - 1.0
  beta:
    - 5.0
"""


def test_open_bandit_reads_a_wheel_and_a_folder_in_the_order_of_time(tmp_path):
    members = {
        "obp/dataset/obd/random/all/all.csv": OBD,
        "obp/dataset/obd/bts/all/all.csv": OBD.replace("0.25", "0.125"),
        "obp/dataset/obd/random/all/item_context.csv": ITEMS,
        "obp/policy/conf/prior_bts.yaml": PRIOR,
    }
    with zipfile.ZipFile(tmp_path / "obp.whl", "w") as wheel:
        for name, text in members.items():
            wheel.writestr(name, text)
    with zipfile.ZipFile(tmp_path / "obp.whl") as wheel:
        wheel.extractall(tmp_path / "out")
    for path in (tmp_path / "obp.whl", tmp_path / "out"):
        columns = open_bandit(path)
        assert columns["action"].tolist() == [0, 1]
        assert columns["position"].tolist() == [0, 1]
        assert columns["click"].tolist() == [1, 0]
        assert columns["propensity"].tolist() == [0.25, 0.5]
        assert columns["user_feature_0"].tolist() == [1, 0]
        assert columns["affinity"].tolist() == [[2.0, 0.0], [0.0, 1.0]]
        assert open_bandit(path, policy="bts")["propensity"].tolist() == [0.125, 0.5]
        items = open_bandit_items(path)
        assert items["item_feature_0"].tolist() == [-0.5, 0.5]
        assert len(set(items["item_feature_1"].tolist())) == 2
        prior = open_bandit_prior(path)
        assert (prior["alpha"].tolist(), prior["beta"].tolist()) == ([47, 8], [2, 3])
        assert open_bandit_prior(path, campaign="men")["beta"].tolist() == [5]
        with pytest.raises(InputError, match=r"expected campaign all, men or women, got 'kids'; choose one"):
            open_bandit_prior(path, campaign="kids")


AVAZU = """id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,\
device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21
1000009418151094273,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,\
44956a24,1,2,15706,320,50,1722,0,35,-1,79
10000169349117863715,1,14102101,1005,1,85f751fd,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,96809ac8,\
711ee120,1,0,15704,320,50,1722,0,35,100084,79
10000371904215119486,0,14102102,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,b3cf8def,\
8a4875bd,1,0,15704,320,50,1722,0,35,100084,79
"""


def test_avazu_gives_integers_and_codes(tmp_path):
    (tmp_path / "train.csv").write_text(AVAZU)
    (tmp_path / "train.gz").write_bytes(gzip.compress(AVAZU.encode()))
    for path in (tmp_path / "train.csv", tmp_path / "train.gz"):
        columns = avazu(path)
        assert len(columns) == 23
        assert "id" not in columns
        assert columns["click"].tolist() == [0, 1, 0]
        assert columns["site_id"].tolist() == [0, 1, 0]
        assert columns["device_ip"].tolist() == [0, 1, 2]
        assert columns["C20"].tolist() == [-1, 100084, 100084]
        assert avazu(path, rows=2)["hour"].tolist() == [14102100, 14102101]
        assert list(avazu(path, columns=["click", "site_id"])) == ["click", "site_id"]


def test_codes_agree_across_blocks(tmp_path, monkeypatch):
    header, *lines = AVAZU.splitlines()
    (tmp_path / "train.csv").write_text("\n".join([header, *(lines * 40)]) + "\n")
    whole = avazu(tmp_path / "train.csv")
    monkeypatch.setattr(datasets, "_BLOCK", 1024)
    parts = avazu(tmp_path / "train.csv")
    for name, column in whole.items():
        np.testing.assert_array_equal(parts[name], column)
    assert len(avazu(tmp_path / "train.csv", rows=50)["click"]) == 50


def test_criteo_keeps_missing_counts_and_categories_apart(tmp_path):
    rows = [["0", "1", "", *["3"] * 11, "68fd1e64", "", *["80e26c9b"] * 24], ["1", *["2"] * 13, *["80e26c9b"] * 26]]
    (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    columns = criteo(tmp_path / "train.txt")
    assert len(columns) == 40
    assert columns["click"].tolist() == [0, 1]
    np.testing.assert_array_equal(columns["count_2"], [np.nan, 2])
    assert columns["category_1"].tolist() == [0, 1]
    assert columns["category_2"].tolist() == [-1, 0]
    assert criteo(tmp_path / "train.txt", rows=1)["click"].tolist() == [0]


def test_aliccp_takes_fields_from_the_row_and_from_its_user(tmp_path):
    def listed(**fields: str) -> str:
        return "\x01".join(f"{name[1:]}\x02{value}\x031.0" for name, value in fields.items())

    (tmp_path / "sample_skeleton_train.csv").write_text(
        f"1,0,0,abc,2,{listed(f205='11', f301='3')}\n"
        f"2,1,1,abc,1,{listed(f205='12')}\n"
        f"3,1,0,zzz,2,{listed(f2050='99', f1205='98', f301='4')}\n"
    )
    (tmp_path / "common_features_train.csv").write_text(f"abc,2,{listed(f101='77', f121='5')}\n")
    columns = aliccp(tmp_path, fields=(101, 205, 301))
    assert columns["click"].tolist() == [0, 1, 1]
    assert columns["conversion"].tolist() == [0, 1, 0]
    assert columns["field_205"].tolist() == [11, 12, -1]
    assert columns["field_301"].tolist() == [3, -1, 4]
    assert columns["field_101"].tolist() == [77, 77, -1]
    assert aliccp(tmp_path, fields=(205,), rows=2)["field_205"].tolist() == [11, 12]
    assert "field_206" in aliccp(tmp_path)


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("kuairand", kuairand),
        ("mslr", mslr),
        ("open_bandit", open_bandit),
        ("avazu", avazu),
        ("aliccp", aliccp),
        ("criteo", criteo),
    ],
)
def test_an_absent_file_is_named_with_its_source_and_licence(tmp_path, name, load):
    source = SOURCES[name]
    with pytest.raises(InputError) as caught:
        load(tmp_path / "nowhere")
    assert str(caught.value).startswith(f"{source.name}: expected {tmp_path / 'nowhere'}")
    assert str(caught.value).endswith(f"got nothing there; to get it: {source.url} (licence: {source.licence})")
    assert source.citation
