"""The tables of the query tests: a shop for joins and aggregates, and rows with values of every type."""

NAMES = ("public.customers", "public.orders", "public.items", "public.kinds", 'archive."Mixed Case"', "public.empty")

TABLES = """
CREATE SCHEMA archive;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN cents AS numeric(12, 2);
CREATE TABLE customers (
    id int PRIMARY KEY, name text NOT NULL, email varchar(80), joined date, region char(2), score float8,
    is_active bool);
COMMENT ON TABLE customers IS 'who buys';
COMMENT ON COLUMN customers.email IS 'may be unknown';
INSERT INTO customers SELECT i, 'Customer ' || i, CASE WHEN i % 5 > 0 THEN 'c' || i || '@example.org' END,
    date '2024-01-31' + i, (ARRAY['EU', 'US', 'AP'])[1 + i % 3], i * 1.5, i % 2 = 0 FROM generate_series(1, 40) i;
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int REFERENCES customers, placed_at timestamptz, amount numeric(10, 2),
    rate numeric, status mood DEFAULT 'ok', note text, quantity smallint NOT NULL DEFAULT 1);
INSERT INTO orders SELECT i, 1 + i % 37,
    timestamptz '2025-01-01 00:00+00' + i * interval '7 hours 13 minutes 5.25 seconds',
    (i * 7919 % 100000) / 100.0, (i % 50) / 8.0, (ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood,
    CASE WHEN i % 4 = 0 THEN NULL ELSE 'note ' || i END, 1 + i % 9 FROM generate_series(1, 500) i;
CREATE TABLE items (order_id bigint, line int, price numeric(12, 4), weight real, PRIMARY KEY (order_id, line));
INSERT INTO items SELECT 1 + i % 500, i / 500, (i % 97) * 1.2345, i % 13 + 0.5 FROM generate_series(0, 1499) i;
CREATE TABLE empty (a int, b text);
CREATE TABLE archive."Mixed Case" ("Id" int PRIMARY KEY, "select" text);
INSERT INTO archive."Mixed Case" VALUES (1, 'one'), (2, 'it''s "two"');
CREATE TABLE kinds (
    id int PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(20, 3), c cents,
    t text, v varchar(10), ch char(5), bin bytea, u uuid, d date, ts timestamp, tz timestamptz, ti time, iv interval,
    j json, jb jsonb, arr int[], tarr text[], net inet, m mood, r int4range, mo money);
INSERT INTO kinds VALUES
    (1, true, -32768, -2147483648, -9223372036854775808, 1.5, 0.1, 12.5, 1.5, 19.99, 'plain', 'var', 'ab', '\\x00ff',
     '00000000-0000-0000-0000-000000000001', '2024-02-29', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012+00',
     '23:59:59.5', '1 year 2 mons 3 days 04:05:06.7', '{"a": [1, 2]}', '{"b": {"c": 1.50}}', '{1,2,NULL}',
     '{"a b",NULL,"NULL","q\\"x"}', '10.0.0.1/8', 'happy', '[1,5)', '$1,234.50'),
    (2, false, 32767, 2147483647, 9223372036854775807, 1e20, 1e300, -0.0000000001, -99999999999999999.999, -0.01,
     E'tab\\there\\nline \\\\ "quote" ''single''', '', '', '', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'infinity',
     'infinity', '-infinity', '00:00:00', '-1 days +02:03:04', 'null', '[]', '{}', '{}', '::1', 'sad', 'empty',
     '-$0.01'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (4, true, 0, 0, 0, 'NaN', '-Infinity', 1234567890123456789.5, 0, 0, 'ünï ☃ 𝄞', 'x', 'xyz  ', '\\xdeadbeef',
     '12345678-1234-5678-1234-567812345678', '0044-03-15 BC', '0001-01-01', '1969-12-31 23:59:59.999999+00', '12:00',
     '-3 mons', '1', '"x"', '{5}', '{x}', '192.168.0.0/16', 'ok', '(,)', '$0.00'),
    (5, true, 1, 1, 1, 1e-5, 1.0, 1, 1, 1, '', 'y', 'z', '\\x01', '00000000-0000-0000-0000-000000000005', '9999-12-31',
     '9999-12-31 23:59:59.999999', '0044-03-15 12:00:00+00 BC', '12:34:56.000001', '00:00:00', '{}', '{}', '{-1}',
     '{"{}"}', 'fe80::1', 'ok', '[1,1]', '$10.00');
"""
