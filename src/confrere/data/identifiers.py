"""Detect columns that may identify a person."""

from __future__ import annotations

import re

_WORDS: tuple[tuple[str, str], ...] = (
    (r"(first|last|sur|family|given|middle|maiden|full|patient|nach|vor)_?name",
     "looks like a person's name"),
    (r"names?|nom|prenom|initials", "looks like a person's name"),
    (r"dob|birth_?(date|day)|date_of_birth|birthdate|born|geburtsdatum",
     "looks like a date of birth"),
    (
        r"(patient|person|subject|record|case|encounter|visit|admission|hospital|medical|study|health|pat|sample)"
        r"_?(id|no|nr|num|number|code)",
        "looks like a record number",
    ),
    (r"id|ids|uid|uuid|mrn|ssn|nhs|nhs_?(no|number)|pid|eid|insurance_?(id|no|number)|social_security",
     "looks like a record number"),
    (r"identifier|passport|accession(_?(no|number))?|barcode", "looks like a record number"),
    (r"address|street|postcode|post_?code|zip|zip_?code|plz|city|town|village|house_?(no|number)",
     "looks like an address"),
    (r"phone|telephone|mobile|fax|e_?mail|email_?address|url|ip|ip_?address",
     "looks like a contact"),
    (r"lat|latitude|lon|lng|longitude|gps", "looks like a place on the map"),
)  # fmt: skip
_PATTERNS = tuple((re.compile(pattern), reason) for pattern, reason in _WORDS)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def looks_identifying(name: str) -> str | None:
    """Why a column of this name should not be a feature, or None.

    >>> looks_identifying("PatientID"), looks_identifying("nodes")
    ('looks like a record number', None)
    """
    words = re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower()).strip("_")
    for pattern, reason in _PATTERNS:
        if pattern.fullmatch(words):
            return reason
    return None
