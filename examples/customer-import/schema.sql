create table customer (
    id    bigint generated always as identity primary key,
    email text not null constraint one_customer_per_email unique,
    name  text not null,
    born  date
);
