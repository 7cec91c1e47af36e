-- Cases of an enforcement authority: opened from complaints, moved by transitions, watched by one timer.
create table enforcement_case (
    id          text primary key,
    complainant text not null,
    subject     text not null
);

-- A letter for each business event, whatever number of times the event is delivered.
create table notice (
    message_id uuid primary key,
    case_id    text not null references enforcement_case,
    event      text not null,
    text       text not null
);

-- A decision needs a finding.
create function may_decide(p_tenant text, p_case text, p_data jsonb) returns boolean language sql stable
return coalesce(p_data ->> 'finding' in ('violation', 'none'), false);

select pgonce.define_transition('enforcement', '', 'open', p_topic => 'cases');
select pgonce.define_transition('enforcement', 'open', 'investigating');
select pgonce.define_transition('enforcement', 'open', 'overdue', p_topic => 'cases');
select pgonce.define_transition('enforcement', 'overdue', 'investigating');
select pgonce.define_transition('enforcement', 'investigating', 'decided', 'public.may_decide', 'cases');
select pgonce.define_transition('enforcement', 'decided', 'closed');

-- Opens a case from a complaint of the portal, once for each complaint. Answers the case.
create function open_case(p_complaint text, p_complainant text, p_subject text) returns text language plpgsql as $$
declare
    v_reference record;
begin
    select * into v_reference from pgonce.refer('portal', p_complaint, 'case',
        pgonce.resource_id('case', 'portal', p_complaint)::text);
    if v_reference.made_now then
        insert into enforcement_case values (v_reference.id, p_complainant, p_subject);
        perform pgonce.transition('enforcement', v_reference.id, 'open', 'opened by ' || p_complaint);
        -- Nobody leaves a case open for longer than this; at most one such timer is active for a case.
        perform pgonce.set_timer('enforcement', v_reference.id, 'sla', 'overdue', '14 days');
    end if;
    return v_reference.id;
end
$$;

-- Writes the notices of events, in the transaction that marks them as received.
create function send_notices() returns bigint language sql as $$
    with sent as (
        insert into notice (message_id, case_id, event, text)
        select e.message_id, e.subject, e.type, format('Your case %s: %s', e.subject, e.payload ->> 'to')
          from pgonce.outbox e
         where e.topic = 'cases' and pgonce.accept('notices', 'outbox', e.message_id::text)
        returning 1
    )
    select count(*) from sent
$$;
