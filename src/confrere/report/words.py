"""Format metrics, strategies, privacy and bytes in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from confrere.core import metrics
from confrere.core.results import Measured, ModelVerdict, PrivacySpent, Tested
from confrere.statistics.verdict import EARLIER, LEAST_RARER, LEAST_SEEDS, Gain, GapClosed

metric = metrics.named
"""A metric by its name, with its label and its meaning."""

LOST = "Collaboration does harm here: it is clearly worse than alone, nowhere clearly better, and privacy was spent."
NOT_WORTH_IT = (
    "Collaboration is not worth its privacy here: there is no gain over alone, and privacy was spent."
)

NO_NOISE = "no privacy guarantee: trained without noise"


def primary_first(names: Iterable[str], primary: str | None) -> list[str]:
    """The metric that decides, then the others."""
    return sorted(names, key=lambda m: m != primary)


def figure(name: str, value: float) -> str:
    """A measured value: «86.4 %» for shares, three decimals for the rest."""
    return f"{value * 100:.1f} %" if metric(name).percent else _plain(value)


def spread(name: str, std: float | None, like: float = 0.0) -> str:
    """«± 0.012», with as many decimals as a value like that; nothing where there is no spread."""
    if std is None:
        return ""
    text = f"{std * 100:.1f}" if metric(name).percent else _plain(std, like=like)
    if std > 0 and not any(c in "123456789" for c in text):
        text = f"<{text[:-1]}1"
    return f"± {text}"


def measured(name: str, value: Measured | float | None) -> str:
    """«0.914 ± 0.012», without a spread «0.914», or a dash where nothing was measured."""
    if value is None:
        return "–"
    if isinstance(value, float | int):
        return figure(name, value)
    if metric(name).percent and value.std is not None:
        return f"{value.mean * 100:.1f} {spread(name, value.std)} %"
    return f"{figure(name, value.mean)} {spread(name, value.std, value.mean)}".rstrip()


def signed(name: str, value: float) -> str:
    """A gain: «+0.017», «−1.2»; for shares in points."""
    text = f"{value * 100:+.1f}" if metric(name).percent else _plain(value, "+")
    if value == 0:
        return "0"
    if not any(c in "123456789" for c in text):
        text = text.replace("-", "").replace("+", "")
    return text.replace("-", "−")


def even(labels: Sequence[str]) -> list[str]:
    """The labels of an axis without trailing zeros: «0.850», «0.900» become «0.85», «0.90»."""
    split = [label.partition(" ") for label in labels]
    numbers = [number for number, _, _ in split]
    while any("." in n for n in numbers) and all(n.endswith("0") for n in numbers if "." in n):
        numbers = [n[:-1].removesuffix(".") if "." in n else n for n in numbers]
    return [f"{n}{space}{unit}" for n, (_, space, unit) in zip(numbers, split, strict=True)]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


SINGLE = "a test set there holds one patient only"
"""Why the mean over sites is not judged."""
PLAIN_INTERVAL, CORRECTED_INTERVAL = "95 % interval", "corrected 95 % interval"


def interval_label(value: Gain) -> str:
    """What the interval of a gain is: corrected for the number of words where it has a word, so wider than a plain one."""
    return PLAIN_INTERVAL if value.stated is None else CORRECTED_INTERVAL


def gained(name: str, value: Gain) -> str:
    """«+0.017 (95 % interval +0.011 to +0.023)», or «corrected 95 % interval» where it has a word."""
    unit = " points" if metric(name).percent else ""
    if value.word == EARLIER:
        return f"{signed(name, value.mean)}{unit}"
    if value.low is None or value.high is None:
        why = no_interval(value.pairs)
        return f"{signed(name, value.mean)}{unit} ({why})"
    if value.low == value.high == 0:
        return "no difference in any seed"
    return _with_interval(name, value.mean, (value.low, value.high), interval_label(value))


def compared(name: str, value: Gain) -> str:
    """A gain in words, better or worse only where the verdict says so: «better by 0.036 (corrected 95 % interval 0.005 to …)».

    Otherwise a signed figure: «+0.008, not clear (corrected 95 % interval −0.005 to +0.021; + is better)».
    """
    unit = " points" if metric(name).percent else ""
    if value.low == value.high == 0:
        return "no difference in any seed"
    size, interval = signed(name, value.mean), no_interval(value.pairs)
    ends = [] if value.low is None or value.high is None else [value.low, value.high]
    if not value.clear:
        if ends:
            interval = f"{interval_label(value)} {' to '.join(signed(name, end) for end in ends)}"
        note = "+ is better" if value.word == EARLIER else f"{interval}; + is better"
        return f"{size}{unit}, {'not clear' if value.judged else 'not judged'} ({note})"
    if ends:
        nearest, furthest = sorted(ends, key=abs)
        sizes = " to ".join(signed(name, end).lstrip("+−") for end in (nearest, furthest))
        interval = f"{interval_label(value)} {sizes}"
    return f"{value.word} by {size.lstrip('+−')}{unit} ({interval})"


def _with_interval(name: str, mean: float, ends: tuple[float, float], label: str) -> str:
    unit = " points" if metric(name).percent else ""
    return f"{signed(name, mean)}{unit} ({label} {' to '.join(signed(name, end) for end in ends)})"


def model_verdict(verdict: ModelVerdict, deployed: bool = True) -> str:
    """«for this model: better than training alone, log loss +0.041 (95 % interval +0.012 to +0.070), on 60 patients …»."""
    words = {
        "better": "better than training alone",
        "worse": "worse than training alone",
        "no clear difference": "no clear difference from training alone",
    }
    what = "this model" if deployed else "the collaborative model, which is not deployed"
    if verdict.interval is None:
        figures = signed(verdict.metric, verdict.gain)
    elif not any(verdict.interval):
        figures = "the same for every patient"
    else:
        figures = _with_interval(verdict.metric, verdict.gain, verdict.interval, PLAIN_INTERVAL)
    return (
        f"for {what}: {words.get(verdict.word, verdict.word)}, {metric(verdict.metric).label} {figures},"
        f" on {tested(verdict.tested)}"
    )


def errors_of_100(verdict: ModelVerdict) -> str:
    """«of 100 patients, alone → together, missed 12 → 7 (95 % interval of the change −9 to −1), false alarms 4 → 4 (−2 to +2),
    at a threshold of 0.25; based on 60 patients, 14 of them «abnormal»»; nothing without two classes.
    """
    found = verdict.at_threshold
    if found is None:
        return ""
    missed, alarms = (
        " → ".join(f"{100 * share:.0f}" for share in pair) for pair in (found.missed, found.false_alarms)
    )
    few = ""
    if found.missed_change is not None and found.false_alarms_change is not None:
        missed += f" (95 % interval of the change {interval_of_100(found.missed_change)})"
        alarms += f" ({interval_of_100(found.false_alarms_change)})"
    else:
        few = ": too few to judge"
    return (
        f"of 100 patients, alone → together, missed {missed}, false alarms {alarms}, at a threshold of"
        f" {found.threshold:.2g}; based on {tested(verdict.tested)}{few}"
    )


def interval_of_100(ends: tuple[float, float]) -> str:
    """«−6 to +1», in patients of 100; with a decimal where both ends round to none."""
    digits = 0 if any(round(100 * end) for end in ends) else 1
    low, high = (_of_100(100 * end, digits) for end in ends)
    return "no change" if low == high == "0" else f"{low} to {high}"


def _of_100(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if any(c in "123456789" for c in text) else "0"


def share_closed(closed: GapClosed) -> str:
    """«62 % (95 % interval 41 to 83 %)»; a share that is not known well is not stated."""
    if closed.share is None or closed.interval is None:
        if not closed.gap.judged:
            return closed.gap.word
        return "too uncertain to state" if closed.gap.word == "better" else "no clear gap"
    low, high = (f"{100 * end:.0f}" for end in closed.interval)
    return f"{closed.share * 100:.0f} % ({PLAIN_INTERVAL} {low} to {high} %)".replace("-", "−")


def no_interval(pairs: int) -> str:
    """Why a gain has no interval."""
    if pairs >= LEAST_SEEDS:
        return "too few patients for an interval"
    return "one seed" if pairs == 1 else f"{pairs} seeds, too few for an interval"


def tested(counts: Tested | None) -> str:
    """«60 patients, 14 of them «abnormal»»: those of class 1 where there are two; nothing where it was not recorded.

    Where patients of the other class are too few to judge, they are counted too.
    """
    if counts is None:
        return ""
    patients = count(counts.patients, "patient").replace("\u2009", "\u202f")  # not broken over lines
    if counts.positive is not None and counts.positive_class is not None:
        both = counts.rarer_class != counts.positive_class and counts.rarer < LEAST_RARER
        rest = f" and {plain_number(counts.rarer)} «{counts.rarer_class}»" if both else ""
        return f"{patients}, {plain_number(counts.positive)} of them «{counts.positive_class}»{rest}"
    if counts.rarer_class is not None:
        return f"{patients}, {plain_number(counts.rarer)} of them «{counts.rarer_class}»"
    if counts.rarer < counts.patients:
        return f"{patients}, {plain_number(counts.rarer)} of them outside the most frequent class"
    return patients


def plain_number(value: int) -> str:
    """«12 300», with a narrow space that no line breaks at."""
    return f"{value:,}".replace(",", "\u202f")


def _plain(value: float, sign: str = "", like: float = 0.0) -> str:
    size = max(abs(value), abs(like))
    if size >= 100:
        return f"{value:{sign},.0f}".replace(",", "\u2009")
    return f"{value:{sign}.1f}" if size >= 10 else f"{value:{sign}.3f}"


def size(count: float | None) -> str:
    """Bytes in human units: «34 KB», «1.2 MB»; a dash where unknown."""
    if count is None:
        return "–"
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"


def in_one_unit(counts: Sequence[float]) -> list[str]:
    """Bytes in the unit of the largest, so that they can be compared: «0.9 KB», «12.0 KB»."""
    largest = max(counts, default=0.0)
    power = next((p for p in range(4, 0, -1) if largest >= 999.5 * 1000 ** (p - 1)), 0)
    unit = ("B", "KB", "MB", "GB", "TB")[power]
    digits = 0 if power == 0 or largest / 1000**power >= 99.5 else 1
    return [f"{count / 1000**power:.{digits}f} {unit}" for count in counts]


def duration(seconds: float | None) -> str:
    """«41 s», «3 min», «2 h 5 min»; a dash where unknown."""
    if seconds is None:
        return "–"
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


HIDDEN_BY_MASKS = (
    "Not available with masked sums: no site receives the model of a single peer, so its influence, its weight and a trial of"
    " its model cannot be measured, and credit rests on rounds and declared sizes alone."
)


def epsilon(value: float) -> str:
    """ε rounded up, never down: what is shown is never less than what was spent."""
    if math.isinf(value):
        return "∞"
    digits = 1 if value >= 1 else 2
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:.{digits}f}"


def delta(value: float) -> str:
    """«1e-5», «1.9e-4»."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def per(unit: str) -> str:
    return unit if unit.startswith("per ") else f"per {unit}"


