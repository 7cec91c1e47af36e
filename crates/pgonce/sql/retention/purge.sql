-- pgonce.purge(p_limit, p_reason): removes finished records whose retention is over, at most p_limit.
-- answers  how many it removed or, where the contract says "gone", reduced to a tombstone
-- locks    its row of pgonce.sweep: a second purge at the same time returns 0 at once or, with a reason, waits for its turn; of the
--          records only those it removes, and none that is in use
-- writes   pgonce.intent: only finished and expired rows; unfinished ones have no expiry. p_reason: it is done by
--          hand, and a row of pgonce.operator_act records who and why. Calls to
--          providers that were decided, or never sent, go after their intents; they are not counted. A row of pgonce.sample for the
--          minute: where that fails it is a warning, and what was removed stays removed
-- raises   22023 p_limit is not positive
-- note     what the contract of all other scopes promises holds in strict mode too, which puts it aside as '*off'
-- note     an index on expires_at would cost every command some WAL. Purge walks the table in short stretches
--          instead and remembers where it stopped, so that each call goes on from there and none walks it
--          more than once
-- example  select pgonce.purge(1000);
create or replace function pgonce.purge(p_limit integer default 10000, p_reason text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_stretch constant bigint := 512;  -- blocks
    v_from    bigint;
    v_blocks  bigint;
    v_walked  bigint := 0;
    v_done    bigint := 0;
    v_count   bigint;
    v_now     timestamptz := pgonce.now();
begin
    if p_limit is null or p_limit < 1 then
        raise exception 'pgonce.purge needs a positive limit, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Call it again and again with a limit such as 10000.';
    end if;
    select w.next_block into v_from from pgonce.sweep w
     where w.tenant = '' and w.name = 'intent' for update skip locked;
    if not found then
        -- Another purge is at it; or the row is missing, and the next call finds it.
        insert into pgonce.sweep (name) select 'intent'
         where not exists (select from pgonce.sweep w where w.tenant = '' and w.name = 'intent')
        on conflict on constraint one_place_per_sweep do nothing;
        if p_reason is null then
            return 0;
        end if;
        -- What an operator asks for is done, and recorded, whatever a timer does meanwhile.
        select w.next_block into v_from from pgonce.sweep w
         where w.tenant = '' and w.name = 'intent' for update;
    end if;
    v_blocks := pg_relation_size('pgonce.intent') / current_setting('block_size')::bigint;
    while v_walked <= v_blocks and v_done < p_limit loop
        if v_from >= v_blocks then
            v_from := 0;
        end if;
        with expired as materialized (
            select i.tenant, i.scope, i.key, i.gone_at is null and coalesce(c.after_expiry = 'gone', false) as bury, c.tombstone_for
              from pgonce.intent i
              left join lateral (
                   select s.after_expiry, s.tombstone_for from pgonce.scope s
                    where (s.tenant, s.scope) in ((i.tenant, i.scope), ('', i.scope), ('', '*'), ('', '*off'))
                    order by s.scope = i.scope desc, s.tenant = i.tenant desc
                    limit 1) c on true
             where i.ctid >= format('(%s,0)', v_from)::tid
               and i.ctid < format('(%s,0)', v_from + c_stretch)::tid
               and i.expires_at <= v_now
             limit p_limit - v_done
               for update of i skip locked
        ), buried as (
            update pgonce.intent i
               set gone_at = v_now, expires_at = case when e.tombstone_for is null then 'infinity' else v_now + least(e.tombstone_for, interval '5000 years') end,
                   answer = null, ref_type = null, ref_id = null, failure_message = null
              from expired e
             where e.bury and i.tenant = e.tenant and i.scope = e.scope and i.key = e.key
            returning 1
        ), removed as (
            delete from pgonce.intent i
             using expired e
             where not e.bury and i.tenant = e.tenant and i.scope = e.scope and i.key = e.key
            returning 1
        )
        select (select count(*) from buried) + (select count(*) from removed) into v_count;
        v_done := v_done + v_count;
        if v_done < p_limit then  -- else the stretch may hold more: the next call begins here
            v_from := v_from + c_stretch;
            v_walked := v_walked + c_stretch;
        end if;
    end loop;
    update pgonce.sweep w set next_block = v_from, swept_at = v_now
     where w.tenant = '' and w.name = 'intent';
    perform pgonce._purge_external(p_limit);
    begin
        perform pgonce._sample();
    exception when others then
        raise warning 'what was counted could not be recorded: % [%]', sqlerrm, sqlstate;
    end;
    if p_reason is not null then
        perform pgonce._audit_act('purge', 'intents', null, p_reason, jsonb_build_object('removed', v_done));
    end if;
    return v_done;
end
$$;
