-- pgonce._set_wal_publication(p_on): lets relays listen for commits in the write-ahead log, or no longer.
--          Owner only; needs the right to create in the database.
-- writes   makes or drops the publication <schema>_outbox: the log's inserts, of which only the number
--          travels (PostgreSQL 14 sends whole rows)
-- raises   22023 neither on nor off
-- note     a relay needs wal_level = logical and a role with REPLICATION as well; without any of this it
--          looks for itself
create or replace function pgonce._set_wal_publication(p_on boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_name name := (select n.nspname || '_outbox' from pg_catalog.pg_class c
                      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                     where c.oid = 'pgonce.outbox'::regclass);
begin
    if p_on is null then
        raise exception 'pgonce._set_wal_publication needs to know whether' using errcode = '22023',
            hint = 'Say true or false.';
    elsif not p_on then
        execute format('drop publication if exists %I', v_name);
    elsif not exists (select from pg_catalog.pg_publication p where p.pubname = v_name) then
        execute format('create publication %I for table pgonce.outbox %s '
            'with (publish = ''insert'', publish_via_partition_root = true)', v_name,
            case when current_setting('server_version_num')::integer >= 150000 then '(seq)' else '' end);
    end if;
end
$$;
revoke execute on function pgonce._set_wal_publication(boolean) from public;
