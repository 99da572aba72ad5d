"""Assemble a site: its mechanism, budget and ledger, from the study and the site's own caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from confrere.core.errors import DataError, PrivacyError, StudyError
from confrere.core.events import Journal
from confrere.core.protocols import Releases, Strategy
from confrere.core.strategy_traits import traits
from confrere.core.sum_terms import SumTerms
from confrere.data.records import SiteData
from confrere.data.tasks import Task
from confrere.learning.local_training.one_site import Trainer
from confrere.learning.networks.network import NetworkCache
from confrere.learning.private_centre import PROFILE, has_centre
from confrere.privacy.accounting import calibrate, check_delta
from confrere.privacy.budget import Budget, strictest
from confrere.privacy.charges import CEILING
from confrere.privacy.clipping import Clipping
from confrere.privacy.ledger import Ledger
from confrere.privacy.masked_mechanism import MaskedMechanism, calibrate_masked
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.sampling import FullBatch, Poisson, epoch
from confrere.site.checks import check_records
from confrere.site.participant import Participant
from confrere.site.stopping import Stopping
from confrere.study import Privacy, Study
from confrere.study.churn import Churn
from confrere.study.masked_settings import masked_of


def mechanism_of(
    privacy: Privacy, size: int, rounds: int, proven: bool = True, budget: Budget | None = None
) -> tuple[Mechanism, int]:
    """The mechanism of a site with this public training size, and its steps in a round.

    Rate, steps and δ depend on that size alone (see `training_size`). Where the study gives ε and no noise,
    the noise is the least with which all steps of all rounds stay within ε, or within the site's own
    `budget` where that is less. A round counts once for each model that is protected in it: every one of them draws its
    own samples (`privacy.charged_steps`).
    """
    check_delta(privacy.delta, size)
    clipping = privacy.clipper()
    if privacy.sampling == "full":
        rate, steps, expected = Fraction(1), privacy.steps or 1, float(size)
    else:
        in_epoch, rate = epoch(size, min(privacy.batch_size, size))
        steps, expected = privacy.steps or in_epoch, float(size * rate)
    sampling = FullBatch(unit=privacy.unit) if rate == 1 else Poisson(rate, unit=privacy.unit)
    noise = privacy.noise_multiplier
    if noise is None:
        assert privacy.epsilon is not None
        target = strictest(Budget(privacy.epsilon, privacy.delta, privacy.unit), budget)
        assert target is not None
        needed = calibrate(
            target.epsilon,
            target.delta,
            sample_rate=rate,
            steps=steps * rounds,
            accountant=privacy.accountant,
        )
        noise = _noise_for(clipping, needed, expected)
    return Mechanism(sampling, clipping, noise, expected, privacy.unit, proven), steps


def _noise_for(clipping: Clipping, needed: float, expected: float) -> float:
    """The noise multiplier whose effective one, after what clipping itself spends, is `needed`."""
    effective = clipping.effective_noise_multiplier
    low, high = 0.0, needed
    while effective(high, expected) < needed:
        low, high = high, high * 2
        if high > 1e6 * max(1.0, needed):
            raise PrivacyError(
                "the clipping's own query costs more than the whole budget; raise its count_noise_multiplier"
            )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if effective(middle, expected) >= needed else (middle, high)
    return high


def own_caps(study: Study, site: str) -> Budget | None:
    """The caps of a site's own configuration, with the study's ε or δ where it states none."""
    caps = study.sites[site].caps if site in study.sites else None
    if caps is None or (caps.epsilon is None and caps.delta is None):
        return None
    asked = study.privacy
    epsilon = caps.epsilon if caps.epsilon is not None else asked.epsilon if asked else None
    if epsilon is None:
        raise PrivacyError(
            f'site "{site}" caps δ alone, and the study states no ε to go with it: state caps.epsilon too'
        )
    delta = caps.delta if caps.delta is not None else asked.delta if asked else 1e-5
    return Budget(epsilon, delta, asked.unit if asked else "record")


def own_ceiling(study: Study, site: str) -> float:
    """The ε above which this site treats the noise as no protection."""
    ceiling = study.sites[site].caps.ceiling if site in study.sites else CEILING
    if not 0 < ceiling <= CEILING:
        raise PrivacyError(
            f'site "{site}": caps.ceiling is {ceiling}; it is an ε above 0 and at most {CEILING:g}. A site that lets models'
            " out with a larger ε sets accept_unproven_privacy = true instead, and they are labelled"
        )
    return ceiling


def unprotected_patients(study: Study, data: SiteData) -> str | None:
    """A warning where records are protected one by one although patients have several."""
    if study.privacy is None or study.privacy.unit == "patient" or data.train.units is None:
        return None
    if data.train.patients == len(data.train):
        return None
    return (
        f'site "{data.name}": patients have several records, and the guarantee is per record;'
        ' privacy.unit = "patient" protects a patient with all of them'
    )


def has_own_networks(study: Study) -> bool:
    """Whether networks were given as functions or modules: these cannot be written down for another program."""
    models = study.models
    specs = [models.private, models.proxy, *(spec for own in models.sites.values() for spec in own.values())]
    return not all(isinstance(spec, str | Mapping) for spec in specs)


def consents(study: Study, site: Participant) -> bool:
    """Whether a site lets models out that have no proven guarantee, or one above its ceiling."""
    own = study.sites.get(site.name)
    return own is None or own.accept_unproven_privacy


@dataclass(frozen=True)
class SiteContext:
    """What a runtime gives to each of its sites."""

    run: str
    journal: Journal
    trainer: Trainer
    device: str = "cpu"
    ledger: Ledger | None = None
    """None is a ledger in memory, for a rehearsal."""
    network_cache: NetworkCache = field(default_factory=NetworkCache)
    """Sites of one process that take turns share their networks: weights are loaded for every job."""
    site_count: int = 1
    """How many sites learn together."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The public training sizes of all sites, where masked sums need them."""
    inputs_caveat: str | None = None
    """Why the encoded inputs themselves have no guarantee, if they have none."""
    joined: bool = False
    """Whether the site is a node, which takes part whatever records it has: a refusal would reveal something about them."""


