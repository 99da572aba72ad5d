"""`confrere partners`: one site asks whom to learn from."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from confrere.cli import add_commands, app
from confrere.core.custody import Custody
from confrere.core.errors import DataError, StudyError
from confrere.data.records import Federation
from confrere.partners.page import write_partners
from confrere.partners.search import PartnerSearch, SelectionRule, choose, find_partners
from confrere.privacy.gate import Gate
from confrere.simulation.simulation import simulate
from confrere.site.open_sites import open_sites
from confrere.study import Privacy, Study, load
from tests.conftest import arrays, write_study

PRIVACY = Privacy(epsilon=4.0, delta=1e-4, selection_share=0.25)


@pytest.fixture
def cli() -> CliRunner:
    add_commands()
    return CliRunner()


def sites(strangers: bool = True) -> dict[str, Any]:
    """A small user, two sites that are like it, and one whose labels are the other way round."""
    found = arrays(4, records=240)
    x, y = found["site0"]
    found["site0"] = (x[:120], y[:120])
    if strangers:
        a, b = found["site3"]
        found["site3"] = (a, 1 - b)
    return found


@cache
def asked(privacy: Privacy | None = None) -> PartnerSearch:
    """What site0 is told; the same question is asked once."""
    study = Study(name="asked", rounds=5, privacy=privacy)
    return find_partners(study, "site0", sites())


def test_all_methods_agree_about_a_stranger() -> None:
    found = asked()
    for ranking in found.rankings:
        assert ranking.scores[-1].peer == "site3", ranking.method
        assert "site3" not in ranking.chosen, ranking.method
        assert all(np.isfinite(s.value) and s.error >= 0 and s.sentence for s in ranking.scores)
    assert found.chosen
    assert set(found.chosen) <= {"site1", "site2"}


def test_local_accuracy_and_log_loss_on_the_users_test_records_are_always_shown() -> None:
    worth = {w.name: w for w in asked().approaches}
    assert {
        "alone",
        "with everybody",
        "with the chosen partners",
        "with its group",
        "fine-tuned",
    } <= worth.keys()
    assert {"models interpolated", "records interpolated"} <= worth.keys()
    assert all({"accuracy", "log_loss"} <= w.metrics.keys() for w in worth.values())
    assert worth["with the chosen partners"].metrics["log_loss"] < worth["with everybody"].metrics["log_loss"]


def test_without_a_share_of_the_budget_everything_is_simulation_only() -> None:
    found = asked(Privacy(epsilon=4.0, delta=1e-4))
    assert all(r.simulation_only for r in found.rankings)
    assert found.privacy is None
    assert any("simulation only" in note for note in found.notes)


def test_what_peers_send_passes_the_gate_protected_and_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Custody] = []
    through = Gate.admit

    def tapped(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        found = through(self, model, scalars, **more)
        assert found[0] is not None
        left.append(max([found[0].custody, *(s.custody for s in found[1].values())]))
        return found

    monkeypatch.setattr(Gate, "admit", tapped)
    asked.cache_clear()
    found = asked(PRIVACY)
    assert left
    assert max(left) == Custody.PROTECTED
    released = {r.method for r in found.rankings if not r.simulation_only}
    assert released == {"running", "similarity", "transfer", "profiles", "jensen-shannon", "renyi"}
    assert found.privacy is not None
    assert found.privacy.epsilon == pytest.approx(1.0)
    assert found.privacy.delta == pytest.approx(0.25e-4)
    for name in ("site1", "site2", "site3"):
        assert 0.9 < found.privacy.spent[name] <= 1.0
    assert found.privacy.proven is True


def test_training_has_what_the_selection_leaves() -> None:
    run = simulate(Study(name="rest", rounds=4, strategy="fedavg", privacy=PRIVACY), arrays(records=300))
    for site in run.sites.values():
        assert 2.5 < site.privacy.epsilon <= 3.0
    capped = Privacy(epsilon=4.0, delta=1e-4, selection_share=0.25, noise_multiplier=3.0)
    run = simulate(Study(name="rest", rounds=40, strategy="fedavg", privacy=capped), arrays(records=300))
    assert all(site.privacy.epsilon <= 3.0 for site in run.sites.values())


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(StudyError, match="selection_share"):
        Study(privacy=Privacy(epsilon=1.0, selection_share=share))
    with pytest.raises(StudyError, match="selection_share"):
        Study(privacy=Privacy(noise_multiplier=1.0, selection_share=0.2))


@pytest.mark.slow
def test_the_same_question_has_the_same_answer() -> None:
    first = asked(PRIVACY).as_json()
    asked.cache_clear()
    assert asked(PRIVACY).as_json() == first


def test_a_choice_of_no_partner_states_its_reason() -> None:
    everybody = arrays(3, records=300)
    strangers = {n: (x, y if n == "site0" else 1 - y) for n, (x, y) in everybody.items()}
    study = Study(name="strangers", rounds=4)
    found = find_partners(study, "site0", strangers)
    assert found.chosen == ()
    assert found.reason.startswith("No partner is worth learning from: even the best, site")
    assert found.as_json()["partners"] is None


def test_the_first_so_many_may_be_asked_for() -> None:
    rankings = [r.top(3) for r in asked().rankings]
    assert len(choose(rankings, SelectionRule("influence", 3), "site0")[0]) == 3
    assert (
        choose([r.top(1) for r in asked().rankings], SelectionRule("similarity", 1), "site0")[0][0] != "site3"
    )
    with pytest.raises(StudyError, match="3 possible partners"):
        find_partners(Study(name="asked", rounds=2), "site0", sites(), top=4)


def test_each_method_may_decide() -> None:
    for ranking in asked().rankings:
        chosen, reason = choose(asked().rankings, SelectionRule(ranking.method), "site0")
        assert "site3" not in chosen
        assert ranking.title.lower() in reason


def test_what_cannot_be_asked_is_refused() -> None:
    study = Study(name="asked", rounds=2)
    with pytest.raises(StudyError, match=r'"site9".*did you mean "site'):
        find_partners(study, "site9", sites())
    few = {**sites(), "site0": tuple(part[:20] for part in sites()["site0"])}
    with pytest.raises(DataError, match="at least 20"):
        find_partners(study, "site0", few)
    x, y = sites()["site1"]
    with pytest.raises(DataError, match="one class"):
        find_partners(study, "site0", {**sites(), "site1": (x, 0 * y)})


def test_two_sites_are_enough_and_k_min_is_mentioned() -> None:
    study = Study(name="two", rounds=3)
    found = find_partners(study, "site0", arrays(2, records=300))
    assert [s.peer for s in found.rankings[0].scores] == ["site1"]
    assert any("k_min" in note for note in found.notes)


def test_a_study_with_partners_has_these_sites_only() -> None:
    study = Study(name="some", rounds=2, strategy="fedavg", partners=["site0", "site2"])
    assert list(simulate(study, sites()).sites) == ["site0", "site2"]
    with pytest.raises(StudyError, match=r'partners names "site7".*did you mean "site'):
        open_sites(study.with_(partners=["site0", "site7"]), sites())
    with pytest.raises(StudyError, match="leaves only site1"):
        open_sites(study.with_(partners=["site1"]), sites())
    with pytest.raises(StudyError, match="leaves no site"):
        open_sites(study.with_(partners=[]), sites())
    ready: Federation = open_sites(Study(name="some"), sites())
    assert list(ready.sites) == ["site0", "site1", "site2", "site3"]


def test_the_command_writes_the_choice_and_leaves_the_rest(cli: CliRunner, tmp_path: Path) -> None:
    path = write_study(tmp_path, 'name = "mine"  # my own\nrounds = 3\n')
    before = path.read_text()
    shown = cli.invoke(app, ["partners", str(path), "--site", "site0", "--top", "1", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert path.read_text() == before
    assert 'partners = ["site0", "site' in shown.output
    done = cli.invoke(app, ["partners", str(path), "--site", "site0", "--top", "1", "--write", "--json"])
    facts = json.loads(done.output)
    assert facts["written"] is True
    assert load(path).partners == facts["partners"]
    kept = [line for line in path.read_text().splitlines() if not line.startswith("partners")]
    assert kept == before.splitlines()
    assert len(facts["methods"]["transfer"]["ranking"]) == 2


def test_the_words_are_there_for_people(cli: CliRunner, tmp_path: Path) -> None:
    path = write_study(
        tmp_path, "rounds = 3\n[privacy]\nepsilon = 4.0\ndelta = 1e-4\nselection_share = 0.5\n"
    )
    text = cli.invoke(app, ["partners", str(path), "--site", "site0", "--dry-run"], terminal_width=200).output
    for words in (
        "simulation only",
        "Transfer loss",
        "patients of site0",
        "± ",
        "Privacy spent on choosing",
        "δ = 5e-05",
    ):
        assert words in " ".join(text.split()), words


def test_an_unknown_method_names_the_nearest(cli: CliRunner, tmp_path: Path) -> None:
    result = cli.invoke(app, ["partners", str(write_study(tmp_path)), "--site", "site0", "--by", "transfr"])
    assert result.exit_code != 0
    assert 'did you mean "transfer"' in str(result.exception)


def test_a_page_shows_every_method_and_keeps_hostile_names_names(tmp_path: Path) -> None:
    hostile = "<script>x</script>"
    rankings = [
        replace(r, scores=tuple(replace(s, peer=hostile, sentence=f"{hostile} helps") for s in r.scores))
        for r in asked().rankings
    ]
    found = replace(asked(), rankings=tuple(rankings), chosen=(hostile,))
    text = write_partners(found, tmp_path / "p.html").read_text()
    assert "Whom should site0 learn from?" in text
    assert all(r.title in text for r in asked().rankings)
    assert text.count("simulation only") >= 6
    assert "<script>x" not in text


def test_what_a_choice_brings_has_a_word_and_a_number_of_records() -> None:
    found = asked()
    for way in found.as_json()["test"].values():
        assert way["tested"] > 0
    words = {name: way.get("word") for name, way in found.as_json()["test"].items()}
    assert words.pop("alone") is None
    assert set(words.values()) <= {"better", "worse", "no clear difference", "too few to judge"}
