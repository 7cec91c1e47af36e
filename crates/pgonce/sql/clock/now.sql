-- pgonce.now(): the only clock of pgonce, read at the moment of the call.
-- answers  the database's wall clock; never the start of the transaction, so a lease granted after a wait for
--          a lock has not expired on arrival
-- locks    nothing
-- writes   nothing
-- raises   nothing
-- note     pgonce._set_clock and pgonce._move_clock put another body here for tests; production pays nothing
--          for that, and no setting of a session can change the time
-- example  select pgonce.now();
create or replace function pgonce.now()
returns timestamptz
language sql volatile parallel safe
return clock_timestamp();
