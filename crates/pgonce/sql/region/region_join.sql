-- pgonce.region_join(p_id, p_name, p_address, p_above): makes this database a region, or again after it was restored or
--          promoted. pgonce region join calls it, and connects it with the others. Owner only.
-- answers  the epoch that this region begins: fences of its leases start with it
-- locks    pgonce.intent against writers, for a moment
-- writes   the region, in state joining: claims are refused until it is active; triggers, and the publication <schema>_region; a row of
--          pgonce.operator_act
-- raises   22023 a bad name or number; 55000 it is another region's, or this database is another region; 55P03 the tables are
--          locked for two seconds: the detail says by whom
-- note     p_id, from 1 to 63, is part of every fence, so that no two regions share one; p_above, the highest epoch of it
--          that another region knows of: after a restore none is used twice. p_address: where its services are reached
-- example  begin;
--          select pgonce.region_join(1::smallint, 'eu', 'https://eu.shop.example');
--          rollback;
create or replace function pgonce.region_join(p_id smallint, p_name text, p_address text default '', p_above bigint default 0)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
    v_schema text := (select n.nspname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                       where c.oid = 'pgonce.intent'::regclass);
    v_epoch  bigint;
begin
    v_epoch := pgonce._add_region(p_id, p_name, p_address, true);
    perform from pgonce.installation i for update;
    v_epoch := pgonce._begin_epoch(greatest(v_epoch, p_above, pgonce._installation_epoch()));
    update pgonce.region r set state = 'joining', epoch = v_epoch where r.is_self;
    if not exists (select from pg_catalog.pg_publication p where p.pubname = v_schema || '_region') then
        execute format('create publication %I for table pgonce.region_fact_%s with (publish = ''insert'')', v_schema || '_region', p_id);
    end if;
    -- Waits for those who are writing: whatever they finish is there for pgonce._record_old_facts.
    create or replace trigger region_facts_are_recorded after insert or update on pgonce.intent
        for each row when (new.gone_at is null and (new.expires_at is not null or new.status = 'processing')) execute function pgonce._record_fact();
    create or replace trigger region_evictions_are_recorded after delete on pgonce.intent
        for each row when (old.expires_at > pgonce.now() and old.gone_at is null) execute function pgonce._record_fact();
    perform pgonce._set_claim_switch();
    perform pgonce._audit_act('join', 'region ' || p_name, null, null, jsonb_build_object('epoch', v_epoch, 'address', p_address));
    return v_epoch;
exception when lock_not_available then
    raise exception 'the tables of intents are in use: this database cannot become a region' using errcode = '55P03',
        detail = pgonce._holders_of_intents(),
        hint = 'Nothing was changed. Let these transactions end, or end them (pg_terminate_backend), and run it again.';
end
$$;
revoke execute on function pgonce.region_join(smallint, text, text, bigint) from public;
