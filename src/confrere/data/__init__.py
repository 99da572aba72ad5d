"""Schema, records and task kinds; reading, encoding and splitting of tables; the bundled data sets."""
