"""`confrere partners`: one site asks whom to learn from."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from confrere.cli import add_commands, app
from confrere.core.custody import Custody
from confrere.core.errors import DataError, StudyError
from confrere.data.records import Federation
from confrere.partners.approaches import CHOICE, JudgedGain
from confrere.partners.choice import TRIALS, SelectionRule, choose, trials
from confrere.partners.page import write_partners
from confrere.partners.ranking import Finding, Ranking
from confrere.partners.recommendation import recommendation
from confrere.partners.search import PartnerSearch, find_partners
from confrere.partners.table import partners_tables
from confrere.privacy.gate import Gate
from confrere.simulation.backends import simulate
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
    found["site0"] = (x[:160], y[:160])
    if strangers:
        a, b = found["site3"]
        found["site3"] = (a, 1 - b)
    return found


@cache
def asked(privacy: Privacy | None = None) -> PartnerSearch:
    """The search of site0; the same question is asked once."""
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
    everybody = arrays(3, records=600)
    strangers = {n: (x, y if n == "site0" else 1 - y) for n, (x, y) in everybody.items()}
    study = Study(name="strangers", rounds=4)
    found = find_partners(study, "site0", strangers)
    assert found.chosen == ()
    assert found.reason.startswith("No partner is clearly worth learning from: the best, site")
    assert found.answer.startswith("No site is chosen for site0: on ")
    assert "learning with all sites is clearly worse than alone" in found.answer
    assert found.as_json()["partners"] is None


def test_the_first_so_many_may_be_asked_for() -> None:
    rankings = [r.top(3) for r in asked().rankings]
    found = choose(rankings, SelectionRule("influence", 3), "site0")
    assert len(found.chosen) == 3
    assert "A trial finds site3 harmful" in found.reason
    first = choose([r.top(1) for r in asked().rankings], SelectionRule("similarity", 1), "site0")
    assert first.chosen[0] != "site3"
    with pytest.raises(StudyError, match="3 possible partners"):
        find_partners(Study(name="asked", rounds=2), "site0", sites(), top=4)


def test_each_method_may_decide() -> None:
    for ranking in asked().rankings:
        found = choose(asked().rankings, SelectionRule(ranking.method), "site0")
        assert "site3" not in found.chosen
        assert ranking.title.lower() in found.reason


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
        "transfer",
        "test patients of site0",
        "Gain in log loss",
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
    found = replace(asked(), rankings=tuple(rankings), choice=replace(asked().choice, chosen=(hostile,)))
    text = write_partners(found, tmp_path / "p.html").read_text()
    assert "Whom should site0 learn from?" in text
    assert all(r.title in text for r in asked().rankings)
    assert text.count("simulation only") >= 6
    assert "<script>x" not in text


def test_what_a_choice_brings_has_a_word_and_a_number_of_patients() -> None:
    facts = asked().as_json()
    assert facts["tested"]["patients"] > facts["tested"]["rarer"] > 0
    assert facts["primary"] == "log_loss"
    words = {n: way.get("gain_over_alone", {}).get("word") for n, way in facts["test"].items()}
    assert words.pop("alone") is None
    assert set(words.values()) <= {"better", "worse", "no clear difference", "too few to judge"}
    assert facts["gain_over_all_sites"]["word"] in {*words.values(), "better", "no clear difference"}


def shown(found: PartnerSearch) -> str:
    console = Console(width=100, file=StringIO())
    for table in partners_tables(found):
        console.print(table)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]  # a StringIO


def test_terminal_json_and_page_say_the_same(tmp_path: Path) -> None:
    found = asked()
    page = write_partners(found, tmp_path / "p.html").read_text()
    facts, terminal = found.as_json(), shown(found)
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())
    for sentence in (facts["answer"], facts["reason"]):
        assert " ".join(sentence.split()) in terminal
        assert " ".join(sentence.split()) in text
    assert facts["matrix"].keys() == {"site1", "site2", "site3"}
    for method, ranking in facts["methods"].items():
        findings = {s["site"]: s["finding"] for s in ranking["ranking"]}
        assert findings == {peer: row[method] for peer, row in facts["matrix"].items()}
    assert len(facts["matrix"]["site3"]) == 9
    assert "all sites" in facts["answer"]
    assert f"{facts['tested']['patients']} test patients" in facts["answer"]
    assert "*: simulation only" in terminal
    assert "*: simulation only" in text


def test_the_reason_names_the_patients_of_the_cross_validation() -> None:
    """They are not the test patients of the answer, so the two may disagree."""
    found = asked()
    own = len(open_sites(found.study, sites()).sites["site0"].without_test)
    which = "each of them" if len(found.chosen) > 1 else "it"
    assert found.reason.startswith(
        f"Chosen by influence: in cross-validation on {own} training patients of site0, {which} clearly improves predictions."
    )


def test_learning_with_all_sites_has_one_name_in_the_terminal() -> None:
    found = asked()
    assert "with all sites" in shown(found)
    assert "everybody" not in shown(found)
    assert "with everybody" in found.as_json()["test"], "the key in JSON stays"


def test_a_choice_that_does_not_beat_all_sites_says_so() -> None:
    found = asked()
    unclear = replace(found.outcome, over_all_sites=JudgedGain(0.001, "no clear difference", (-0.01, 0.012)))
    assert "and not clearly better than learning with all sites" in recommendation(
        "site0", ["site1"], unclear
    )
    worse = replace(found.outcome, over_all_sites=JudgedGain(-0.1, "worse", (-0.2, -0.01)))
    assert "and clearly worse than learning with all sites" in recommendation("site0", ["site1"], worse)
    few = [replace(a, gain_over_alone=JudgedGain(0.3, "too few to judge")) for a in found.approaches]
    assert "too few to judge" in recommendation(
        "site0", ["site1"], replace(found.outcome, approaches=tuple(few))
    )
    same = [replace(a, gain_over_alone=unclear.over_all_sites) for a in found.approaches if a.name == CHOICE]
    text = recommendation("site0", ["site1"], replace(unclear, approaches=tuple(same)))
    assert text.startswith("The choice for site0 is site1: on ")
    assert "not clearly better than alone" in text


def found_by(**findings: Finding) -> list[Ranking]:
    """The rankings of one search, with site3 found as stated by each method; other methods are unclear about it."""
    changed = []
    for ranking in asked().rankings:
        finding = findings.get(ranking.method.replace("-", "_"), "unclear")
        scores = (
            replace(s, finding=finding, chosen=finding == "yes") if s.peer == "site3" else s
            for s in ranking.scores
        )
        changed.append(replace(ranking, scores=tuple(scores)))
    return changed


def test_likeness_proposes_and_trial_decides() -> None:
    rule = SelectionRule("profiles")
    refused = choose(found_by(profiles="yes", transfer="no"), rule, "site0")
    assert "site3" not in refused.chosen
    assert refused.refused == ("site3",)
    assert "Left out, although proposed: site3" in refused.reason
    unclear = choose(found_by(profiles="yes"), rule, "site0")
    assert "site3" in unclear.chosen
    assert unclear.unconfirmed == ("site3",)
    assert "likeness only proposes" in unclear.reason
    confirmed = choose(found_by(profiles="yes", transfer="yes"), rule, "site0")
    assert confirmed.unconfirmed == ()


def test_the_trial_nearest_to_what_would_be_done_decides() -> None:
    assert set(TRIALS) == {"add-one-in", "leave-one-out", "transfer", "running"}
    assert trials(found_by(add_one_in="yes", transfer="no"), "profiles")["site3"] == "yes"
    assert trials(found_by(add_one_in="yes", leave_one_out="no"), "profiles")["site3"] == "no"
    assert trials(found_by(add_one_in="too few", transfer="no", running="yes"), "profiles")["site3"] == "no"


def test_in_the_field_only_trials_that_are_possible_there_decide() -> None:
    rankings = found_by(add_one_in="no", transfer="yes", profiles="yes")
    field = [replace(r, simulation_only=r.method in ("add-one-in", "leave-one-out")) for r in rankings]
    assert trials(rankings, "profiles")["site3"] == "no"
    assert trials(field, "profiles")["site3"] == "yes"
    assert trials(field, "influence")["site3"] == "no"


def test_the_number_of_standard_errors_is_retired() -> None:
    with pytest.warns(DeprecationWarning, match="z is retired"):
        found = find_partners(Study(name="asked", rounds=5), "site0", sites(), z=3.0)
    assert found.as_json() == asked().as_json()
