-- pgonce._unblock_key(p_tenant, p_queue, p_key): makes the first jobs of a key ready that wait for their turn, where it has come:
--          fewer jobs than may run at a time are running, waiting for their retry, or before them.
-- locks    the rows it changes, and none that is locked
-- writes   their state; a claim decides whether they run
create or replace function pgonce._unblock_key(p_tenant text, p_queue text, p_key text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_room integer := (pgonce._job_rules(p_queue)).max_per_key;
begin
    v_room := v_room - (select count(*) from (
        select from pgonce.job_live l
         where l.tenant = p_tenant collate "C" and l.queue = p_queue collate "C" and l.key = p_key collate "C"
           and l.state in ('retrying', 'running', 'limited')
         limit v_room) h);
    if v_room <= 0 then
        return;
    end if;
    update pgonce.job_live l set state = 'ready'
     where l.ctid = any (array(
        select n.ctid from (
            select b.ctid, b.id, row_number() over (order by b.id) - 1 as before from (
                select x.ctid, x.id from pgonce.job_live x
                 where x.tenant = p_tenant collate "C" and x.queue = p_queue collate "C" and x.key = p_key collate "C"
                   and x.state = 'blocked'
                 order by x.id limit v_room for update skip locked) b) n
         where n.before + (select count(*) from (
            select from pgonce.job_live r
             where r.tenant = p_tenant collate "C" and r.queue = p_queue collate "C" and r.key = p_key collate "C"
               and r.state = 'ready' and r.id < n.id
             limit v_room) h) < v_room));
end
$$;
