"""The verdict on one run's collaborative model at one site, from the site's test patients.

A site in the field has one run and one model, and no other seeds. The claim is about that model only: is it better than
the model that the site gets alone, for patients like those tested? docs/decisions/0012-one-rule.md compares this with the
rule over seeds.
"""

from __future__ import annotations

import numpy as np

from confrere.core.metrics import proper
from confrere.core.protocols import Predictor
from confrere.core.results import AtThreshold, ModelVerdict
from confrere.site.journal_results import prevalence, tested
from confrere.site.participant import Participant
from confrere.site.predictions import RecordPredictions, marks_of
from confrere.statistics.clinical_metrics import errors, in_patients
from confrere.statistics.fixed_model_gain import JudgedPatients, judge_fixed, model_effects


def model_verdict(site: Participant, together: Predictor, alone: Predictor) -> ModelVerdict | None:
    """Judge one model against another on the site's test patients, by the study's primary measure. PRIVATE."""
    counts = tested(site.data.test, site.task)
    before, after = _predictions(site, alone), _predictions(site, together)
    effects = model_effects(before, after)
    wanted = site.study.evaluation.primary
    metric = wanted if wanted in effects else proper(effects)
    if counts is None or metric is None:
        return None
    gain = judge_fixed({metric: effects[metric]})[metric]
    ends = None if gain.low is None or gain.high is None else (gain.low, gain.high)
    return ModelVerdict(metric, gain.mean, gain.word, counts, ends, _at_threshold(site, before, after))


def _predictions(site: Participant, predictor: Predictor) -> RecordPredictions:
    test = site.data.test
    outputs = site.own_mix(site.predicted(predictor, test)).float().cpu().numpy()
    return RecordPredictions(outputs, test.targets.numpy(), marks_of(test, site.name), site.task.spread)


def _at_threshold(
    site: Participant, before: RecordPredictions, after: RecordPredictions
) -> AtThreshold | None:
    threshold = site.study.threshold_of(site.name, prevalence(site.data.train, site.task))
    if threshold is None or not np.isfinite(after.outputs).all():
        return None
    alone, together = (in_patients([p.predictions], [threshold]) for p in (before, after))
    if alone is None or together is None:
        return None
    patients = JudgedPatients.of(before.targets, before.marks)
    changes = [
        effect.interval() if (effect := patients.effect(later - earlier)).enough else None
        for earlier, later in zip(errors(before, threshold), errors(after, threshold), strict=True)
    ]
    return AtThreshold(
        threshold,
        (alone.missed, together.missed),
        (alone.false_alarms, together.false_alarms),
        *changes,
    )
