-- pgonce._replay_state(): what must be the same for an answer that was read before to be true still.
-- answers  one row: state, another one after each of these: an answer was removed before its expiry (the trigger
--          removed_answers_are_forgotten), the server was started (as after a restore), failed over or promoted, the
--          database was restored from a dump; now_ms, the database's clock in milliseconds since 1970
-- locks    nothing
-- note     stable, so that it sees what the statement sees that calls it: an answer that is read with it was there in
--          this state. With the owner's rights: an application cannot read pgonce.installation
create or replace function pgonce._replay_state()
returns table (state text, now_ms bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select encode(sha256(convert_to(concat_ws('/', pgonce._database_life(), pgonce._timeline(),
               extract(epoch from pg_postmaster_start_time()),
               (select i.evicted_by from pgonce.installation i)), 'UTF8')), 'hex'),
           floor(extract(epoch from pgonce.now()) * 1000)::bigint;
end;
