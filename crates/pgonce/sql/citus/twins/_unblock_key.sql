-- pgonce._unblock_key on Citus: as queue/_unblock_key.sql, one job at a time.
-- writes   their state; a row of pgonce.job_recheck for one that is locked, by an operator who cancels it, say, and may not
create or replace function pgonce._unblock_key(p_tenant text, p_queue text, p_key text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_queue  text collate "C" := p_queue;
    v_key    text collate "C" := p_key;
    v_room   integer := (pgonce._job_rules(p_queue)).max_per_key;
    v_held   integer;
    v_before integer := 0;
    v_ready  integer;
    v_number bigint;
    v_id     bigint;
begin
    select count(*) into v_held from (
        select 1 from pgonce.job_live l
         where l.tenant = v_tenant and l.queue = v_queue and l.key = v_key and l.state in ('retrying', 'running', 'limited')
         limit v_room) h;
    v_room := v_room - v_held;
    if v_room <= 0 then
        return;
    end if;
    for v_id in
        select x.id from pgonce.job_live x
         where x.tenant = v_tenant and x.queue = v_queue and x.key = v_key and x.state = 'blocked'
         order by x.id limit v_room
    loop
        select count(*) into v_ready from (
            select 1 from pgonce.job_live r
             where r.tenant = v_tenant and r.queue = v_queue and r.key = v_key and r.state = 'ready' and r.id < v_id
             limit v_room) h;
        exit when v_before + v_ready >= v_room;
        perform 1 from pgonce.job_live x
          where x.tenant = v_tenant and x.id = v_id and x.state = 'blocked' for update skip locked;
        if found then
            update pgonce.job_live x set state = 'ready' where x.tenant = v_tenant and x.id = v_id;
            -- From now on it is one of those that are ready.
        else
            v_number := nextval('pgonce.job_seq');
            insert into pgonce.job_recheck (id, tenant, queue, key) values (v_number, v_tenant, v_queue, v_key);
            v_before := v_before + 1;
        end if;
    end loop;
end
$$;
