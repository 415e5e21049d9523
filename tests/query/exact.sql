SELECT id, b, i2, i4, i8, f4, f8, n2, c, t, v, ch, bin, u, d, ts, tz, ti, iv, j, jb, arr, tarr, net, m, r FROM kinds ORDER BY id
SELECT * FROM customers ORDER BY id
SELECT * FROM items ORDER BY order_id, line
SELECT * FROM empty
SELECT "Id", "select" FROM archive."Mixed Case" ORDER BY 1
SELECT count(*), sum(quantity), min(placed_at), max(note), sum(amount) FROM orders
SELECT c.region, count(*), sum(o.amount) AS total FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region ORDER BY total DESC
SELECT c.name, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.amount > 900 ORDER BY c.id, o.id
SELECT date_trunc('month', placed_at) AS month, count(*) FROM orders GROUP BY 1 ORDER BY 1
SELECT extract(year FROM placed_at), extract(month FROM placed_at), count(*) FROM orders GROUP BY 1, 2 ORDER BY 1, 2
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id), sum(amount) OVER (PARTITION BY customer ORDER BY id) FROM orders ORDER BY id
WITH top AS (SELECT customer, sum(amount) s FROM orders GROUP BY customer ORDER BY s DESC LIMIT 5) SELECT c.name, t.s FROM top t JOIN customers c ON c.id = t.customer ORDER BY t.s DESC
SELECT note FROM orders ORDER BY note LIMIT 5
SELECT note FROM orders ORDER BY note DESC LIMIT 5
SELECT email FROM customers ORDER BY email NULLS FIRST, id LIMIT 9
SELECT 7 / 2, -7 / 2, 7 % 3, -7 % 3
SELECT id / 3, id % 7 FROM orders ORDER BY id LIMIT 10
SELECT upper(name), lower(name), length(name), substring(name from 2 for 3), position('o' in name), replace(name, 'C', 'K') FROM customers ORDER BY id LIMIT 3
SELECT trim('  x '), ltrim('xxa', 'x'), rtrim('axx', 'x'), btrim('  a '), lpad('7', 3, '0'), left('abcdef', 2), right('abcdef', 2), reverse('abc'), repeat('ab', 3)
SELECT split_part('a,b,c', ',', 2), concat('a', NULL, 'b'), concat_ws('-', 'a', NULL, 'b'), strpos('abc', 'c'), initcap('hello wORLD'), md5('x'), ascii('A'), chr(66), to_hex(255), translate('abc', 'ab', 'xy')
SELECT 'abc' ~ 'b', 'ABC' ~* 'b', 'abc' !~ '^b', 'abc' LIKE 'a%', 'ABC' ILIKE 'a%', 'abc' SIMILAR TO 'a(b|x)c', regexp_replace('abcabc', 'b', 'X', 'g')
SELECT name FROM customers WHERE name ~ '1$' AND email !~ '^c11' ORDER BY id
SELECT overlay('Txxxxas' placing 'hom' from 2 for 4), 'a' || 1, 'x' || NULL
SELECT date '2024-01-31' + 1, date '2024-03-01' - date '2024-02-01', date '2024-01-31' + interval '1 month', timestamp '2024-01-01 10:00' - timestamp '2023-12-30 08:30', timestamptz '2024-01-01 00:00:00+00' - interval '1 day'
SELECT to_char(placed_at, 'YYYY-MM-DD HH24:MI:SS'), to_char(placed_at, 'Mon DD') FROM orders ORDER BY id LIMIT 3
SELECT to_date('2024-05-06', 'YYYY-MM-DD'), to_timestamp(0)
SELECT age(timestamp '2024-03-01', timestamp '2023-01-15'), date_part('dow', date '2024-02-29'), extract(doy from date '2024-02-29'), extract(week from date '2024-02-29')
SELECT placed_at::date, placed_at AT TIME ZONE 'America/New_York' AS there FROM orders ORDER BY id LIMIT 3
SELECT CASE WHEN amount > 500 THEN 'big' ELSE 'small' END AS size, count(*) FROM orders GROUP BY 1 ORDER BY 1
SELECT coalesce(note, 'none'), nullif(quantity, 1), greatest(1, 2, 3), least(1, 2) FROM orders ORDER BY id LIMIT 4
SELECT customer FROM orders GROUP BY customer HAVING count(*) > 13 ORDER BY customer
SELECT DISTINCT ON (customer) customer, id FROM orders ORDER BY customer, id DESC
SELECT id FROM orders WHERE customer IN (SELECT id FROM customers WHERE region = 'EU') ORDER BY id LIMIT 5
SELECT name FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND o.amount > 990) ORDER BY name
SELECT id FROM orders WHERE id BETWEEN 10 AND 12 UNION SELECT id FROM customers WHERE id < 3 ORDER BY 1
SELECT id FROM customers EXCEPT SELECT customer FROM orders ORDER BY 1
SELECT string_agg(name, ',' ORDER BY id), array_agg(id ORDER BY id) FROM customers WHERE id < 5
SELECT count(DISTINCT region), count(email), bool_and(is_active), bool_or(is_active), every(is_active) FROM customers
SELECT count(*) FILTER (WHERE is_active), sum(score) FILTER (WHERE region = 'EU') FROM customers
SELECT ceil(score), floor(score), abs(-score), sign(-score), sqrt(4.0::float8), power(2, 10), mod(7, 3) FROM customers ORDER BY id LIMIT 3
SELECT amount * 2, amount + 1, amount - 0.01, -amount FROM orders ORDER BY id LIMIT 5
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY score), percentile_disc(0.5) WITHIN GROUP (ORDER BY score) FROM customers
SELECT lag(id) OVER (ORDER BY id), lead(id, 2) OVER (ORDER BY id), rank() OVER (ORDER BY customer), dense_rank() OVER (ORDER BY customer), ntile(4) OVER (ORDER BY id) FROM orders ORDER BY id LIMIT 6
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 10) SELECT sum(n) FROM t
SELECT g FROM generate_series(1, 3) g
SELECT x.n, x.n * 2 FROM generate_series(1, 3) AS x(n)
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS t(x, y) ORDER BY x
SELECT region, count(*) FROM customers GROUP BY ROLLUP (region) ORDER BY region
SELECT o.id, i.line FROM orders o CROSS JOIN LATERAL (SELECT line FROM items i WHERE i.order_id = o.id ORDER BY line LIMIT 1) i ORDER BY o.id LIMIT 4
SELECT id, status FROM orders WHERE status = 'happy' ORDER BY id LIMIT 3
SELECT id, d FROM kinds WHERE d = 'infinity' OR d < '0001-01-01' ORDER BY id
SELECT id, d FROM kinds ORDER BY d, id
SELECT id, iv FROM kinds WHERE iv > interval '1 day' ORDER BY id
SELECT id, ch, length(ch), ch = 'ab', ch || '|' FROM kinds ORDER BY id
SELECT arr[1], 2 = ANY(arr), 'a b' = ANY(tarr), array_length(tarr, 1) FROM kinds WHERE id = 1
SELECT unnest(tarr) FROM kinds WHERE id = 1
SELECT 1::int2, 1::int8, 1.5::float4, '1.50'::numeric(5,2), 'x'::text, true, NULL, '\x01'::bytea, '2024-01-01'::date
SELECT current_database(), current_schema(), current_user = session_user
SELECT 1 AS one, 2 "Two", 3 three, 4 AS Folded
SELECT count(*), 1 + 1, 'x', now() > '2020-01-01', lower('A')::text, id::text, id FROM customers WHERE id = 1 GROUP BY id
SELECT id FROM customers ORDER BY id OFFSET 2 FETCH FIRST 1 ROWS ONLY
SELECT u FROM kinds WHERE u = '12345678-1234-5678-1234-567812345678'
SELECT ti FROM kinds WHERE ti > '12:00' ORDER BY ti
SELECT ARRAY[1,2,3], array_length(ARRAY[1,2], 1), 2 = ANY(ARRAY[1,2]), ARRAY['a','b c'], cardinality(ARRAY[1,2]), 3 = ANY('{1,2}')
SELECT 3 IN (1, 2), NULL IS DISTINCT FROM 1, 1 IS NOT DISTINCT FROM 1
SELECT score * 0.1, score / 3, score::float4 FROM customers ORDER BY id LIMIT 6
SELECT weight, sum(weight) FROM items GROUP BY weight ORDER BY weight
SELECT avg(amount)::numeric(10,2), avg(quantity)::numeric(10,4) FROM orders
SELECT string_to_array('a,b', ','), array_to_string(ARRAY['a','b'], '-')
SELECT 'public.orders'::regclass::text, to_regclass('nowhere'), 1043::regtype
SELECT table_name, column_name, data_type, is_nullable, character_maximum_length FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, ordinal_position
SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema IN ('public', 'archive') ORDER BY 1, 2
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attrelid = 'public.kinds'::regclass AND attnum > 0 ORDER BY attnum
SELECT typname, typlen, typtype, typcategory FROM pg_type WHERE oid < 10000 AND typtype = 'b' AND typcategory <> 'A' AND typnamespace = 11 ORDER BY typname
WITH orders AS (SELECT * FROM orders WHERE id < 4) SELECT id FROM orders ORDER BY id
