-- A ledger as version 0.1.0 wrote it (`Ledger(path, dataset="st-mary")`, three spends), dumped by SQLite.
BEGIN TRANSACTION;
CREATE TABLE entries (
  counter INTEGER PRIMARY KEY, key TEXT NOT NULL, charges TEXT NOT NULL, at TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
);
INSERT INTO "entries" VALUES(1,'study-1/0/proxy','[["{\"kind\":\"gaussian\",\"noise_multiplier\":\"20.0\",\"sample_rate\":\"1\"}", 3]]','2026-11-17T02:58:05+00:00','a2655ff1692e1b27660d830680d87066f6b0f936a68a424bfbc8aed98e2f74c8','d00c5bac74e105ff9caea6046df9b0c616125efedc28a9a0fa7e679896e94fb8');
INSERT INTO "entries" VALUES(2,'study-1/1/proxy','[["{\"kind\":\"gaussian\",\"noise_multiplier\":\"20.0\",\"sample_rate\":\"1\"}", 3]]','2026-11-17T02:58:06+00:00','d00c5bac74e105ff9caea6046df9b0c616125efedc28a9a0fa7e679896e94fb8','b8e7a8f8e289790320d8c0b45fd4a24ba9a35ec5c05beb98fc7868fc336f396f');
INSERT INTO "entries" VALUES(3,'study-2/0/proxy','[["{\"kind\":\"gaussian\",\"noise_multiplier\":\"8.0\",\"sample_rate\":\"1/16\"}", 40]]','2026-11-17T02:58:06+00:00','b8e7a8f8e289790320d8c0b45fd4a24ba9a35ec5c05beb98fc7868fc336f396f','684e166ed7fb87f21528c7f2625cbedf2cd165110f77d5050649b407bcb2427c');
CREATE TABLE ledger (
  one INTEGER PRIMARY KEY CHECK (one = 1), dataset TEXT NOT NULL, counter INTEGER NOT NULL, head TEXT NOT NULL
);
INSERT INTO "ledger" VALUES(1,'st-mary',3,'684e166ed7fb87f21528c7f2625cbedf2cd165110f77d5050649b407bcb2427c');
CREATE INDEX entries_by_key ON entries (key);
CREATE TRIGGER entries_stay BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never removed'); END;
CREATE TRIGGER entries_are_final BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
COMMIT;