@dataclass(frozen=True)
class SitePrivacy:
    """The privacy of one site: its mechanism and budget, from the study and the site's own caps."""

    mechanism: Mechanism | None
    steps: int
    budget: Budget | None
    delta: float | None
    unproven: str | None
    releases: int


def participant_of(
    study: Study, strategy: Strategy, data: SiteData, task: Task, context: SiteContext
) -> Participant:
    """A site that is ready to take part."""
    if not context.joined:
        check_records(data, task, study.data.one_class == "allow")
    privacy = site_privacy(study, strategy, data, context)
    accountant = study.privacy.accountant if study.privacy else "pld"
    site = Participant(
        name=data.name,
        data=data,
        task=task,
        study=study,
        run=context.run,
        journal=context.journal,
        trainer=context.trainer,
        ledger=context.ledger or Ledger(dataset=data.name, accountant=accountant),
        mechanism=privacy.mechanism,
        steps=privacy.steps,
        budget=privacy.budget,
        unproven=privacy.unproven,
        ceiling=own_ceiling(study, data.name),
        delta=privacy.delta,
        device=context.device,
        site_count=context.site_count,
        sizes=context.sizes,
        releases=privacy.releases,
        joined=context.joined,
        network_cache=context.network_cache,
        stopping=None if study.stop is None else Stopping(study.stop),
    )
    site.add_networks(strategy)
    if masked_of(study) is not None:
        site.mechanism = _masked_mechanism(study, site, strategy)
    return site


def _masked_mechanism(study: Study, site: Participant, strategy: Strategy) -> MaskedMechanism:
    """The mechanism of masked sums: the noise belongs to the sum, so it follows from the study alone.

    A site that allows less than the study's ε takes part in fewer rounds, and adds noise alone to the others.
    """
    settings, privacy, plain = masked_of(study), study.privacy, site.mechanism
    assert settings is not None
    assert privacy is not None
    assert plain is not None
    role = getattr(strategy, "architecture", "proxy")
    network = site.network(role, site.architecture(role).name)
    if network.normalises:
        raise StudyError(
            f"the {role} network {site.architecture(role).name} keeps running statistics of records, which are not part of a"
            " masked sum; use a network without them, such as one with group normalisation"
        )
    training = privacy.for_training()
    clip, noise = plain.clipping.bound, training.noise_multiplier
    size = network.flat.numel()
    if has_centre(site.build(role)):  # which is a sum of its own, on the same grid
        size = max(size, site.network(PROFILE, site.architecture(PROFILE).name).flat.numel())
    terms = SumTerms(
        len(site.sizes), settings.colluding, settings.dropouts,
        noise_std=(noise or 1.0) * clip, clip=clip, size=size,
    )  # fmt: skip
    if noise is None:
        assert training.epsilon is not None
        target = Budget(training.epsilon, training.delta, training.unit)
        # what a site releases beside its share, such as a loss, has the same noise and costs no more than a share
        releases = study.rounds * site.releases
        terms = site.network_cache.once(
            ("masked noise", target, releases, terms),
            lambda: calibrate_masked(target, releases, terms),
        )
    terms.check_sum(sum(site.sizes.values()))
    return MaskedMechanism(
        plain.sampling, plain.clipping, terms.noise_std / clip, plain.expected_batch, plain.unit, plain.proven,
        terms=terms,
    )  # fmt: skip


