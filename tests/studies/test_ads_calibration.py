"""The ads bench, on small files of the published schemas that the test writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from research import ads_calibration
from research.deepfm import DeepFM, fitted_logits
from research.result import Finished, Unit

ROWS = 3_000


def behaviour(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Field, user and click; the rate differs by field."""
    rng = np.random.default_rng(seed)
    field, user = rng.integers(0, 5, ROWS), rng.integers(0, 200, ROWS)
    return field, user, (rng.random(ROWS) < 0.05 + 0.1 * field).astype(int)


def write_avazu(folder: Path) -> None:
    header = (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    rows = [
        f"{i},{y},141021{i * 24 // ROWS:02d},1005,{f % 2},s{f},d,c{f % 3},a,b,c,e,{u:08x},m,1,2,1,320,50,1,0,35,-1,79"
        for i, (f, u, y) in enumerate(zip(*behaviour(0), strict=True))
    ]
    (folder / "train.csv").write_text("\n".join([header, *rows]) + "\n")


def write_criteo(folder: Path) -> None:
    lines = []
    for f, u, y in zip(*behaviour(1), strict=True):
        lines.append("\t".join([str(y), *[str(u)] * 13, "aa", f"f{f}", *["bb"] * 24]))
    (folder / "train.txt").write_text("\n".join(lines) + "\n")


def write_aliccp(folder: Path) -> None:
    def listed(**fields: object) -> str:
        return "\x01".join(f"{name[1:]}\x02{value}\x031.0" for name, value in fields.items())

    columns = list(zip(*behaviour(2), strict=True))
    own = [f"{i},{y},0,u{u},2,{listed(f205=i % 50, f206=f, f301=f % 2)}" for i, (f, u, y) in enumerate(columns)]
    common = [f"u{u},1,{listed(f101=u, f121=u % 7)}" for u in range(200)]
    (folder / "sample_skeleton_train.csv").write_text("\n".join(own) + "\n")
    (folder / "common_features_train.csv").write_text("\n".join(common) + "\n")


def write_kuairand(folder: Path) -> None:
    header = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,tab"
    rows = [
        f"{u},{i % 30},20220425,{i % 2400},{i},{y},0,{f}" for i, (f, u, y) in enumerate(zip(*behaviour(3), strict=True))
    ]
    (folder / "log_standard_1.csv").write_text("\n".join([header, *rows]) + "\n")
    users = [f"{u},{'high' if u % 2 else 'low'}" for u in range(200)]
    (folder / "user_features.csv").write_text("\n".join(["user_id,user_active_degree", *users]) + "\n")
    videos = [f"{v},{v % 7},{v},LongImport,t{v % 3}" for v in range(30)]
    names = "video_id,author_id,music_id,upload_type,tag"
    (folder / "video_features_basic.csv").write_text("\n".join([names, *videos]) + "\n")


WRITERS = {"avazu": write_avazu, "criteo": write_criteo, "aliccp": write_aliccp, "kuairand": write_kuairand}


@pytest.mark.filterwarnings("ignore::isolayer.curves.fit_checks.ScoresLookLikeProbs")  # few rows of one rate
@pytest.mark.parametrize("name", WRITERS)
def test_the_study_runs_on_a_file_of_the_schema(monkeypatch, tmp_path, name):
    (tmp_path / name).mkdir()
    WRITERS[name](tmp_path / name)
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    units = ads_calibration.units(True, 2)
    settings = ["kuairand by author", "kuairand by tab"] if name == "kuairand" else [name]
    assert sorted({unit.setting for unit in units}) == settings
    found = {setting: ads_calibration.run_unit(Unit(0, setting, quick=True)) for setting in settings}
    for numbers in found.values():
        assert numbers["rows"] == ROWS // 5
        assert (f"{ads_calibration.RAW} gauc" in numbers) == (name != "criteo")
        assert all(np.isfinite(value).all() for value in numbers.values())
    told = found[settings[-1]]  # clicks do not depend on the author here
    assert told[f"{ads_calibration.EXACT} f-rce"] < told[f"{ads_calibration.RAW} f-rce"]
    result = ads_calibration.summarise([Finished(unit, found[unit.setting] | {"seed": unit.seed}) for unit in units])
    assert all(f"{setting} 600 (0.0% of them with a value that has no row" in result.verdict for setting in settings)


def test_the_model_under_authors_does_not_know_them():
    author, tab = (ads_calibration.STUDIES[f"kuairand by {field}"] for field in ("author", "tab"))
    assert set(author.unused) - set(tab.unused) == {"author_id", "video_id", "music_id"}
    assert (author.field, tab.field) == ("author_id", "tab")


@pytest.mark.parametrize(("shift", "own"), [(0.0, False), (3.0, True)])
def test_values_get_fits_of_their_own_from_as_few_rows_as_the_last_rows_say(shift, own):
    rng = np.random.default_rng(0)
    field, logit = rng.integers(0, 40, 2_000), rng.normal(0, 1, 2_000)  # 50 rows each
    label = (rng.random(2_000) < 1 / (1 + np.exp(-logit - shift * (field % 2 * 2 - 1)))).astype(int)
    found = ads_calibration.least_rows(ads_calibration.PLATT_PER_FIELD, {"score": logit, "field": field}, label)
    assert (found <= 20) == own


def test_pairs_of_fields_are_those_of_the_double_loop():
    torch.manual_seed(0)
    model = DeepFM([3, 4, 5], dim=2)
    with torch.no_grad():
        model.embedding.weight.normal_()
        model.linear.weight.normal_()
        for parameter in model.network.parameters():
            parameter.zero_()
        ids = torch.tensor([[2, 0, 4], [0, 3, 1]])
        rows = ids + torch.tensor([0, 3, 7])
        e = model.embedding.weight[rows]
        pairs = sum((e[:, i] * e[:, j]).sum(1) for i in range(3) for j in range(i))
        torch.testing.assert_close(model(ids), model.bias + model.linear.weight[rows].sum((1, 2)) + pairs)


def test_the_base_model_learns_from_the_first_rows_only():
    rng = np.random.default_rng(0)
    field = rng.integers(0, 3, 6_000)
    label = (field == 2).astype(int)
    flipped = label.copy()
    flipped[4_000:] = 1 - label[4_000:]
    logits = [fitted_logits([field], y, 4_000, seed=0, epochs=6) for y in (label, flipped)]
    np.testing.assert_array_equal(*logits)
    assert logits[0][field == 2].min() > logits[0][field != 2].max()
