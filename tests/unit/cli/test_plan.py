"""`confrere plan`: an estimate from public numbers, a study's or somebody's."""

from __future__ import annotations

import tomllib

import pytest

from confrere.evaluate.suggested_settings import PlannedBudget, StudySettings, suggest
from confrere.privacy.forecast import CANNOT_KNOW, Contributor, Forecast, least_noise
from confrere.study import parse
from tests.unit.cli.command import PRIVATE, QUICK, Desk

NUMBERS = ("--records", "1000", "--sites", "8", "--parameters", "8450", "--epsilon", "3")
TOO_LARGE = QUICK + PRIVATE + '[models]\nproxy = { name = "mlp", hidden = [200, 200] }\n'


def changed(**others: str) -> list[str]:
    given = {"records": "1000", "sites": "8", "parameters": "8450", "epsilon": "3"} | others
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]


def test_numbers_alone_are_enough(desk: Desk) -> None:
    found = desk.confrere("plan", *NUMBERS, "--json").json
    sigma = least_noise(3.0, 1e-5)
    assert found["signal_to_noise"] == pytest.approx(8000 * 0.2 / (sigma * (8 * 8450) ** 0.5))
    assert found["worth"] == pytest.approx(8000 / (1 + sigma**2 * 8 * 8450 / 4000))
    assert {s["outlook"] for s in found["sites"].values()} == {"expect little"}
    assert found["guarantee"] == "ε = 3 (δ = 1e-05, per record, PLD)"
    assert desk.left() == set()


def test_people_read_words_first(desk: Desk) -> None:
    said = " ".join(desk.confrere("plan", *changed(parameters="199210")).out.split())
    assert said.startswith("At ε = 3 (δ = 1e-05, per record, PLD) a proxy of 199,210 parameters would learn")
    assert "Warning: this proxy has 199,210 parameters" in said
    assert "does not know their mix of classes" in said
    assert "8 sites, each" in said


def test_sites_of_different_sizes_may_expect_different_things(desk: Desk) -> None:
    words = ("--records", "3300,1400,570,150,42", "--parameters", "38", "--epsilon", "3")
    found = desk.confrere("plan", *words, "--json").json
    assert [s["outlook"] for s in found["sites"].values()] == ["unclear", *[CANNOT_KNOW] * 4]
    words = ("--records", "150,130", "--parameters", "60", "--epsilon", "1")
    found = desk.confrere("plan", *words, "--json").json
    assert {s["outlook"] for s in found["sites"].values()} == {"expect little"}


def test_no_gain_is_promised_where_sites_may_differ(desk: Desk) -> None:
    words = ("--records", "3300,1400,570,150,42", "--parameters", "38", "--epsilon", "3")
    text = " ".join(desk.confrere("plan", *words).out.split())
    assert "whether they gain the planner cannot know: sites may differ" in text
    assert "gain likely" not in text


def test_a_rough_proxy_is_unclear_in_a_plan_too(desk: Desk) -> None:
    """Seven records per parameter: the limit of ten holds for plans, not only for bare forecasts."""
    words = ("--records", "126,150,114,102", "--parameters", "35", "--epsilon", "3", "--json")
    found = desk.confrere("plan", *words).json
    assert found["prediction"] == "unclear"
    assert {s["outlook"] for s in found["sites"].values()} == {"unclear"}


def test_a_declared_mix_of_classes_is_heeded(desk: Desk) -> None:
    words = [*changed(parameters="4000"), "--json"]
    assert desk.confrere("plan", *words).json["prediction"] == "unclear"
    words += ["--classes", "10", "--largest-class", "0.8"]
    found = desk.confrere("plan", *words).json
    assert found["prediction"] == "signal"
    assert found["sites"]["site 1"]["own_worth"] == pytest.approx(246, abs=1)


def test_many_sites_gossip_and_few_hear_everybody(desk: Desk) -> None:
    few = desk.confrere("plan", *NUMBERS, "--json").json["suggestion"]
    many = desk.confrere("plan", *changed(sites="64"), "--json").json["suggestion"]
    assert (few["topology"], many["topology"]) == ("complete", "exponential")
    assert many["rounds"] > few["rounds"]
    assert tomllib.loads(many["toml"])["privacy"]["sampling"] == "full"


def test_check_accepts_what_is_suggested(desk: Desk) -> None:
    asked = desk.confrere("plan", desk.study(TOO_LARGE), "--json")
    suggested = asked.json["suggestion"]
    found = desk.confrere("check", desk.study(suggested["toml"]), "--json").json
    assert found["rounds"] == suggested["rounds"]
    assert not [w for w in found["warnings"] if "parameters" in w]
    for site in found["sites"].values():
        assert site["noise_multiplier"] == pytest.approx(suggested["noise_multiplier"], rel=1e-3)
        assert site["proxy_parameters"] <= suggested["most_parameters"]


