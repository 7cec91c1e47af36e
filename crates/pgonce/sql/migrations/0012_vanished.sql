-- 0012_vanished: an intent remembers that a holder vanished until it is known how its work ended.
-- breaking: no

-- Null is not stored, so no row is rewritten. What is unfinished and was taken over before is not known: its row says nothing of it.
alter table pgonce.intent add column vanished_at timestamptz;