def site_privacy(study: Study, strategy: Strategy, data: SiteData, context: SiteContext) -> SitePrivacy:
    """The privacy of a site. The site's own caps win over the study."""
    caps, privacy = own_caps(study, data.name), study.privacy
    unproven = traits(strategy).unproven or context.inputs_caveat
    releases = strategy.releases(context.site_count) if isinstance(strategy, Releases) else 1
    if privacy is None:
        _refuse_caps_without_noise(study, strategy, data.name, caps)
        unproven = unproven or "the study has no [privacy]: models are trained without noise"
        return SitePrivacy(None, 0, caps, None, unproven, releases)
    if privacy.unit == "patient" and data.train.units is None:
        raise DataError(
            f'site "{data.name}": privacy.unit is "patient", but the records name no patient;'
            ' name the patient column in the schema, or use unit = "record"'
        )
    try:
        training = privacy.for_training()
        training = replace(training, steps=traits(strategy).steps or training.steps)
        rounds = study.rounds * releases
        mechanism, steps = mechanism_of(training, data.size, rounds, unproven is None, caps)
    except (StudyError, PrivacyError) as error:
        raise type(error)(f'site "{data.name}": {error}') from None
    budget = caps
    if training.epsilon is not None:
        budget = strictest(Budget(training.epsilon, training.delta, training.unit), caps)
    delta = min(privacy.delta, caps.delta) if caps else privacy.delta
    return SitePrivacy(mechanism, steps, budget, delta, unproven, releases)


def _refuse_caps_without_noise(study: Study, strategy: Strategy, site: str, caps: Budget | None) -> None:
    sends = study.topology is not None or traits(strategy).topology is not None
    if caps is not None and sends:
        raise PrivacyError(
            f'site "{site}" allows {caps}, and the study has no [privacy]: without noise nothing keeps'
            " to that; add [privacy] to the study, or lift the site's caps"
        )


def leaving_when_spent(study: Study, sites: Mapping[str, Participant]) -> Churn:
    """The study's churn, with sites leaving for good when their budget ends, if the study wants that.

    When a budget ends follows from declared counts and presence alone, so every site knows it beforehand.
    """
    churn = study.churn
    if not leaves_when_spent(study):
        return churn
    leave = dict(churn.leave)
    for name, site in sites.items():
        left = site.rounds_left()
        if site.mechanism is None or left is None:
            continue
        if churn.participation:
            raise StudyError(
                'privacy.when_spent = "leave" does not go with churn.participation: who is drawn would depend on who'
                ' has left; use "relay"'
            )
        if left == 0:
            raise PrivacyError(
                f'site "{name}": its budget of {site.budget} does not last for a single round of {site.steps} steps'
                f" with noise {site.mechanism.noise_multiplier:g}; add noise, or make fewer steps"
            )
        rounds = range(churn.join.get(name, 0), min(study.rounds, leave.get(name, study.rounds)))
        if (first := first_round_unpaid(site, churn, rounds)) is not None:
            leave[name] = first
    return replace(churn, leave=leave)


def leaves_when_spent(study: Study) -> bool:
    """Whether sites leave when their budget is spent; otherwise they pass on what they receive."""
    privacy = study.privacy
    return privacy is not None and privacy.when_spent == "leave"


def first_round_unpaid(site: Participant, churn: Churn, rounds: range) -> int | None:
    """The first of these rounds that the site's budget does not pay for; None if it pays for all of them."""
    left = site.rounds_left()
    if left is None:
        return None
    for number in rounds:
        if left == 0:
            return number
        left -= churn.present(number, site.name)
    return None


def check_common_proxy(study: Study) -> None:
    """Private models may differ between sites; what is exchanged may not."""
    for name, own in study.models.sites.items():
        if "proxy" in own and own["proxy"] != study.models.proxy:
            raise StudyError(
                f"models.sites.{name}.proxy differs from models.proxy: the proxy is common to all sites;"
                " a site's own adaptation belongs into its private model"
            )
    if len({str(study.models.of(s, "private")) for s in study.models.sites}) and needs_equal(study):
        raise StudyError(
            f'strategy "{study.strategy_name}" averages the private architecture, which differs between sites;'
            ' use architecture = "proxy", or proxyfl'
        )


def needs_equal(study: Study) -> bool:
    """Whether the strategy sends models of the private architecture from site to site."""
    strategy = study.build_strategy()
    sends = traits(strategy).topology is not None
    return sends and getattr(strategy, "architecture", "proxy") == "private"
