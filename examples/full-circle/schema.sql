-- The shop's side.
create table if not exists orders (
    id      bigint generated always as identity primary key,
    account text not null,
    amount  bigint not null
);

-- The bank's side: what each account has paid, and for how many orders.
create table if not exists balance (
    account text primary key,
    orders  bigint not null,
    amount  bigint not null
);
