-- pgonce._free_key(p_tenant, p_queue, p_key): a job of the key has ended in this transaction: the next one's turn.
-- writes   the state of the next job; a row of pgonce.job_recheck where one may be on its way that cannot be seen yet
-- note     a transaction that puts a job behind another holds the lock, shared, until its commit; so one that gets it alone
--          has seen every such job, and one that comes later cannot have it and leaves its job ready
create or replace function pgonce._free_key(p_tenant text, p_queue text, p_key text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed'
       or not pg_try_advisory_xact_lock(pgonce._job_key_lock(p_tenant, p_queue, p_key)) then
        insert into pgonce.job_recheck (id, tenant, queue, key)
        values (nextval('pgonce.job_seq'), p_tenant, p_queue, p_key);
    end if;
    perform pgonce._unblock_key(p_tenant, p_queue, p_key);
end
$$;
