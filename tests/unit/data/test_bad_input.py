"""Whatever is wrong with a file is said with file, line and column; nothing is lost, nothing guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column, Translation
from confrere.data.encode.encoder import encode, encode_table
from confrere.data.federation import Source, of_files
from confrere.data.read.sources import ReadOptions, read
from confrere.data.schema import Schema
from confrere.data.tasks import Label

SCHEMA = Schema(
    label=Label(column="sick"),
    columns=(
        Column("age", unit="years", range=(0, 120)),
        Column("sex", kind="category", categories=("F", "M")),
    ),
    patient="who",
)
GOOD = "who,age,sex,sick\n1,40,F,yes\n2,50,M,no\n3,60,F,yes\n4,,M,no\n"


def written(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder: Path, text: str | bytes, schema: Schema = SCHEMA) -> str:
    with pytest.raises(DataError) as caught:
        encode(read(written(folder, text)), schema)
    message = str(caught.value)
    assert "a.csv" in message
    assert message.count("\n") <= 1
    return message


def test_a_good_file_is_read(tmp_path: Path) -> None:
    records = encode(read(written(tmp_path, GOOD)), SCHEMA)
    assert records.inputs.shape == (4, 5)
    assert records.inputs[3].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_a_wrong_delimiter_is_named_with_the_likely_one(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace(",", ";"))
    with pytest.raises(DataError, match="one column only; the file seems to use ';'"):
        read(path, ReadOptions(delimiter=","))
    assert list(read(path).columns) == ["who", "age", "sex", "sick"]


def test_mixed_types_in_a_column_name_the_line(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("2,50", "2,fifty"))
    assert "line 3, column age: 'fifty' is not a number" in message


def test_a_missing_code_of_the_schema_is_not_a_mixed_type(tmp_path: Path) -> None:
    schema = Schema(label=SCHEMA.label, columns=(Column("age", range=(0, 120), missing=("?", "-9")),))
    path = written(tmp_path, GOOD.replace("2,50", "2,?").replace("3,60", "3,-9"))
    assert encode(read(path), schema).inputs[:, 1].tolist() == [0, 1, 1, 1]


def test_a_label_that_is_all_one_class_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace(",no", ",yes"))
    with pytest.raises(DataError, match=r"a.csv, column sick: every record has the label 'yes'"):
        of_files({"a": path, "b": path}, SCHEMA)


def test_the_same_record_of_a_patient_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "2,50,M,no\n")
    assert "line 6, column who: the same record of patient 2 for the second time" in message


def test_one_record_per_patient_can_be_asked_for(tmp_path: Path) -> None:
    once = Schema(label=SCHEMA.label, columns=SCHEMA.columns, patient="who", repeats="refuse")
    assert "the patient 2 is there for the second time" in refused(tmp_path, GOOD + "2,51,M,no\n", once)


def test_visits_of_one_patient_are_kept_and_counted_as_one_patient(tmp_path: Path) -> None:
    assert encode(read(written(tmp_path, GOOD + "2,51,M,no\n")), SCHEMA).patients == 4


def test_an_unknown_category_is_named_with_the_known_ones(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("60,F", "60,woman"))
    assert "line 4, column sex: 'woman' is not a category of the schema (F, M)" in message


def test_a_value_outside_the_range_is_refused_unless_the_schema_says_otherwise(tmp_path: Path) -> None:
    text = GOOD.replace("2,50", "2,500")
    assert "line 3, column age: 500 is not within 0 … 120 years" in refused(tmp_path, text)
    lenient = Schema(label=SCHEMA.label, columns=(Column("age", range=(0, 120), outside="missing"),))
    assert encode(read(written(tmp_path, text)), lenient).inputs[1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("text", ["", "\n\n", "who,age,sex,sick\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "empty" in (message := refused(tmp_path, text)) or "no record" in message


def test_a_file_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("wb") as sparse:
        sparse.truncate(10 * 1024**3)  # ten gigabytes that take no room
    with pytest.raises(DataError, match=r"10,240 MB where at most 100 MB were expected.*stream"):
        read(path, ReadOptions(limit=100 * 1024**2))


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (32, 32), dtype=np.uint8)).save(tmp_path / "x.png")
    raw = (tmp_path / "x.png").read_bytes()
    (tmp_path / "y.png").write_bytes(raw[: len(raw) // 2])
    labels = written(tmp_path, "file,sick\nx.png,yes\ny.png,no\n")
    schema = Schema(label=SCHEMA.label, columns=(Column("file", kind="image"),))
    with pytest.raises(DataError, match=r"a.csv, line 3, column file: y.png cannot be read as a picture"):
        encode(read(labels), schema, "", Translation(folder=str(tmp_path)))


def test_an_image_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    labels = written(tmp_path, "file,sick\n../../etc/passwd,yes\n")
    schema = Schema(label=SCHEMA.label, columns=(Column("file", kind="image"),))
    with pytest.raises(DataError, match="outside of the image folder"):
        encode(read(labels), schema, "", Translation(folder=str(tmp_path)))


def test_a_line_with_too_many_or_too_few_fields_is_named(tmp_path: Path) -> None:
    assert "line 3: 5 fields where 4 were expected" in refused(tmp_path, GOOD.replace("2,50", "2,5,0"))
    assert "line 3: 3 fields where 4 were expected" in refused(tmp_path, GOOD.replace("2,50,M,no", "2,50,M"))
    assert "fields" in refused(tmp_path, "a,b\n1,2,3\n4,5,6\n")


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    text = 'who,age,sex,sick,note\n1,40,F,yes,"two\nlines"\n\n2,fifty,M,no,\n'
    assert "line 5, column age" in refused(tmp_path, text)


def test_a_column_name_twice_or_none_is_refused(tmp_path: Path) -> None:
    assert "line 1: the column name 'age' is there twice" in refused(tmp_path, "age,age\n1,2\n")
    assert "line 1: column 2 has no name" in refused(tmp_path, "age,,sex\n1,2,3\n")


def test_an_open_quotation_mark_is_noticed(tmp_path: Path) -> None:
    assert "line 6: a quotation mark is opened and never closed" in refused(tmp_path, GOOD + '5,"40,F,yes\n')


def test_a_missing_label_is_refused_or_left_out_as_the_schema_says(tmp_path: Path) -> None:
    text = GOOD.replace("50,M,no", "50,M,")
    assert "line 3, column sick: the label is missing" in refused(tmp_path, text)
    label = Label(column="sick", unlabelled="drop")
    assert len(encode(read(written(tmp_path, text)), Schema(label=label, columns=SCHEMA.columns))) == 3


def test_a_label_column_that_is_not_there_shows_which_are(tmp_path: Path) -> None:
    other = Schema(label=Label(column="outcome"), columns=SCHEMA.columns)
    assert "'outcome' is not there; columns are 'who', 'age', 'sex', 'sick'" in refused(tmp_path, GOOD, other)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="holds no picture"):
        read(tmp_path)


def test_windows_and_utf16_files_are_read_and_a_wrong_encoding_is_named(tmp_path: Path) -> None:
    text = "who,age,sex,sick,ward\n1,40,F,yes,Zürich\n2,41,M,no,Genève\n"
    for encoding in ("cp1252", "utf-16", "utf-8-sig", "utf-8"):
        frame = read(written(tmp_path, text.encode(encoding)))
        assert frame["ward"].tolist() == ["Zürich", "Genève"], encoding
    assert "cp1252" in " ".join(read(written(tmp_path, text.encode("cp1252"))).attrs["notes"])
    with pytest.raises(DataError, match=r"line 2: is not utf-8|cannot be read as utf-8"):
        read(written(tmp_path, text.encode("cp1252")), ReadOptions(encoding="utf-8"))
    with pytest.raises(DataError, match=r'is not cp1252; state .* encoding = "latin-1"'):
        read(written(tmp_path, text.encode("cp1252") + b"3,42,F,no,\x81\n"))


def test_a_decimal_comma_is_understood_and_said(tmp_path: Path) -> None:
    frame = read(written(tmp_path, "who;age;sex;sick\n1;40,5;F;yes\n2;41;M;no\n"))
    assert frame["age"].tolist() == [40.5, 41.0]
    assert any("decimal comma" in note for note in frame.attrs["notes"])


def test_packed_and_old_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unpack"):
        read(written(tmp_path, b"x", "a.csv.gz"))
    with pytest.raises(DataError, match=r"save it as \.xlsx"):
        read(written(tmp_path, b"x", "a.xls"))


def test_a_site_column_with_gaps_is_refused(tmp_path: Path) -> None:
    schema = Schema(label=SCHEMA.label, columns=(Column("age", range=(0, 120)),), site="site")
    path = written(tmp_path, "age,sick,site\n1,yes,a\n2,no,\n")
    with pytest.raises(DataError, match="the record names no site"):
        of_files({"all": Source(path)}, schema)


def test_a_code_with_a_leading_zero_stays_as_it_is_written(tmp_path: Path) -> None:
    postcode = Column("postcode", kind="category", prefix=2, categories=("01", "80"))
    schema = Schema(label=SCHEMA.label, columns=(postcode,))
    path = written(tmp_path, "postcode,sick\n01067,yes\n80331,no\n01069,no\n80333,yes\n")
    sites = of_files({"a": path, "b": path}, schema).sites
    assert sites["a"].all.inputs[:, :2].sum(dim=0).tolist() == [2, 2]


def test_how_dates_are_written_is_stated_or_the_guess_is_reported() -> None:
    seen = Column("seen", kind="date", coarsen="year", range=(2000, 2030))
    schema = Schema(label=Label(column="sick"), columns=(seen,))
    frame = pd.DataFrame({"seen": ["31/01/2020", "01/02/2021"], "sick": ["yes", "no"]})
    guessed = encode_table(frame, schema)
    assert 'a node needs date_format = "%d/%m/%Y"' in guessed.notes[0]
    stated = replace(schema, columns=(replace(seen, date_format="%d/%m/%Y"),))
    assert torch.equal(encode_table(frame, stated).records.inputs, guessed.records.inputs)
    assert not encode_table(frame, stated).notes
    with pytest.raises(DataError, match="may be day first or month first"):
        encode_table(frame[1:], schema)
    left = encode_table(frame, schema, "", Translation(drop=True))
    assert len(left.records) == 0
    assert "date_format" in left.notes[0]
    with pytest.raises(StudyError, match="names no day, month and year"):
        Schema.from_dict(
            {
                "label": "y",
                "columns": {
                    "seen": {"kind": "date", "coarsen": "year", "range": [2000, 2030], "date_format": "%d/%Y"}
                },
            }
        )


def test_a_guessed_delimiter_is_reported(tmp_path: Path) -> None:
    guessed = read(written(tmp_path, GOOD.replace(",", ";")))
    assert "state delimiter = ';'" in " ".join(guessed.attrs["notes"])
    assert not read(written(tmp_path, GOOD)).attrs["notes"]
