-- Balances, made of deltas: each event once, in any order.
create table balance (account text primary key, amount bigint not null);
create function apply_balance(p_into regclass, p_event pgonce.projected) returns void
language plpgsql as $$
begin
    execute format('insert into %s as b values ($1, $2)
        on conflict (account) do update set amount = b.amount + excluded.amount', p_into)
    using p_event.entity, (p_event.payload ->> 'delta')::bigint;
end
$$;
select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker', '{money}');

-- Profiles, made of versions: late ones change nothing.
create table profile (id text primary key, name text not null, version bigint not null);

-- One invoice for each order that was paid: the row is keyed by the event.
create table invoice (event_id text primary key, order_id text not null, amount bigint not null);

-- What the payment provider reported.
create table payment (id text primary key, status text not null);
