"""What never leaves a site, and what it allows at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.core.errors import CustodyError, StudyError
from confrere.simulation.backends import simulate
from confrere.study import Privacy, Study, load
from tests.conftest import arrays, write_study

PRIVATE = """
rounds = 4
strategy = "fedavg"
[training]
tune = false
[privacy]
epsilon = 3.0
delta = 1e-3
"""


def study_with_own_file(folder: Path, site: str) -> Study:
    path = write_study(folder, PRIVATE, records=60)
    (folder / "own").mkdir()
    (folder / "site1.csv").rename(folder / "own" / "records.csv")
    (folder / "own" / "site.toml").write_text(f'data = "records.csv"\n{site}', encoding="utf-8")
    text = path.read_text(encoding="utf-8").replace('data = "site1.csv"', 'config = "own/site.toml"')
    path.write_text(text, encoding="utf-8")
    return load(path)


def test_a_sites_own_cap_wins_over_the_study(tmp_path: Path) -> None:
    run = simulate(study_with_own_file(tmp_path, "caps = { epsilon = 1.0 }"))
    spent = {name: site.privacy.epsilon for name, site in run.sites.items()}
    assert spent["site1"] <= 1.0 < spent["site0"] <= 3.0
    trained = {e.round for e in run.events if e.kind == "trained" and e.site == "site1"}
    assert trained == {0, 1, 2, 3}, "more noise, not fewer rounds"


def test_a_cap_larger_than_the_study_changes_nothing(tmp_path: Path) -> None:
    run = simulate(study_with_own_file(tmp_path, "caps = { epsilon = 50.0 }"))
    assert all(site.privacy.epsilon <= 3.0 for site in run.sites.values())


def test_a_cap_stops_a_study_that_states_its_noise(tmp_path: Path) -> None:
    study = study_with_own_file(tmp_path, "caps = { epsilon = 1.0 }")
    assert study.privacy is not None
    loud = study.with_(privacy=type(study.privacy)(noise_multiplier=2.0, delta=1e-3))
    run = simulate(loud)
    assert run.sites["site1"].privacy is None or run.sites["site1"].privacy.epsilon <= 1.0
    assert run.sites["site0"].privacy.epsilon > 1.0
    assert any(e.kind == "budget-spent" and e.site == "site1" for e in run.events)


def test_what_a_site_keeps_to_itself_is_no_part_of_the_studys_hash(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = study_with_own_file(tmp_path / "a", "caps = { epsilon = 1.0 }")
    two = study_with_own_file(tmp_path / "b", "declared = 40")
    assert one.hash() == two.hash()
    assert one.hash() != one.with_(rounds=5).hash()


def test_what_columns_mean_is_part_of_the_studys_hash(tmp_path: Path) -> None:
    one = load(write_study(tmp_path, PRIVATE))
    text = (tmp_path / "study.toml").read_text(encoding="utf-8")
    (tmp_path / "other.toml").write_text(text.replace("[-3.0, 3.0]", "[-4.0, 3.0]", 1), encoding="utf-8")
    assert load(tmp_path / "other.toml").hash() != one.hash()


def test_a_wrong_key_in_a_sites_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r'site.toml.*"cap".*did you mean "caps"'):
        study_with_own_file(tmp_path, "cap = { epsilon = 1.0 }")


def test_a_site_that_does_not_accept_unproven_privacy_lets_nothing_out(tmp_path: Path) -> None:
    study = study_with_own_file(tmp_path, "accept_unproven_privacy = false")
    assert simulate(study).mean["accuracy"] > 0, "what is proven may leave"
    with pytest.raises(CustodyError, match="accept_unproven_privacy"):
        simulate(study.with_(privacy=None))


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 200, "\ud800"])
def test_a_site_needs_a_name_that_can_be_printed(name: str) -> None:
    sites = arrays()
    with pytest.raises(StudyError, match="a name has 1 to 128 characters"):
        simulate(Study(strategy="fedavg"), {**sites, name: sites["site0"]})


def test_two_studies_with_one_seed_do_not_share_their_noise() -> None:
    one = Study(name="one", rounds=1, strategy="fedavg", privacy=Privacy(epsilon=8.0, delta=1e-4))
    first, second = (simulate(s, arrays()) for s in (one, one.with_(name="two")))
    weights = [r.models["site0"]["model"].params for r in (first, second)]
    assert not weights[0].equals(weights[1])


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    study = study_with_own_file(tmp_path, 'folder = "images"')
    assert study.sites["site1"].folder == str((tmp_path / "own" / "images").resolve())
    assert study.sites["site1"].data == str((tmp_path / "own" / "records.csv").resolve())
    assert study.sites["site0"].folder == ""
