-- pgonce._key_is_busy(p_tenant, p_queue, p_key): whether as many jobs of the key as may run at a time come before a new one.
create or replace function pgonce._key_is_busy(p_tenant text, p_queue text, p_key text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := (pgonce._job_rules(p_queue)).max_per_key;
begin
    return (select count(*) from (
        select from pgonce.job_live l
         where l.tenant = p_tenant collate "C" and l.queue = p_queue collate "C" and l.key = p_key collate "C"
           and l.state in ('ready', 'blocked', 'retrying', 'running', 'limited')
         limit v_most) h) >= v_most;
end
$$;
