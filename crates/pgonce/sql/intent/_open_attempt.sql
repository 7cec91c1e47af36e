-- pgonce._open_attempt(p_tenant, p_scope, p_key, p_first_at): marks this transaction as the one that an attempt
--          at this intent lives in.
-- answers  'fresh'; null where an attempt at the intent lives in this transaction already
-- writes   until the end of the transaction, the settings pgonce.attempt: the names of the intent, after '@', when
--          its record was made, and ';' where it has one; and pgonce.attempts: hashes of the names of those that
--          were attempted here before
-- note     a COMMIT or ROLLBACK sent by hand takes the mark away, and so does a rollback to a savepoint from
--          before the claim; see pgonce._assert_same_transaction. pgonce._claim_fast writes the mark of the
--          first fresh claim of a transaction itself
create or replace function pgonce._open_attempt(p_tenant text, p_scope text, p_key text, p_first_at timestamptz default null)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_last text collate "C" := coalesce(current_setting('pgonce.attempt', true), '');
begin
    if pgonce._is_open_attempt(p_tenant, p_scope, p_key) then
        return null;
    end if;
    if v_last <> '' collate "C" then
        v_last := substr(v_last, case when v_last ^@ '@' then strpos(v_last, ';') else 0 end + 1);
        perform set_config('pgonce.attempts', coalesce(current_setting('pgonce.attempts', true), '')
            || hashtextextended(v_last, 0)::text || ',', true);
    end if;
    perform set_config('pgonce.attempt', coalesce('@' || extract(epoch from p_first_at)::text || ';', '')
        || pgonce._intent_name(p_tenant, p_scope, p_key), true);
    return 'fresh';
end
$$;
