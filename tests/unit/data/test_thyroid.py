"""The first federation: thyroid patients by referral source."""

from __future__ import annotations

import torch

from confrere.data.bundled import federation
from confrere.data.bundled.sets import known
from confrere.data.encode.encoder import encode
from confrere.data.split.holdout import SplitRule


def test_five_sites_and_the_three_patient_site_is_left_out_and_said_so() -> None:
    thyroid = federation("thyroid", seed=0)
    sizes = {name: len(site.all) for name, site in thyroid.sites.items()}
    assert sizes == {"other": 5493, "SVI": 2394, "SVHC": 956, "STMW": 255, "SVHD": 71}
    assert any("WEST" in note and "left out" in note for note in thyroid.notes)


def test_impossible_ages_count_as_missing() -> None:
    thyroid = federation("thyroid", seed=0)
    at = thyroid.task.features.index("age missing")
    assert sum(int(site.all.inputs[:, at].sum()) for site in thyroid.sites.values()) == 4
    assert any("3 impossible values taken" in note for note in thyroid.sites["other"].notes)


def test_no_feature_is_the_answer_the_site_or_the_patient() -> None:
    names = " ".join(known("thyroid").schema.features)
    assert not any(word in names for word in ("target", "referral", "patient", "measured"))


def test_a_record_is_encoded_the_same_whoever_else_is_in_the_file() -> None:
    frame, schema = known("thyroid").frame(), known("thyroid").schema
    whole = encode(frame, schema).inputs
    few = encode(frame.iloc[100:120], schema).inputs
    assert torch.equal(whole[100:120], few)
    assert torch.isfinite(whole).all()
    assert float(whole.abs().max()) <= 5.0


def test_stratified_the_share_of_abnormal_patients_is_the_same_in_all_parts() -> None:
    for site in federation("thyroid", seed=4, split=SplitRule(method="stratified")).sites.values():
        rates = [float(p.targets.float().mean()) for p in (site.train, site.validation, site.test)]
        assert max(rates) - min(rates) < 0.03
