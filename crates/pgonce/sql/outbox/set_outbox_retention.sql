-- pgonce.set_outbox_retention(p_keep, p_max_keep): sets how long events stay in the log.
-- answers  nothing
-- locks    the row of pgonce.outbox_state
-- writes   p_keep: the least time, for replays, even when every subscription has them. p_max_keep: events go
--          after it although a subscription has not read them, and it is evicted; null: never
-- raises   22023 or 23514 a value that does not fit
-- example  select pgonce.set_outbox_retention('1 day', '14 days');
create or replace function pgonce.set_outbox_retention(p_keep interval, p_max_keep interval default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before jsonb := (select jsonb_build_object('keep', l.keep, 'max_keep', l.max_keep) from pgonce.outbox_state l);
begin
    if p_keep is null then
        raise exception 'say how long events are kept' using errcode = '22023',
            hint = 'For example: select pgonce.set_outbox_retention(''1 day'', ''14 days'').';
    end if;
    update pgonce.outbox_state l set keep = p_keep, max_keep = p_max_keep;
    perform pgonce._audit_rules('outbox', v_before,
        (select jsonb_build_object('keep', l.keep, 'max_keep', l.max_keep) from pgonce.outbox_state l), 'retention');
end
$$;
