-- pgonce._free_key on Citus: as queue/_free_key.sql, without advisory locks, which are those of one server.
-- note     a claim that puts a job behind another holds a lock on the row of that one until its commit. So who ends that one has
--          waited, and its next statement sees the job; where it cannot see it, its isolation is stricter, the key is looked at again
create or replace function pgonce._free_key(p_tenant text, p_queue text, p_key text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_number bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        v_number := nextval('pgonce.job_seq');
        insert into pgonce.job_recheck (id, tenant, queue, key) values (v_number, v_tenant, p_queue, p_key);
    end if;
    perform pgonce._unblock_key(v_tenant, p_queue, p_key);
end
$$;