def privacy(spent: PrivacySpent | None, *, accountant: bool = True) -> str:
    """«1.8 of 3.0 (ε, δ = 1e-5, per record, accountant pld)»; never an ε without what it means."""
    if spent is None:
        return NO_NOISE
    budget = f" of {epsilon(spent.budget)}" if spent.budget is not None else ""
    terms = ["ε", f"δ = {delta(spent.delta)}", per(spent.unit)]
    if spent.accountant:
        terms.append(f"accountant {spent.accountant}")
    elif accountant:
        terms.append("accountant not recorded")
    text = f"{epsilon(spent.epsilon)}{budget} ({', '.join(terms)})"
    for unit, value in spent.others:
        text += f"; {per(unit)}: {'no bound' if value is None else epsilon(value)}"
    notes = reservations(spent)
    return f"{text}: {', '.join(notes)}" if notes else text


def reservations(spent: PrivacySpent) -> list[str]:
    """What has to be said wherever this ε stands: «as published, not proven», «above the ceiling of 10», and what it assumes
    of the other sites."""
    notes = [spent.condition] if spent.condition else []
    notes += [] if spent.proven else ["as published, not proven"]
    ceiling = spent.exceeded_ceiling
    return notes if ceiling is None else [*notes, f"above the ceiling of {ceiling:g}"]


def lacks(columns: Mapping[str, str]) -> str:
    """«TSH and T3 (imputed)»; a column that no site uses is «left out»."""
    handled = {how: [c for c, h in columns.items() if h == how] for how in dict.fromkeys(columns.values())}
    return "; ".join(f"{listing(names, 8)} ({how})" for how, names in handled.items())


def of_kind(kind: str, number: int) -> str:
    """«3 sites with all columns», «1 site that lacks some»."""
    if kind == "complete":
        return f"{count(number, 'site')} with all columns"
    return f"{count(number, 'site')} that {'lacks' if number == 1 else 'lack'} some"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """«1 site», «5 sites»."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}".replace(",", "\u2009")


def listing(names: Sequence[str], most: int = 6) -> str:
    """«A, B and C»; long lists end in «and 12 more»."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
