-- pgonce._merge_intent(p_tenant, p_scope, p_key): makes the record of an intent what the facts of all regions say, and
--          lists what happened twice.
-- locks    the intent against other merges, then its record
-- writes   the record: finished beats unfinished, and of two the one that pgonce._verdict_of keeps. The history of its attempts here,
--          as far as it does not belong to the new record; how long calls of a record that was evicted count. Where an answer was replaced or removed: pgonce.installation, so that caches
--          forget it. A task for each surplus effect; where it is of this region, also the event region.double_commit
-- raises   55P03 the record is locked for 200 milliseconds
-- note     where replication applies it no trigger of the tables fires: what they do it does here. In a session they fire as well, and
--          find it done
create or replace function pgonce._merge_intent(p_tenant text, p_scope text, p_key text)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms'
as $$
declare
    v_row   pgonce.intent;
    v_kept  record;
    v_new   pgonce.intent;
    v_found boolean;
    v_gone  boolean := false;
    v_task  record;
begin
    -- Not the lock of claims: an attempt that runs meanwhile then loses on the primary key, and replays.
    perform pg_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key) # 20261101);
    for v_look in 1 .. 10 loop
        select i.* into v_row from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for update;
        v_found := found;
        -- After the lock: the fact of a record commits with it.
        select v.* into v_kept from pgonce._verdict_of(p_tenant, p_scope, p_key) v where v.verdict in ('kept', 'evicted')
         order by (v.fact).at desc, (v.fact).region desc, (v.fact).epoch desc, (v.fact).seq desc limit 1;
        v_new := jsonb_populate_record(null::pgonce.intent, (v_kept.fact).record);
        v_new.expires_at := v_kept.life_end;
        v_new.answer := (v_kept.fact).record -> 'answer';
        if v_kept.verdict is null or v_row.gone_at is not null then
            exit;
        elsif v_kept.verdict = 'evicted' then
            delete from pgonce.intent i
             where v_row.expires_at is not null and coalesce(v_row.last_at, v_row.first_at) <= (v_kept.fact).at
               and i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
            v_gone := found;
            delete from pgonce.attempt a
             where v_gone and a.tenant = p_tenant collate "C" and a.scope = p_scope collate "C" and a.key = p_key collate "C";
            -- As pgonce._end_calls: what was freed before its retention was over keeps what it did.
            update pgonce.external_call c set expires_at = greatest(c.expires_at, v_row.expires_at)
             where v_gone and c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
               and c.status in ('confirmed', 'failed') and c.ended_at is null;
            exit;
        elsif v_new.expires_at <= pgonce.now() or v_row is not distinct from v_new then
            exit;  -- retention sees to it; or there is nothing to do
        elsif v_found then
            update pgonce.intent i
               set fence = v_new.fence, first_at = v_new.first_at, expires_at = v_new.expires_at, attempts = v_new.attempts,
                   status = v_new.status, fingerprint = v_new.fingerprint, answer = v_new.answer, ref_type = v_new.ref_type,
                   ref_id = v_new.ref_id, correlation_id = v_new.correlation_id, owner = v_new.owner, last_at = v_new.last_at,
                   lease_until = null, failure_code = v_new.failure_code, failure_message = v_new.failure_message,
                   vanished_at = v_new.vanished_at
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
            v_gone := true;
            -- Attempts of this region that would be in the way of the next one's fence; and those that nothing would ever remove: see
            -- the trigger attempts_go_with_their_intent.
            delete from pgonce.attempt a
             where a.tenant = p_tenant collate "C" and a.scope = p_scope collate "C" and a.key = p_key collate "C"
               and (a.fence >= v_new.fence or not (v_new.attempts > 1 or v_new.fence > 1 and v_new.fence % 2 = 1));
            exit;
        end if;
        insert into pgonce.intent select v_new.* on conflict on constraint one_row_per_intent do nothing;
        exit when found;
    end loop;
    update pgonce.installation i set evicted_by = pg_current_xact_id()
     where v_gone and v_row.status = 'succeeded' and i.evicted_by <> pg_current_xact_id();
    for v_task in
        insert into pgonce.region_task as t (tenant, scope, key, region, epoch, seq, kept, surplus, found_at)
        select p_tenant, p_scope, p_key, (v.fact).region, (v.fact).epoch, (v.fact).seq,
               to_jsonb(v.kept_by), to_jsonb(v.fact), pgonce.now()
          from pgonce._verdict_of(p_tenant, p_scope, p_key) v where v.verdict = 'surplus'
        on conflict on constraint one_task_per_effect do update set kept = excluded.kept where t.kept <> excluded.kept
        returning t.*, t.xmax = 0 as is_new
    loop
        perform pgonce.publish('pgonce.regions', 'region.double_commit', null, jsonb_build_object('scope', p_scope, 'key', p_key,
                'kept', v_task.kept #- '{record,answer}', 'surplus', v_task.surplus #- '{record,answer}'), p_tenant => p_tenant)
          from pgonce.region r where v_task.is_new and r.is_self and r.id = v_task.region;
    end loop;
    delete from pgonce.region_task t
     where t.tenant = p_tenant collate "C" and t.scope = p_scope collate "C" and t.key = p_key collate "C" and t.resolved_at is null
       -- A task whose fact was purged stays for the operator.
       and exists (select from pgonce.region_fact f where f.region = t.region and f.epoch = t.epoch and f.seq = t.seq)
       and not exists (select from pgonce._verdict_of(p_tenant, p_scope, p_key) v
             where v.verdict = 'surplus' and ((v.fact).region, (v.fact).epoch, (v.fact).seq) = (t.region, t.epoch, t.seq));
    update pgonce.region_task t set resolved_at = f.at, resolution = f.record ->> 'resolution'
      from pgonce.region_fact f
     where t.tenant = p_tenant collate "C" and t.scope = p_scope collate "C" and t.key = p_key collate "C"
       and f.tenant = p_tenant collate "C" and f.scope = p_scope collate "C" and f.key = p_key collate "C" and f.kind = 'resolved'
       and (f.record ->> 'region', f.record ->> 'epoch', f.record ->> 'seq') = (t.region::text, t.epoch::text, t.seq::text)
       and t.resolved_at is null;
    delete from pgonce.region_pending p
     where p.tenant = p_tenant collate "C" and p.scope = p_scope collate "C" and p.key = p_key collate "C";
end
$$;