def test_what_is_suggested_for_pictures_is_a_study() -> None:
    forecast = Forecast(8340, tuple(Contributor(str(k), 1000, 1.3906) for k in range(8)))
    found = suggest(forecast, PlannedBudget(3.0, 1e-5, "patient"), StudySettings(pictures=True))
    study = parse(tomllib.loads(found.toml))
    assert (study.models.proxy, study.data.features, study.rounds) == ("centred-linear", "gradients", 100)
    assert study.privacy is not None
    assert (study.privacy.unit, study.privacy.sampling, study.privacy.steps) == ("patient", "full", 1)
    assert study.training.states_steps
    assert found.noise_multiplier == pytest.approx(13.906)
    encoded = suggest(forecast, PlannedBudget(3.0, 1e-5), StudySettings(pictures=True, encoded=True))
    assert parse(tomllib.loads(encoded.toml)).data.features == ""


def test_training_that_belongs_to_another_proxy_is_not_kept(desk: Desk) -> None:
    stated = "[training]\nlearning_rate = 0.5\n"
    told = desk.confrere("plan", desk.study(TOO_LARGE + stated), "--json").json["suggestion"]["remarks"]
    assert any(text.startswith("Leave [training] out") for text in told)
    told = desk.confrere("plan", desk.study(QUICK + PRIVATE + stated), "--json").json["suggestion"]["remarks"]
    assert "The study states how it trains; that is left unchanged." in told


def test_a_study_is_planned_from_its_own_noise_and_proxy(desk: Desk) -> None:
    found = desk.confrere("plan", desk.study(QUICK + PRIVATE), "--json").json
    assert found["parameters"] == 9
    for site in found["sites"].values():
        assert site["noise"] == pytest.approx(least_noise(8.0, 1e-4), rel=1e-3)
        assert "ε = 8 (δ = 0.0001, per record, PLD)" in site["guarantee"]


def test_a_sites_own_cap_makes_its_noise(desk: Desk) -> None:
    path = desk.study(QUICK + PRIVATE)
    path.write_text(path.read_text() + "[sites.site1.caps]\nepsilon = 1.0\n")
    sites = desk.confrere("plan", path, "--json").json["sites"]
    assert sites["site1"]["noise"] == pytest.approx(least_noise(1.0, 1e-4), rel=1e-3)
    assert sites["site0"]["noise"] == pytest.approx(least_noise(8.0, 1e-4), rel=1e-3)
    assert "ε = 1 " in sites["site1"]["guarantee"]


def test_stated_noise_lasts_only_as_long_as_the_budget(desk: Desk) -> None:
    rounds = "--set=rounds=50"
    path = desk.study(QUICK + "[privacy]\nepsilon = 3.0\ndelta = 1e-4\nnoise_multiplier = 2.0\nsteps = 1\n")
    found = desk.confrere("plan", path, rounds, "--json").json["sites"]["site0"]
    free = desk.confrere("plan", path, rounds, "--set=privacy.epsilon=1000.0", "--json").json
    assert found["noise"] > 2 * free["sites"]["site0"]["noise"]


def test_samples_are_compared_with_full_batches(desk: Desk) -> None:
    body = QUICK + '[privacy]\nepsilon = 3.0\ndelta = 1e-4\nsampling = "poisson"\nbatch_size = 10\n'
    found = desk.confrere("plan", desk.study(body), "--json").json
    assert found["full_batch"]["signal_to_noise"] > found["signal_to_noise"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (changed(records="0"), "--records is a whole number from 1"),
        (changed(records="150,x"), "--records is a whole number from 1"),
        (changed(epsilon="-1"), "ε must be a number above 0, not -1"),
        (changed(epsilon="nan"), "ε must be a number above 0"),
        (changed(parameters="1.5"), "--parameters is a whole number from 1"),
        (changed(sites="1"), "at least two sites"),
        (changed(sites="3", records="150,130"), "--records names 2 sites, and --sites says 3"),
        (changed(delta="0.01"), "more than 1/n"),
        (changed(rounds="0"), "--rounds is a whole number"),
        (changed(largest_class="0.8"), "--largest-class needs --classes"),
        (changed(largest_class="1.0", classes="10"), "--largest-class is 1"),
        (["--records", "1000", "--sites", "8", "--epsilon", "3"], "--parameters is missing"),
        ([], "--records is missing: give a study, or"),
        ([*NUMBERS, "--set", "a=1"], "--set changes a study"),
    ],
)
def test_bad_input_gets_one_clear_line(desk: Desk, words: list[str], complaint: str) -> None:
    assert complaint in desk.refused("plan", *words)


def test_a_study_without_privacy_or_without_exchange_has_nothing_to_plan(desk: Desk) -> None:
    assert "has no [privacy]" in desk.refused("plan", desk.study(QUICK))
    alone = desk.study('rounds = 2\nstrategy = "local"\n' + PRIVATE)
    assert "nothing would be sent" in desk.refused("plan", alone)
    assert "give one or the other" in desk.refused("plan", desk.study(QUICK + PRIVATE), "--epsilon", "3")


def test_check_warns_of_a_proxy_that_is_too_large(desk: Desk) -> None:
    answer = desk.confrere("check", desk.study(TOO_LARGE), "--json")
    assert answer.code == 0
    (text,) = [w for w in answer.json["warnings"] if "parameters" in w]
    assert text.startswith("this proxy has 42,")
    assert "would be noise" in text
    quiet = desk.confrere("check", desk.study(QUICK + PRIVATE), "--json").json
    assert not [w for w in quiet["warnings"] if "proxy" in w]
