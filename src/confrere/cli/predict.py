"""`confrere predict`: apply a site's saved model to a file of records; no node is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError
from confrere.core.owner_only import write_private


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="model.safetensors, or the folder it is in.")
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA.csv", help="Records, in the columns of the schema.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.csv", help="Where the predictions go.")],
    encoder: Annotated[
        Path | None,
        typer.Option(metavar="FILE.onnx", help="The study's ONNX file, if it was moved."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a file of records with a site's model. Model and predictions stay at the site.

    Example: `confrere predict node/model/model.safetensors patients.csv -o predictions.csv`
    """
    from confrere.site.saved_model import SavedModel, predictions

    if out.exists() and out.resolve() == data.resolve():
        raise StudyError(f"{out} is the file of records itself; choose another -o")
    found = predictions(SavedModel(model), data, encoder)
    write_private(out, found.to_csv(index=False, float_format="%.6g"))
    if as_json:
        print_json({"out": str(out), "records": len(found), "columns": list(found.columns)})
        return
    console.print(
        f"{len(found):,} predictions in {out}; they are about patients, keep them like records", markup=False
    )
