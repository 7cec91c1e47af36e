-- The shop's own tables. pgonce keeps its records in a schema of its own.

create table if not exists orders (
    tenant    text not null,
    id        bigint generated always as identity,
    customer  text not null,
    reference text not null,
    item      text not null,
    amount    bigint not null,
    constraint orders_have_an_id primary key (id),
    constraint one_order_per_reference unique (tenant, customer, reference),
    constraint an_order_costs_something check (amount > 0)
);

-- One line each time that the work of creating an order was committed, whether it made the order
-- or found it. Nothing is unique here, on purpose: a test that asks whether something
-- happened twice counts these lines.
create table if not exists order_event (
    order_id bigint not null,
    key      text not null,
    made     text not null
);
