SELECT id, sum(quantity) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) FROM orders ORDER BY id LIMIT 10
SELECT id, count(*) OVER (ORDER BY placed_at RANGE BETWEEN '1 day' PRECEDING AND '12 hours' FOLLOWING) FROM orders ORDER BY id LIMIT 10
SELECT id, sum(quantity) OVER (ORDER BY customer GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE GROUP) FROM orders ORDER BY id LIMIT 10
SELECT id, first_value(id) OVER w, last_value(id) OVER w, nth_value(id, 2) OVER w FROM orders WINDOW w AS (PARTITION BY customer ORDER BY placed_at ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) ORDER BY id LIMIT 10
SELECT id, avg(amount) OVER (PARTITION BY status ORDER BY id ROWS 6 PRECEDING) FROM orders ORDER BY id LIMIT 12
SELECT id, percent_rank() OVER (PARTITION BY customer ORDER BY amount), cume_dist() OVER (PARTITION BY customer ORDER BY amount), ntile(3) OVER (PARTITION BY customer ORDER BY amount) FROM orders ORDER BY id LIMIT 12
SELECT status, sum(amount) AS s, rank() OVER (ORDER BY sum(amount) DESC), sum(sum(amount)) OVER () FROM orders GROUP BY status ORDER BY s
SELECT id, lag(note, 1, 'none') OVER (ORDER BY id), lead(amount, 2, 0) OVER (ORDER BY id) FROM orders ORDER BY id DESC LIMIT 5
SELECT id, string_agg(note, ',') OVER (ORDER BY id ROWS 2 PRECEDING) FROM orders ORDER BY id LIMIT 8
SELECT id, sum(amount) OVER w1 - sum(amount) OVER w2 FROM orders WINDOW w1 AS (ORDER BY id), w2 AS (w1 ROWS 1 PRECEDING) ORDER BY id LIMIT 5
SELECT DISTINCT customer, first_value(amount) OVER (PARTITION BY customer ORDER BY id) FROM orders ORDER BY 1 LIMIT 5
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY placed_at DESC) AS rn FROM orders) t WHERE rn = 1 ORDER BY id LIMIT 5
SELECT id, sum(amount) FILTER (WHERE status = 'ok') OVER (ORDER BY id) FROM orders ORDER BY id LIMIT 6
SELECT id, max(d) OVER (ORDER BY id), min(net) OVER (), max(m) OVER (ORDER BY id) FROM kinds ORDER BY id
SELECT id, rank() OVER (ORDER BY n), dense_rank() OVER (ORDER BY iv), row_number() OVER (ORDER BY net, id) FROM kinds ORDER BY id
SELECT id, sum(i8) OVER (ORDER BY id), avg(n) OVER (ORDER BY id), sum(f8) OVER (ORDER BY id) FROM kinds ORDER BY id
SELECT DISTINCT ON (status) status, id, amount FROM orders ORDER BY status DESC, amount DESC, id
SELECT DISTINCT ON (date_trunc('month', placed_at)) date_trunc('month', placed_at) AS m, id FROM orders ORDER BY 1, amount DESC
SELECT DISTINCT ON (customer, status) customer, status, note FROM orders ORDER BY customer, status, id DESC LIMIT 9
SELECT DISTINCT ON (1) customer, id FROM orders ORDER BY 1, 2 DESC LIMIT 4
SELECT DISTINCT lower(status::text), customer % 2 FROM orders ORDER BY 2 DESC, 1
SELECT c.id, x.id, x.amount FROM customers c LEFT JOIN LATERAL (SELECT o.id, o.amount FROM orders o WHERE o.customer = c.id ORDER BY o.amount DESC, o.id LIMIT 2) x ON true ORDER BY 1, 2 LIMIT 10
SELECT c.id, s.n, s.t FROM customers c, LATERAL (SELECT count(*) AS n, sum(amount) AS t FROM orders WHERE customer = c.id) s ORDER BY c.id LIMIT 5
SELECT id, e FROM kinds, unnest(tarr) AS e ORDER BY id, e
SELECT id, e, o FROM kinds, unnest(arr) WITH ORDINALITY AS u(e, o) ORDER BY id, o
SELECT id, k FROM kinds LEFT JOIN LATERAL jsonb_object_keys(CASE WHEN jsonb_typeof(jb) = 'object' THEN jb END) k ON true ORDER BY id, k
SELECT a.x, b.y FROM (VALUES (1), (2)) a(x) JOIN LATERAL generate_series(1, a.x) b(y) ON true ORDER BY 1, 2
SELECT id, x FROM customers, generate_series(id, id + 1) x WHERE id < 3 ORDER BY 1, 2
SELECT * FROM generate_series(1, 3) WITH ORDINALITY
SELECT * FROM generate_series(10, 1, -4)
SELECT * FROM generate_series(1, 0)
SELECT * FROM generate_series(1, NULL)
SELECT * FROM generate_series(date '2024-01-30', date '2024-03-02', interval '1 month')
SELECT * FROM generate_series(timestamp '2024-01-31', timestamp '2024-06-30', interval '1 month')
SELECT * FROM generate_series(timestamptz '2024-01-31 00:00+00', '2024-02-03', '1 day')
SELECT generate_series(1, 3) * 2, 'x'
SELECT generate_series(1, 2), generate_series(1, 3)
SELECT id, generate_series(1, 2) FROM customers WHERE id < 3 ORDER BY id DESC, 2 LIMIT 3
SELECT count(*), generate_series(1, 2) FROM customers
SELECT DISTINCT unnest(ARRAY[1,2,1]) ORDER BY 1
SELECT unnest(ARRAY[1,2,3]) + 1 AS x WHERE true
SELECT x FROM (SELECT unnest(ARRAY['b','a']) AS x) t ORDER BY x
SELECT status, customer % 3 AS g, count(*), grouping(status, customer % 3) FROM orders GROUP BY GROUPING SETS ((status, customer % 3), (status), ()) ORDER BY 4, 1, 2
SELECT status, region, sum(amount) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY CUBE (status, region) ORDER BY 1, 2
SELECT region, status, count(*) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY ROLLUP ((region, status), customer) HAVING grouping(customer) = 1 ORDER BY 1, 2
SELECT status, count(*) FROM orders GROUP BY GROUPING SETS (status, status, ()) ORDER BY 1, 2
SELECT status, quantity, sum(amount) FROM orders GROUP BY status, ROLLUP (quantity) ORDER BY 1, 2 LIMIT 12
SELECT d, net, count(*) FROM kinds GROUP BY GROUPING SETS ((d), (net)) ORDER BY 1, 2
SELECT coalesce(region, 'all') AS r, count(*) FROM customers GROUP BY ROLLUP (region) ORDER BY 1
SELECT count(*) FROM customers GROUP BY ()
SELECT count(*) FROM empty GROUP BY ()
SELECT a, count(*) FROM empty GROUP BY a
SELECT a, count(*) FROM empty GROUP BY ROLLUP (a)
SELECT sum(a), count(a), max(b), array_agg(a), avg(a), string_agg(b, ','), bool_and(a > 1), json_agg(a), stddev(a) FROM empty
SELECT c.id, c.name, count(*) FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.id ORDER BY c.id LIMIT 3
SELECT customer, max(amount) FROM orders GROUP BY customer HAVING max(amount) > (SELECT avg(amount) * 1.9 FROM orders) ORDER BY 1
SELECT extract(year FROM placed_at) AS y, extract(month FROM placed_at) AS m, sum(amount) FROM orders GROUP BY y, m ORDER BY y, m
SELECT date_trunc('month', placed_at)::date AS month, status, count(*) FROM orders GROUP BY month, status ORDER BY month, status
SELECT CASE WHEN amount < 100 THEN '0-100' WHEN amount < 500 THEN '100-500' ELSE '500+' END AS bucket, count(*), avg(amount)::numeric(10,2) FROM orders GROUP BY bucket ORDER BY min(amount)
SELECT GROUPING(region) FROM customers GROUP BY region ORDER BY 1 LIMIT 1
SELECT count(*) FILTER (WHERE status = 'ok'), sum(amount) FILTER (WHERE note IS NULL), avg(quantity) FILTER (WHERE false), array_agg(id ORDER BY id) FILTER (WHERE id < 4), string_agg(status::text, ',' ORDER BY id) FILTER (WHERE id < 4) FROM orders
SELECT string_agg(DISTINCT status::text, ', ' ORDER BY status::text) FROM orders
SELECT string_agg(DISTINCT region, ', ' ORDER BY region DESC) FROM customers
SELECT array_agg(DISTINCT quantity) FROM orders
SELECT array_agg(email ORDER BY id) FROM customers WHERE id < 7
SELECT array_agg(amount ORDER BY amount DESC, id) FROM orders WHERE id < 5
SELECT string_agg(note, '; ') FROM (SELECT note FROM orders WHERE id < 9 ORDER BY id DESC) t
SELECT array_agg(id) FROM (SELECT id FROM orders ORDER BY amount DESC, id) t
SELECT json_agg(json_build_object('id', id, 'n', note) ORDER BY id) FROM orders WHERE id < 4
SELECT jsonb_agg(to_jsonb(c) ORDER BY id) FROM customers c WHERE id < 3
SELECT jsonb_object_agg(id, status ORDER BY id) FROM orders WHERE id < 4
SELECT json_object_agg(id, amount ORDER BY id) FROM orders WHERE id < 4
SELECT count(DISTINCT customer), count(DISTINCT status), count(DISTINCT rate), count(DISTINCT date_trunc('week', placed_at)) FROM orders
SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY score DESC), percentile_cont(0.1) WITHIN GROUP (ORDER BY score) FROM customers
SELECT percentile_cont(0.333) WITHIN GROUP (ORDER BY score DESC), percentile_cont(0.777) WITHIN GROUP (ORDER BY score DESC), percentile_cont(0.05) WITHIN GROUP (ORDER BY score DESC) FROM customers
SELECT percentile_cont(NULL) WITHIN GROUP (ORDER BY amount) FROM orders
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY f8) FROM kinds
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f8) FROM kinds
SELECT stddev_samp(amount), stddev_pop(quantity), var_samp(rate), variance(id), stddev(score), var_pop(score) FROM orders JOIN customers USING (id)
SELECT max(note), min(note), max(status), min(placed_at), max(rate), min(quantity) FROM orders
SELECT bool_or(id > 499), bool_and(id > 0), every(note IS NULL), bit_and(id), bit_or(quantity), bit_xor(quantity) FROM orders
SELECT sum(DISTINCT quantity), avg(DISTINCT quantity), sum(DISTINCT rate), avg(DISTINCT amount), count(DISTINCT note) FROM orders
SELECT sum(1.5), sum(i4 * 1.0), sum(i8), sum(i2), sum(f4), sum(n2), sum(c) FROM kinds
SELECT avg(i8), avg(i2), avg(f4), avg(n2), avg(c), avg(id) FROM kinds
SELECT sum(i8) + 1, sum(i8) / 2, sum(i4) / 2, sum(i4)::int8 FROM kinds
SELECT any_value(region) FROM customers WHERE region = 'EU'
SELECT json_agg(x ORDER BY x) FROM (SELECT 1.5::numeric AS x UNION ALL SELECT NULL) t
SELECT id, note FROM orders ORDER BY note NULLS FIRST, id LIMIT 5
SELECT id FROM orders ORDER BY status, amount DESC NULLS LAST, id LIMIT 9
SELECT id AS customer FROM orders ORDER BY customer LIMIT 3
SELECT id FROM customers ORDER BY (SELECT count(*) FROM orders WHERE customer = customers.id) DESC, id LIMIT 5
SELECT 'b' AS x UNION ALL SELECT 'B' UNION ALL SELECT 'a' UNION ALL SELECT 'Z' UNION ALL SELECT '_' ORDER BY x
SELECT f8 FROM kinds ORDER BY f8 DESC, id
SELECT x FROM (VALUES ('NaN'::float8), ('Infinity'), (1), (NULL), ('-0'), (0)) v(x) WHERE x IS NULL OR x <> 0 ORDER BY x DESC
SELECT x FROM (VALUES ('NaN'::numeric), ('Infinity'), (1), (NULL), ('-Infinity')) v(x) ORDER BY x DESC NULLS LAST
SELECT id FROM customers WHERE email NOT IN ('c1@example.org', NULL) ORDER BY id
SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders WHERE customer < 30) ORDER BY id
SELECT id FROM customers WHERE email NOT IN (SELECT email FROM customers WHERE id > 5) ORDER BY id
SELECT NULL IN (1), 1 IN (NULL), 1 NOT IN (1, NULL), NULL NOT IN (SELECT 1 WHERE false), NULL IN (SELECT 1 WHERE false)
SELECT id FROM orders WHERE (customer, status) IN ((1, 'ok'), (2, 'sad')) ORDER BY id LIMIT 5
SELECT id FROM orders WHERE (customer, quantity) IN (SELECT id, id % 4 FROM customers) ORDER BY id LIMIT 5
SELECT id FROM kinds WHERE (i4, b) IN (SELECT i4, b FROM kinds) ORDER BY id
SELECT id FROM kinds WHERE (i4, b) NOT IN (SELECT i4, b FROM kinds WHERE id < 3) ORDER BY id
SELECT (1, NULL) IN (SELECT 1, NULL::int), (1, NULL) IN (SELECT 2, NULL::int), (1, NULL) NOT IN (SELECT 2, NULL::int), (1, 2) IN (SELECT 1, NULL::int)
SELECT id FROM orders WHERE amount > ALL (SELECT amount FROM orders WHERE customer = 3) ORDER BY id LIMIT 5
SELECT id FROM orders WHERE amount >= ANY (ARRAY[999.5, NULL]) ORDER BY id LIMIT 5
SELECT 1 = ANY('{}'::int[]), 1 <> ALL('{}'::int[]), NULL = ANY('{}'::int[]), 1 = ANY(NULL::int[]), 1 = ANY(ARRAY[1, NULL]), 2 = ANY(ARRAY[1, NULL]), 2 <> ALL(ARRAY[1, NULL]), 1 < ALL(ARRAY[2, 3])
SELECT id FROM orders WHERE status = ANY('{ok,sad}') ORDER BY id LIMIT 4
SELECT id FROM orders WHERE status = ANY(ARRAY['ok','sad']::mood[]) ORDER BY id LIMIT 4
SELECT id FROM orders WHERE note LIKE ANY (ARRAY['%1', '%2']) ORDER BY id LIMIT 4
SELECT id FROM kinds WHERE n = ANY(ARRAY[12.5, 1.0]) ORDER BY id
SELECT id FROM orders WHERE (customer, id) > (30, 200) ORDER BY customer, id LIMIT 5
SELECT id FROM orders o WHERE amount = (SELECT max(amount) FROM orders WHERE customer = o.customer) ORDER BY id LIMIT 9
SELECT id, (SELECT name FROM customers c WHERE c.id = o.customer) FROM orders o ORDER BY id LIMIT 5
SELECT id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND o.status = 'sad') ORDER BY id
SELECT id, EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND amount > 990) FROM customers c ORDER BY id LIMIT 5
SELECT id FROM customers c WHERE (SELECT count(*) FROM orders o WHERE o.customer = c.id) = 0 ORDER BY id
SELECT 1 UNION ALL SELECT 2.5 UNION ALL SELECT 1e400 ORDER BY 1
SELECT 1::int2 UNION SELECT 70000 ORDER BY 1
SELECT NULL UNION SELECT 1 ORDER BY 1
SELECT 'a'::char(3) UNION SELECT 'a'::varchar(5) ORDER BY 1
SELECT 'x' UNION SELECT name::varchar FROM customers WHERE id = 1 ORDER BY 1
SELECT date '2024-01-01' UNION SELECT timestamp '2024-01-01' ORDER BY 1
SELECT 1.5::float8 UNION SELECT 1.5 ORDER BY 1
SELECT ARRAY[1] UNION SELECT ARRAY[2] ORDER BY 1
SELECT '{1}'::int[] UNION SELECT arr FROM kinds ORDER BY 1
SELECT id, 'a' AS k FROM customers WHERE id < 3 UNION ALL SELECT id, 'b' FROM orders WHERE id < 3 ORDER BY k DESC, id
(SELECT id FROM orders ORDER BY amount DESC, id LIMIT 2) UNION ALL (SELECT id FROM orders ORDER BY amount, id LIMIT 2)
SELECT id FROM customers INTERSECT SELECT customer FROM orders WHERE amount > 990 ORDER BY 1
SELECT quantity FROM orders EXCEPT ALL SELECT quantity FROM orders WHERE id > 5 ORDER BY 1
SELECT 1 UNION SELECT 2 INTERSECT SELECT 2 ORDER BY 1
SELECT i4, n FROM kinds UNION SELECT id, 1.5 FROM kinds ORDER BY 1, 2
SELECT count(*) FROM (SELECT jb FROM kinds UNION SELECT '{}') t
SELECT m FROM kinds UNION SELECT 'ok' ORDER BY 1
SELECT true UNION SELECT NULL ORDER BY 1
WITH RECURSIVE t(n, p) AS (SELECT 1, '1' UNION ALL SELECT n + 1, p || ',' || (n + 1) FROM t WHERE n < 5) SELECT * FROM t
WITH RECURSIVE t(n) AS (VALUES (1) UNION SELECT (n * 2) % 7 FROM t) SELECT n FROM t ORDER BY n
WITH RECURSIVE t(a, b) AS (SELECT 1::numeric, 1 UNION ALL SELECT a * 1.5, b + 1 FROM t WHERE b < 5) SELECT * FROM t
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t LIMIT 3
WITH RECURSIVE t(id, path) AS (SELECT 1, ARRAY[1] UNION ALL SELECT t.id + 1, path || (t.id + 1) FROM t WHERE t.id < 4) SELECT * FROM t ORDER BY id
WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS x FROM a) SELECT a.x, b.x FROM a, b
WITH a AS (WITH b AS (SELECT 5 AS y) SELECT y FROM b) SELECT * FROM a
WITH x AS NOT MATERIALIZED (SELECT id FROM customers) SELECT count(*) FROM x a JOIN x b USING (id)
SELECT * FROM (WITH q AS (SELECT 3 AS z) SELECT z FROM q) s
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) a(x, y) NATURAL JOIN (VALUES (1, 'z'), (3, 'w')) b(x, z)
SELECT x, y, z FROM (VALUES (1, 'a'), (2, 'b')) a(x, y) FULL JOIN (VALUES (1, 'z'), (3, 'w')) b(x, z) USING (x) ORDER BY x
SELECT * FROM (VALUES (1), (2)) a(x) FULL JOIN (VALUES (2), (3)) b(x) USING (x) FULL JOIN (VALUES (3), (4)) c(x) USING (x) ORDER BY x
SELECT a.x, b.x FROM (VALUES (1), (NULL)) a(x) RIGHT JOIN (VALUES (1), (NULL), (2)) b(x) ON a.x = b.x ORDER BY 2, 1
SELECT j.id, c.name FROM (orders JOIN items ON items.order_id = orders.id) AS j(id) JOIN customers c ON c.id = j.customer ORDER BY 1, line LIMIT 3
SELECT count(*) FROM orders o, customers c WHERE o.customer = c.id AND c.region IN ('EU', 'US') AND o.placed_at >= '2025-02-01' AND o.placed_at < timestamptz '2025-02-01' + interval '1 month'
SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer AND c.score > 10 OR o.id = 1 ORDER BY 1 LIMIT 4
SELECT c.id, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.id = (SELECT max(id) FROM orders WHERE customer = c.id) ORDER BY 1 LIMIT 4
SELECT * FROM customers c JOIN orders USING (id) ORDER BY id LIMIT 2
SELECT c.*, o.id AS oid FROM customers c JOIN orders o ON o.customer = c.id ORDER BY o.id LIMIT 2
SELECT x.id FROM (customers CROSS JOIN (SELECT 1 AS one) s) AS x ORDER BY 1 LIMIT 2
SELECT t.id FROM customers AS t (id, nm) WHERE nm = 'Customer 3'
SELECT 7 / 2, -7 / 2, 7 / -2, 7 % -3, -7 % 3, 7.0 / 2, 1 / 3.0, 2 ^ 3 ^ 2, -2 ^ 2, 5 & 3 | 8, 2 + 3 * 4 % 5, - - 3
SELECT (-2147483648)::int4 % -1
SELECT (-9223372036854775808)::int8 % -1
SELECT round(0.5), round(1.5), round(2.5), round(-0.5), round(0.5::float8), round(1.5::float8), round(2.5::float8), 0.5::int, 1.5::int, 2.5::int, 0.5::float8::int, 1.5::float8::int, 2.5::float8::int, (-2.5)::float8::int
SELECT round(1.005, 2), round(1.005::float8::numeric, 2), round(2.675, 2), 2.675::numeric(3,2), 1e-7::numeric, 123456789012345.678::float8::text
SELECT 1.0 * 3, 1.50 + 1, 1.5 * 1.5, 10.0 / 4, 1 / 3::numeric, 2 / 3.00, 100 * 1.0 / 7, 1e3, 1e-3, .5, 5.
SELECT 0.1 + 0.2, 0.1::float8 + 0.2::float8, 0.1::float4 + 0.2::float4, 0.1::float4::float8, 1e20::float4, 16777217::float4, 1.1::float4 * 2, 1::float4 / 3
SELECT sum(x) FROM (VALUES (99999999999999999999999999999999999999.0), (1)) v(x)
SELECT sum(x) FROM (VALUES (99999999999999999999999999999999999999), (1)) v(x)
SELECT 'NaN'::float8 = 'NaN', 'NaN'::float8 > 'Infinity', 'NaN'::numeric = 'NaN'::numeric, 'NaN'::float8 <> 'NaN', -0.0::float8 = 0.0::float8, '-0'::float8::text, 1 / '-Infinity'::float8
SELECT ' 12 '::int, '0x1F'::int, '1_000'::int, ' 1.5e3 '::numeric, ' t '::bool, 'YES'::bool, '+5'::int
SELECT 'abc'::char(2), 'abc'::varchar(2), 'a'::char(3) = 'a', 'a '::char(3) || 'b', length('a '::char(5)), 'a '::varchar = 'a', 'a'::bpchar = 'a  '::bpchar, 'a '::text = 'a'::bpchar
SELECT position('b' in 'abc'), position('' in 'abc'), overlay('abcdef' placing 'XX' from 3), overlay('abcdef' placing 'XX' from 3 for 0), trim(both 'x' from 'xxaxx'), trim(leading from '  a '), trim(trailing 'c' from 'abcc')
SELECT format('%s, %I, %L, %%, %s', 'a', 'B c', 'it''s', NULL), format('%s', ARRAY[1,2]), format('%s', true), format('%s', 1.50), format('%L', 5)
SELECT concat('a', 1, NULL, 2.50, true, date '2024-01-01'), concat_ws('-', 1, NULL, 'x'), 'a' || NULL || 'b', concat(NULL, NULL), concat_ws(NULL, 'a', 'b')
SELECT 'abc' SIMILAR TO '%(b|d)%', 'abc' SIMILAR TO '(b|c)%', 'a%c' SIMILAR TO 'a\%c', 'abc' SIMILAR TO 'a|abc', 'aab' SIMILAR TO 'a{2}b', 'abc' NOT SIMILAR TO 'abc', 'abc' SIMILAR TO 'ab', 'x|y' SIMILAR TO 'x\|y'
SELECT greatest(1, NULL, 3), least(NULL, NULL::int), greatest('a', 'B'), coalesce(NULL, NULL, 1.5), nullif(1, 1.0), nullif('a', 'b'), coalesce(1, 2.5)
SELECT CASE 1 WHEN 1.0 THEN 'a' ELSE 'b' END, CASE WHEN NULL THEN 1 ELSE 2.5 END, CASE WHEN true THEN NULL ELSE 1 END, CASE 'a' WHEN 'a' THEN 1 END
SELECT 1 BETWEEN SYMMETRIC 3 AND 0, NULL BETWEEN 1 AND 2, 5 NOT BETWEEN 1 AND NULL, 'b' BETWEEN 'a' AND 'c', 3 IS DISTINCT FROM NULL, NULL IS NOT DISTINCT FROM NULL, (1 > NULL) IS UNKNOWN
SELECT now() - interval '1' day < now(), current_date - interval '7' day < now(), current_date + 1 > current_date, localtimestamp > '2020-01-01'
SELECT extract(epoch FROM interval '1 mon 1 day'), extract(epoch FROM timestamp '2024-01-01'), extract(epoch FROM date '2024-01-01'), date_part('epoch', timestamptz '2024-01-01 00:00+02'), extract(day FROM interval '40 days 25 hours')
SELECT timestamp '2024-03-31 02:30' AT TIME ZONE 'Europe/Berlin', timestamp '2024-10-27 02:30' AT TIME ZONE 'Europe/Berlin', timestamptz '2024-10-27 00:30+00' AT TIME ZONE 'Europe/Berlin', timestamptz '2024-10-27 01:30+00' AT TIME ZONE 'Europe/Berlin'
SELECT timestamp '2024-03-10 02:30' AT TIME ZONE 'America/New_York', timestamp '2024-11-03 01:30' AT TIME ZONE 'America/New_York', timestamp '1883-11-18 12:00' AT TIME ZONE 'America/New_York', timestamp '1900-01-01' AT TIME ZONE 'Europe/Amsterdam', timestamp '2014-10-26 01:30' AT TIME ZONE 'Europe/Moscow'
SELECT date_trunc('day', placed_at AT TIME ZONE 'America/New_York') AS d, count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 5
SELECT extract(hour FROM placed_at AT TIME ZONE 'Asia/Tokyo') AS h, count(*) FROM orders GROUP BY h ORDER BY h LIMIT 5
SELECT to_date('  2024-01-05', 'YYYY-MM-DD')
SELECT to_date('69-01-01', 'YY-MM-DD'), to_date('68-01-01', 'YY-MM-DD'), to_date('99-01-01', 'YY-MM-DD')
SELECT to_timestamp('2024-01-05 13:14:15', 'YYYY-MM-DD HH24:MI:SS'), to_timestamp('05 Dec 2000 1 PM', 'DD Mon YYYY HH AM'), to_timestamp('2024-01-05 13:14:15.678', 'YYYY-MM-DD HH24:MI:SS.MS'), to_timestamp('2024001', 'YYYYDDD')
SELECT to_timestamp('Infinity'::float8)
SELECT make_date(-44, 3, 15)
SELECT age(timestamp '2024-03-31', timestamp '2024-02-29'), age(timestamp '2024-03-01', timestamp '2024-01-31'), age(timestamp '2024-01-31 10:00', timestamp '2024-03-01 12:00'), age(date '2024-02-29', date '2023-02-28'), age(timestamp '2000-01-01', timestamp '2024-12-31 23:59:59')
SELECT date '2024-01-31' + interval '1 month', date '2024-03-31' - interval '1 month', timestamp '2024-02-29' + interval '1 year', date '2024-01-01' - 1, date '2024-01-01' - date '2023-01-01', timestamp '2024-01-02' - timestamp '2024-01-01 12:00', time '10:00' + interval '15 hours', time '10:00' - time '12:00'
SELECT ARRAY[1,2] @> ARRAY[1], ARRAY[1,2] && ARRAY[2,3], ARRAY[1] <@ ARRAY[1,2], ARRAY[1,2] = ARRAY[1,2], ARRAY[1,2] < ARRAY[1,3], ARRAY[1] < ARRAY[1,2], ARRAY[NULL]::int[] @> ARRAY[NULL]::int[], ARRAY[1,NULL] = ARRAY[1,NULL]
SELECT (string_to_array('a/b/c', '/'))[2], (regexp_match('abc123', '([a-z]+)(\d+)'))[2], split_part('a/b/c', '/', -1)
SELECT id, tarr[1], arr[1:1], cardinality(arr), arr || 5, arr @> '{1}', 'x' = ANY(tarr) FROM kinds ORDER BY id
SELECT array_agg(x ORDER BY x DESC NULLS LAST) FROM unnest(ARRAY[3,NULL,1]) x
SELECT unnest(ARRAY[1,2,3]) AS x ORDER BY x DESC LIMIT 2
SELECT array(SELECT id FROM customers WHERE id < 4 ORDER BY id DESC), array(SELECT 1 WHERE false)
SELECT ARRAY(SELECT unnest(ARRAY[3,1,2]) ORDER BY 1)
SELECT (ARRAY['x','y'])[1] || 'z', ARRAY[1.5, 2], ARRAY['2024-01-01'::date], ARRAY[true, NULL], ARRAY['a', 1::text]
SELECT '{"a": 1}'::jsonb -> 'a', '{"a": "x"}'::jsonb ->> 'a', '[1,2]'::jsonb -> 1, '{"a": {"b": 2}}'::jsonb #> '{a,b}', '{"a": [1,2]}'::jsonb #>> '{a,1}', '{"a": 1, "a": 2}'::jsonb, '{"b": 1, "a": 2}'::json
SELECT '{"a": 1}'::jsonb @> '{"a": 1.0}', '[1,2,3]'::jsonb @> '[3]', '{"a": 1}'::jsonb ? 'a', '["a"]'::jsonb ? 'a', '{"a":1}'::jsonb ?| ARRAY['b','a'], '{"a":1}'::jsonb ?& ARRAY['b','a'], '{"a":1}'::jsonb || '{"b":2}', '{"a":1}'::jsonb - 'a', '[1,2]'::jsonb - 0, '{"a":{"b":1}}'::jsonb #- '{a,b}'
SELECT json_build_object('t', timestamp '2024-01-01 10:00', 'z', timestamptz '2024-01-01 10:00+00', 'i', interval '1 day', 'f', 'NaN'::float8, 'n', 'NaN'::numeric, 'b', '\x01'::bytea)
SELECT * FROM json_each('{"a": 1, "b": {"c": 2}}')
SELECT * FROM jsonb_each_text('{"a": 1, "b": null}')
SELECT * FROM json_array_elements('[1, {"a": 2}]') WITH ORDINALITY
SELECT jb ->> 'b', count(*) FROM kinds GROUP BY jb ->> 'b' ORDER BY 1
SELECT jb, count(*) FROM kinds GROUP BY jb ORDER BY min(id)
SELECT '{"a": "\u00e9\ud83d\ude00"}'::jsonb, '{"a": "\u00e9"}'::json ->> 'a'
SELECT '"\\u0000"'::jsonb, to_jsonb('\u0000'::text)
SELECT '1e400'::jsonb, '1E+2'::jsonb, '-0'::jsonb, '-0.0'::jsonb, '1.00'::jsonb, '[1e-5]'::jsonb
SELECT ('{"a": [1, 2, {"b": "c"}]}'::jsonb)['a'][2]['b']
SELECT row_to_json(t) FROM (SELECT 1 AS a, 'x' AS b, ARRAY[1] AS c, NULL AS d) t
SELECT to_jsonb(k) FROM kinds k ORDER BY id
SELECT row_to_json(k) FROM kinds k ORDER BY id
SELECT bin FROM kinds ORDER BY bin, id
SELECT u FROM kinds ORDER BY u DESC, id
SELECT '$1,234.567'::money, '-1'::money, '(1.5)'::money, 1.005::numeric::money, 5::money
SELECT FROM customers WHERE id < 3
SELECT count(*) FROM (SELECT FROM customers) t
TABLE empty
VALUES (1, 'a'), (2, NULL) ORDER BY 1 DESC
SELECT * FROM (VALUES (1, 2.5), (NULL, 3)) AS t(a, b) ORDER BY a NULLS FIRST
SELECT id FROM orders LIMIT 0
SELECT id FROM orders ORDER BY id LIMIT NULL OFFSET 498
SELECT id FROM orders ORDER BY id LIMIT ALL OFFSET 499
SELECT id FROM orders ORDER BY id LIMIT 1 + 1 OFFSET (SELECT 2)
SELECT id FROM orders ORDER BY id OFFSET 1.5 LIMIT 2
SELECT "Id" AS "a b", "select" AS "Select" FROM archive."Mixed Case" ORDER BY "Id"
SELECT orders.id, public.orders.amount FROM public.orders ORDER BY 1 LIMIT 1
SELECT o.* FROM orders o ORDER BY o.id LIMIT 1
SELECT (o).id FROM orders o ORDER BY 1 LIMIT 1
SELECT 1 AS "A", 2 AS a, 3 AS "select", 4 "x y"
SELECT 'a'
SELECT current_schema(), current_database() = current_catalog, current_user = user, pg_backend_pid() > 0
SELECT current_setting('timezone'), current_setting('server_encoding'), current_setting('search_path'), current_setting('nope', true)
SELECT relname, relkind FROM pg_class WHERE relname IN ('orders', 'customers') AND relkind = 'r' ORDER BY 1
SELECT id FROM orders WHERE placed_at >= date_trunc('month', timestamptz '2025-03-15') - interval '1' month AND placed_at < date_trunc('month', timestamptz '2025-03-15') ORDER BY id LIMIT 3
SELECT id, amount::float8 / quantity, amount / quantity, round(amount / quantity, 2), amount::int / quantity, trunc(amount / quantity) FROM orders ORDER BY id LIMIT 5
SELECT customer, 100.0 * sum(amount) / sum(sum(amount)) OVER () AS pct FROM orders GROUP BY customer ORDER BY pct DESC, customer LIMIT 3
SELECT count(*)::float / nullif(count(note), 0), count(*) / nullif(count(note), 0)::numeric FROM orders
SELECT id FROM orders WHERE note ~ '^note [1-3]$' ORDER BY id
SELECT id FROM orders WHERE placed_at::text LIKE '2025-01-0%' ORDER BY id LIMIT 3
SELECT id FROM orders WHERE amount::text = '395.95' OR amount = '395.95'
SELECT id FROM orders WHERE amount = 395.95::float8 OR amount = 395.95::float4
SELECT id FROM kinds WHERE f4 = 1.5 OR f4 = 1e20 ORDER BY id
SELECT id FROM items, kinds WHERE weight = f4 LIMIT 2
SELECT weight + 0.1, weight * 1.1::float4, weight / 3, weight::numeric, price * weight FROM items ORDER BY order_id, line LIMIT 4
SELECT sum(weight), avg(weight), sum(price), avg(price), sum(price * weight) FROM items WHERE order_id < 3
SELECT b, b::text, b::int, NOT b, b AND NULL, b OR NULL, b = true, b IS NOT TRUE FROM kinds ORDER BY id
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.t = b.v ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.ch = b.ch ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.jb = b.jb ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.iv = b.iv ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.n = b.f8 ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.d = b.ts ORDER BY 1, 2
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.ts = b.tz ORDER BY 1, 2
SELECT id FROM kinds WHERE tarr = '{x}' OR arr = ARRAY[5] ORDER BY id
SELECT id FROM kinds WHERE tarr IS NULL OR cardinality(tarr) = 0 ORDER BY id
SELECT id, ts::date = d, d + ti, ts - tz::timestamp, tz - '1 day'::interval, d - 1, ti + iv FROM kinds WHERE id IN (1, 5) ORDER BY id
SELECT DATE(placed_at), EXTRACT(DOW FROM placed_at) FROM orders ORDER BY id LIMIT 1
SELECT CAST(amount AS INTEGER), CAST('1' AS SMALLINT), CAST(id AS VARCHAR(2)), CAST(placed_at AS DATE), CAST(NULL AS TEXT) FROM orders ORDER BY id LIMIT 1
SELECT DATE_TRUNC('quarter', placed_at) AS q, COUNT(DISTINCT customer) AS c, SUM(amount) AS s FROM orders GROUP BY DATE_TRUNC('quarter', placed_at) ORDER BY q
SELECT TO_CHAR(placed_at, 'YYYY"-W"IW') AS w, count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 3
SELECT (placed_at AT TIME ZONE 'UTC')::date, date_trunc('week', (placed_at + '1 day'::interval))::date + '-1 day'::interval FROM orders ORDER BY id LIMIT 3
SELECT CAST(extract(year FROM placed_at) AS integer), CAST(date_trunc('month', CAST(placed_at AS timestamp)) AS date) FROM orders ORDER BY id LIMIT 2
SELECT "orders"."status" AS "status", COUNT(*) AS "count" FROM "public"."orders" GROUP BY "orders"."status" ORDER BY "count" DESC, "status" ASC
SELECT "source"."x" FROM (SELECT FLOOR(("public"."orders"."amount" / 100.0)) * 100.0 AS "x" FROM "public"."orders") AS "source" GROUP BY "source"."x" ORDER BY "source"."x" ASC
SELECT width_bucket(amount, 0, 1000, 4) AS b, count(*) FROM orders GROUP BY b ORDER BY b
SELECT (EXTRACT(epoch FROM (max(placed_at) - min(placed_at))) / 86400)::int FROM orders
SELECT sum(placed_at - '2025-01-01'::timestamptz) FROM orders WHERE id < 4
SELECT concat(upper(left(name, 1)), lower(substring(name, 2))), initcap(name), length(name), reverse(name), repeat('*', id) FROM customers ORDER BY id LIMIT 2
SELECT id FROM customers WHERE name ILIKE '%MER 1%' AND email IS NOT NULL ORDER BY id
SELECT * FROM customers WHERE joined BETWEEN '2024-02-01' AND '2024-02-05' ORDER BY id
SELECT joined, joined + 30, joined - interval '1 week', to_char(joined, 'Dy DD Mon'), extract(week FROM joined), age(date '2024-12-31', joined) FROM customers ORDER BY id LIMIT 3
SELECT CASE WHEN GROUPING(region) = 1 THEN 'Total' ELSE region END, count(*) FROM customers GROUP BY ROLLUP(region) ORDER BY GROUPING(region), region
SELECT region, array_agg(id ORDER BY id) FILTER (WHERE is_active) FROM customers GROUP BY region ORDER BY region
SELECT region, jsonb_agg(jsonb_build_object('id', id, 'score', score) ORDER BY id) FROM customers WHERE id < 7 GROUP BY region ORDER BY region
SELECT id, score::int, score::numeric, round(score::numeric), round(score), floor(score), score::text FROM customers ORDER BY id LIMIT 4
SELECT 1; SELECT 2
SELECT count(*) FROM orders WHERE customer = 1 AND id = id AND NOT (note IS NULL AND quantity > 3)
SELECT id, ch = 'ab', ch LIKE 'ab%', ch || 'x', upper(ch), length(ch), ch < 'b' FROM kinds ORDER BY id
SELECT '{1.234,5.678}'::numeric(10,2)[], ARRAY[1.234,5.678]::numeric(10,1)[], ARRAY[]::varchar(3)[], NULL::numeric(4,1)[], '{abcdef,xyz,NULL}'::varchar(3)[], ARRAY['abcdef', 'a']::char(3)[]
SELECT tarr::varchar(2)[], tarr::text[]::varchar(2)[]::char(3)[], ARRAY['2024-01-01 12:34:56.789']::timestamp(0)[] FROM kinds ORDER BY id
SELECT least(0.0::float8, -0.0::float8, 1.0, 2.0), least(-0.0::float8, 0.0::float8, 1.0, 2.0), greatest(0.0::float8, -0.0::float8, -1.0, -2.0), greatest(-0.0::float8, 0.0::float8, -1.0, -2.0), greatest(NULL::float8, NULL), least(NULL, 1.5::float8)
SELECT greatest(n, n2::text::numeric, '1.50'), least(n, '1.50', '1.5'), greatest(net, '10.0.0.1', '::1'), greatest(arr, '{1}', '{5,1}'), greatest(iv, '30 days', '1 mon'), least(m, 'ok', 'happy', 'sad') FROM kinds ORDER BY id
SELECT x, x.value ->> 'a' FROM jsonb_array_elements('[{"a":1},{"a":"b"}]') AS x
SELECT * FROM jsonb_array_elements_text('["a","b"]') WITH ORDINALITY AS x
SELECT * FROM jsonb_object_keys('{"a":1}') AS k
SELECT 'orders'::text::regclass, 'ORDERS'::text::regclass, ('public.' || 'orders')::regclass, ('archive."Mixed Case"'::text)::regclass, (NULL::text)::regclass, 'pg_class'::regclass, 1247::oid::regclass, 'orders_pkey'::regclass::text, to_regclass('x'::text || 'y')
SELECT quote_ident(word) FROM pg_get_keywords() ORDER BY 1
SELECT format('%I', 'order'), quote_ident('value'), quote_ident('ünï'), quote_ident('')
SELECT x ->> 'a', x -> 'a', x -> 'b' ->> 'a', x -> 'b' -> 'a', x ->> 'n' FROM (VALUES ('{"a": 1.50, "b": {"a": 2.50}}'::jsonb), ('{"a": 1.50, "b": 3}'), ('{"a": "1.50", "b": {"a": [1.0]}}'), ('{"n": 10000000000000000000000.10}'), ('[1]'), ('"a"'), (NULL)) v(x)
SELECT id, jb ->> 'b', jb -> 'b', jb -> 'b' -> 'c', jb -> 'b' ->> 'c', jb -> 'b' -> 'c' ->> 'd', (jb -> 'b') ->> 'c', jb -> 'b' = '{"c": 1.5}', jb = '{}' FROM kinds ORDER BY id
SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.n > b.n ORDER BY 1, 2
SELECT greatest(-0.0::float8, -1.0::float8, -2.0::float8, -3.0::float8)
SELECT greatest(f8, f4, 0.5, -0.0::float8, NULL, 'NaN'::float8) FROM kinds ORDER BY id
SELECT least(f8, f4, 0.5, -0.0::float8, NULL, 'NaN'::float8) FROM kinds ORDER BY id
SELECT least(0.0::float8, -0.0::float8, 1.0, 2.0), least(-0.0::float8, 0.0::float8, 1.0, 2.0), greatest(0.0::float8, -0.0::float8, -1.0, -2.0), greatest(-0.0::float8, 0.0::float8, -1.0, -2.0)
SELECT greatest(n, 1.50, 1.5, n2, 12) FROM kinds ORDER BY id
SELECT least(m, 'ok', 'happy', 'sad') FROM kinds ORDER BY id
SELECT greatest(iv, '30 days', '1 mon', '1 day') FROM kinds ORDER BY id
SELECT greatest(ch, 'ab', 'ab   ', 'z') FROM kinds ORDER BY id
WITH monthly AS (SELECT date_trunc('month', placed_at) AS m, sum(amount) AS s FROM orders GROUP BY 1) SELECT m, s, lag(s) OVER (ORDER BY m), s - lag(s) OVER (ORDER BY m) AS delta, round(100.0 * (s - lag(s) OVER (ORDER BY m)) / lag(s) OVER (ORDER BY m), 2) AS pct FROM monthly ORDER BY m
WITH monthly AS (SELECT date_trunc('month', placed_at)::date AS m, customer, sum(amount) AS s FROM orders GROUP BY 1, 2), ranked AS (SELECT *, rank() OVER (PARTITION BY m ORDER BY s DESC, customer) AS r FROM monthly) SELECT m, r, customer, s FROM ranked WHERE r <= 3 ORDER BY m, r
SELECT date_trunc('week', placed_at) AS w, count(*) FILTER (WHERE status = 'ok') AS ok, count(*) FILTER (WHERE status = 'sad') AS sad, round(avg(amount) FILTER (WHERE note IS NOT NULL), 3) AS a FROM orders GROUP BY 1 ORDER BY 1
SELECT coalesce(region, 'all') AS region, coalesce(status::text, 'any') AS status, count(*), sum(amount), grouping(region, status) FROM orders JOIN customers c ON c.id = customer GROUP BY GROUPING SETS ((region, status), (region), ()) ORDER BY 5, 1, 2
SELECT extract(year FROM placed_at) AS y, extract(month FROM placed_at) AS m, sum(quantity) FROM orders GROUP BY ROLLUP (extract(year FROM placed_at), extract(month FROM placed_at)) ORDER BY 1 NULLS LAST, 2 NULLS LAST
SELECT d::date, count(o.id) FROM generate_series('2025-01-01'::date, '2025-01-10', '1 day') d LEFT JOIN orders o ON o.placed_at::date = d::date GROUP BY 1 ORDER BY 1
SELECT d, coalesce(sum(amount), 0) FROM generate_series(timestamp '2025-01-01', '2025-03-01', interval '1 month') AS g(d) LEFT JOIN orders ON date_trunc('month', placed_at AT TIME ZONE 'UTC') = d GROUP BY d ORDER BY d
SELECT c.id, c.name, o.* FROM customers c CROSS JOIN LATERAL (SELECT id AS order_id, amount FROM orders o WHERE o.customer = c.id ORDER BY amount DESC LIMIT 2) o ORDER BY c.id, amount DESC LIMIT 10
SELECT c.id, x.total, x.n FROM customers c LEFT JOIN LATERAL (SELECT sum(amount) total, count(*) n FROM orders o WHERE o.customer = c.id AND o.status = 'happy') x ON true ORDER BY c.id
SELECT id, (SELECT max(amount) FROM orders o WHERE o.customer = c.id) AS mx, (SELECT count(*) FROM orders o WHERE o.customer = c.id AND o.amount > (SELECT avg(amount) FROM orders i WHERE i.customer = o.customer)) AS above FROM customers c ORDER BY id LIMIT 12
SELECT jsonb_build_object('id', id, 'name', name, 'tags', jsonb_build_array(region, is_active, score)) FROM customers ORDER BY id LIMIT 5
SELECT json_build_object('customer', c.name, 'orders', (SELECT json_agg(json_build_object('id', o.id, 'amount', o.amount) ORDER BY o.id) FROM orders o WHERE o.customer = c.id AND o.id < 100)) FROM customers c ORDER BY c.id LIMIT 3
SELECT jsonb_object_agg(region, n) FROM (SELECT region, count(*) AS n FROM customers GROUP BY region ORDER BY region) t
SELECT to_jsonb(c) FROM customers c ORDER BY id LIMIT 2
SELECT row_to_json(t) FROM (SELECT id, name FROM customers ORDER BY id LIMIT 2) t
SELECT DISTINCT ON (customer) customer, id, amount FROM orders ORDER BY customer, amount DESC, id LIMIT 10
SELECT customer, string_agg(DISTINCT status::text, ',' ORDER BY status::text) FROM orders GROUP BY customer ORDER BY 1 LIMIT 5
SELECT customer, array_agg(id ORDER BY amount DESC) FROM orders WHERE id < 100 GROUP BY customer ORDER BY 1 LIMIT 5
SELECT id, regexp_replace(name, '^Customer (\d+)$', 'C-\1') FROM customers ORDER BY id LIMIT 3
SELECT id, substring(email from '@(.+)$'), split_part(email, '@', 2), position('@' in email), regexp_match(email, '^c(\d+)@') FROM customers ORDER BY id LIMIT 6
SELECT id FROM customers WHERE email ~* '^C1\d@' ORDER BY 1
SELECT id FROM customers WHERE name SIMILAR TO 'Customer (1|2)_' ORDER BY 1
SELECT upper(left(name, 1)) || lower(substr(name, 2)), length(name), lpad(id::text, 5, '0'), repeat('-', id), reverse(name), initcap(lower(name)) FROM customers ORDER BY id LIMIT 3
SELECT trim(both 'x' from 'xxhixx'), ltrim('  a'), rtrim('a  '), btrim('xyxtrimyyx', 'xyz'), concat_ws(', ', 'a', NULL, 'b'), format('%s has %s', name, score) FROM customers ORDER BY id LIMIT 2
SELECT id, CASE WHEN amount < 100 THEN 'small' WHEN amount < 500 THEN 'medium' ELSE 'large' END AS bucket FROM orders ORDER BY id LIMIT 10
SELECT CASE status WHEN 'ok' THEN 1 WHEN 'sad' THEN 2 END AS c, count(*) FROM orders GROUP BY 1 ORDER BY 1 NULLS FIRST
SELECT width_bucket(amount, 0, 1000, 10) AS b, count(*), min(amount), max(amount) FROM orders GROUP BY b ORDER BY b
SELECT ntile(4) OVER (ORDER BY amount) AS q, id FROM orders ORDER BY id LIMIT 8
SELECT q, count(*), min(amount), max(amount) FROM (SELECT amount, ntile(4) OVER (ORDER BY amount, id) AS q FROM orders) t GROUP BY q ORDER BY q
SELECT id, amount, sum(amount) OVER (PARTITION BY customer ORDER BY placed_at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS running, avg(amount) OVER (PARTITION BY customer ORDER BY placed_at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS moving FROM orders WHERE customer < 4 ORDER BY id
SELECT customer, count(*), sum(amount) / count(*) AS a, avg(amount)::numeric(10,2), max(placed_at) - min(placed_at) AS span FROM orders GROUP BY customer HAVING count(*) > 13 ORDER BY customer
SELECT placed_at::date, placed_at + interval '1 month', placed_at - interval '2 days 3 hours', age(placed_at, '2025-01-01'), extract(epoch from placed_at), extract(dow from placed_at), to_char(placed_at, 'YYYY-MM-DD"T"HH24:MI:SS'), date_part('hour', placed_at) FROM orders ORDER BY id LIMIT 4
SELECT (date_trunc('month', placed_at) + interval '1 month' - interval '1 day')::date AS month_end, count(*) FROM orders GROUP BY 1 ORDER BY 1
SELECT id, joined, current_date - joined > 0, joined + 7, joined - date '2024-01-01', (joined + interval '1 year')::date, extract(isodow from joined), extract(week from joined), to_char(joined, 'Day, DD Month YYYY'), to_char(joined, 'IYYY-"W"IW') FROM customers ORDER BY id LIMIT 4
SELECT id, unnest(arr) FROM kinds ORDER BY 1, 2
SELECT k.id, u.x, u.o FROM kinds k LEFT JOIN LATERAL unnest(k.arr) WITH ORDINALITY AS u(x, o) ON true ORDER BY 1, 3
SELECT id, jsonb_typeof(jb), jb -> 'b' ->> 'c', jb #>> '{b,c}', jb @> '{"b": {}}', jb ? 'b' FROM kinds ORDER BY id
SELECT key, value FROM kinds, jsonb_each(CASE WHEN jsonb_typeof(jb) = 'object' THEN jb END) ORDER BY id, key
SELECT id, e FROM kinds, json_array_elements_text(CASE WHEN json_typeof(j) = 'array' THEN j END) e ORDER BY 1, 2
SELECT id, (jb -> 'b' ->> 'c')::numeric * 2 FROM kinds ORDER BY id
SELECT status, count(*) * 100.0 / sum(count(*)) OVER () AS pct FROM orders GROUP BY status ORDER BY status
SELECT status, sum(amount), rank() OVER (ORDER BY sum(amount) DESC) FROM orders GROUP BY status ORDER BY 3
SELECT * FROM (SELECT status, customer, sum(amount) s, row_number() OVER (PARTITION BY status ORDER BY sum(amount) DESC, customer) rn FROM orders GROUP BY 1, 2) t WHERE rn <= 2 ORDER BY status, rn
WITH RECURSIVE t(n, f) AS (SELECT 1, 1::numeric UNION ALL SELECT n + 1, f * (n + 1) FROM t WHERE n < 30) SELECT * FROM t ORDER BY n
WITH RECURSIVE tree AS (SELECT id, customer, 1 AS depth, ARRAY[id] AS path FROM orders WHERE id = 1 UNION ALL SELECT o.id, o.customer, t.depth + 1, t.path || o.id FROM orders o JOIN tree t ON o.id = t.id * 2 WHERE o.id <= 64) SELECT * FROM tree ORDER BY depth
WITH RECURSIVE d AS (SELECT date '2025-01-30' AS d UNION ALL SELECT (d + interval '1 month')::date FROM d WHERE d < '2025-06-01') SELECT * FROM d
SELECT c.region, count(DISTINCT o.customer), count(DISTINCT o.status) FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region ORDER BY 1
SELECT id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id) ORDER BY id
SELECT c.id, o.id FROM customers c FULL OUTER JOIN (SELECT * FROM orders WHERE id < 5) o ON o.customer = c.id ORDER BY c.id NULLS FIRST, o.id LIMIT 8
SELECT a.id, b.id FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id AND b.placed_at - a.placed_at < interval '12 days' ORDER BY 1, 2 LIMIT 10
SELECT count(*) FROM orders WHERE placed_at BETWEEN '2025-01-10' AND '2025-02-10' AND note LIKE 'note 1%' AND (status = 'ok' OR amount > 500) AND customer IN (SELECT id FROM customers WHERE region = 'EU')
SELECT bool_and(amount > 0), bool_or(note IS NULL), every(quantity > 0), bit_and(quantity), bit_or(quantity) FROM orders
SELECT max(amount) FILTER (WHERE status = 'ok') - min(amount) FILTER (WHERE status = 'sad') FROM orders
SELECT first_value(amount) OVER w AS f, last_value(amount) OVER w AS l, nth_value(amount, 2) OVER w FROM orders WHERE customer = 5 WINDOW w AS (ORDER BY placed_at ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
SELECT id, placed_at, count(*) OVER (ORDER BY placed_at RANGE BETWEEN interval '7 days' PRECEDING AND CURRENT ROW) FROM orders ORDER BY id LIMIT 30
SELECT percent_rank() OVER (ORDER BY amount), cume_dist() OVER (ORDER BY amount) FROM orders ORDER BY 1 LIMIT 5
SELECT "orders"."customer", SUM("orders"."amount") AS "sum", (CAST(date_trunc('month', "orders"."placed_at") AS timestamp)) AS "m" FROM "public"."orders" GROUP BY "orders"."customer", (CAST(date_trunc('month', "orders"."placed_at") AS timestamp)) ORDER BY 1, 3 LIMIT 5
SELECT "source"."bucket" AS "bucket", COUNT(*) AS "count" FROM (SELECT FLOOR("public"."orders"."amount" / 100) * 100 AS "bucket" FROM "public"."orders") AS "source" GROUP BY "source"."bucket" ORDER BY "source"."bucket" ASC
SELECT CAST("orders"."placed_at" AS date) AS "d", COUNT(*) FROM "orders" WHERE ("orders"."placed_at" >= CAST((CAST('2025-03-01 00:00:00' AS timestamp) + (INTERVAL '-30 day')) AS date) AND "orders"."placed_at" < CAST('2025-03-01' AS date)) GROUP BY CAST("orders"."placed_at" AS date) ORDER BY 1
SELECT (CAST(extract(dow from "public"."orders"."placed_at") AS integer) + 1) AS "dow", count(*) FROM orders GROUP BY 1 ORDER BY 1
SELECT SUM(CASE WHEN "status" = 'ok' THEN 1 ELSE 0.0 END) AS "s", AVG("quantity") FROM "orders"
SELECT COUNT(DISTINCT CASE WHEN amount > 500 THEN customer END) FROM orders
SELECT date_trunc('day', placed_at) + (floor(extract(hour from placed_at) / 6) * interval '6 hours') AS b, count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 5
SELECT to_timestamp(floor(extract(epoch from placed_at) / 900) * 900) AS t, count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 5
SELECT date_bin('15 minutes', placed_at, '2001-01-01'), count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 5
SELECT id, amount, round(amount, -1), ceil(amount), floor(amount), trunc(amount, 1), mod(amount, 7), sign(amount - 100), abs(amount - 500), power(quantity, 2), sqrt(quantity), amount % 10 FROM orders ORDER BY id LIMIT 5
SELECT id, amount * 1.2, amount * quantity, amount / 3, amount + rate, rate * rate, amount / nullif(rate, 0), (amount / quantity)::numeric(10, 3), round(amount * 0.075, 2) FROM orders ORDER BY id LIMIT 12
SELECT sum(amount * quantity), sum(rate), avg(rate), sum(rate * amount), min(rate), max(rate), stddev(amount), variance(rate) FROM orders
SELECT to_char(amount, 'FM999,990.00'), to_char(amount, '9999.9'), to_char(id, '000') FROM orders ORDER BY id LIMIT 3
SELECT md5(name), encode(sha256(name::bytea), 'hex'), encode('abc'::bytea, 'base64'), decode('YWJj', 'base64') FROM customers ORDER BY id LIMIT 2
SELECT array_to_string(array_agg(name ORDER BY id), '; ') FROM customers WHERE id < 4
SELECT string_to_array('a,b,,c', ','), array_to_string(ARRAY[1,NULL,3], ',', '*'), unnest(string_to_array('a,b', ','))
SELECT regexp_replace('abc 123 def', '[^0-9]+', '', 'g'), regexp_replace('Hello World', '(\w+) (\w+)', '\2 \1'), translate('12345', '143', 'ax'), substring('Thomas' from 2 for 3), overlay('Txxxxas' placing 'hom' from 2 for 4)
SELECT id FROM kinds WHERE tz AT TIME ZONE 'Europe/Berlin' > '2000-01-01' ORDER BY id
SELECT name, email IS NULL AS missing, coalesce(email, 'n/a'), nullif(region, 'EU'), greatest(score, 10), least(score, 10) FROM customers ORDER BY id LIMIT 8
SELECT count(*), count(email), count(DISTINCT region), count(*) - count(email), sum((email IS NULL)::int), avg(is_active::int) FROM customers
SELECT x, y FROM (VALUES (1, 'a'), (2, 'b')) v(x, y) WHERE (x, y) IN ((1, 'a'), (3, 'c'))
SELECT g, g % 3 = 0 AS fizz, CASE WHEN g % 15 = 0 THEN 'FizzBuzz' WHEN g % 3 = 0 THEN 'Fizz' WHEN g % 5 = 0 THEN 'Buzz' ELSE g::text END FROM generate_series(1, 16) g
SELECT generate_series(1, 10, 3), generate_series(5, 1, -2)
SELECT i, j FROM generate_series(1, 3) i, generate_series(i, 3) j ORDER BY 1, 2
SELECT id, row_number() OVER () FROM (SELECT id FROM customers ORDER BY id DESC) t ORDER BY 2 LIMIT 3
SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public' AND table_name = 'orders' ORDER BY ordinal_position
SELECT sum(amount) OVER (ORDER BY id), sum(sum(amount)) OVER () FROM orders GROUP BY id, amount ORDER BY 1 LIMIT 3
WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, b UNION ALL SELECT y, x FROM b, a ORDER BY 1
WITH t AS (SELECT id, amount FROM orders) SELECT (SELECT count(*) FROM t) AS n, (SELECT sum(amount) FROM t WHERE id < 10) AS s
SELECT DISTINCT status, region FROM orders o JOIN customers c ON c.id = o.customer ORDER BY status, region
SELECT o.customer, c.name, o.status, count(*) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY o.customer, c.name, o.status ORDER BY count(*) DESC, 1, 3 LIMIT 7
SELECT c.*, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id ORDER BY n DESC, c.id LIMIT 4
SELECT i.order_id, sum(i.price * i.weight::numeric), sum(i.price) * 2, avg(i.weight) FROM items i GROUP BY 1 ORDER BY 1 LIMIT 4
SELECT sum(price), avg(price), round(avg(price), 2), sum(price)::int, sum(weight), max(weight), sum(price)::float8 FROM items
SELECT jsonb_agg(jsonb_build_object('s', status, 'n', n) ORDER BY status) FROM (SELECT status, count(*) n FROM orders GROUP BY status) t
SELECT jsonb_pretty(jsonb_build_object('a', 1, 'b', ARRAY[1,2]))
SELECT e ->> 'x' AS x, sum((e ->> 'n')::int) FROM jsonb_array_elements('[{"x":"a","n":1},{"x":"b","n":2},{"x":"a","n":3}]') e GROUP BY 1 ORDER BY 1
SELECT * FROM jsonb_each_text('{"a":1,"b":"x"}')
SELECT * FROM json_object_keys('{"b":1,"a":2}')
SELECT o.id FROM orders o WHERE o.amount > ALL (SELECT amount FROM orders WHERE customer = 3) ORDER BY 1 LIMIT 4
SELECT id FROM orders WHERE (placed_at, id) > ('2025-05-01', 3) ORDER BY placed_at, id LIMIT 4
SELECT id, note FROM orders ORDER BY note DESC NULLS LAST, id LIMIT 5 OFFSET 2
SELECT id FROM orders ORDER BY status, amount DESC FETCH FIRST 5 ROWS ONLY
SELECT r, lower(r), upper(r), r @> 3, isempty(r) FROM kinds ORDER BY id
SELECT net, host(net), masklen(net), family(net), net << '10.0.0.0/8' FROM kinds ORDER BY id
SELECT mo, mo * 2, mo + '1'::money, mo::numeric, sum(mo) OVER (ORDER BY id) FROM kinds ORDER BY id
SELECT b, NOT b, b AND id > 1, b IS TRUE, b IS NOT FALSE, b::int, b::text FROM kinds ORDER BY id
SELECT id, u::text, bin, encode(bin, 'hex'), length(bin), octet_length(t), char_length(t) FROM kinds ORDER BY id
SELECT ts::date, ts::time, date_trunc('hour', ts), extract(year from ts), tz::date, ti + interval '1 hour', extract(hour from ti), iv * 2, -iv, iv + interval '1 day' FROM kinds WHERE id IN (1, 5) ORDER BY id
SELECT coalesce(sum(a), 0), count(*), max(b), array_agg(a), string_agg(b, ','), avg(a), json_agg(a) FROM empty
SELECT customer FROM orders GROUP BY customer ORDER BY sum(amount) DESC, customer LIMIT 5
SELECT EXTRACT(YEAR FROM placed_at)::text || '-Q' || EXTRACT(QUARTER FROM placed_at)::text AS q, sum(amount) FROM orders GROUP BY 1 ORDER BY 1
SELECT avg(extract(epoch from (placed_at - joined::timestamptz)) / 86400)::numeric(10,2) FROM orders JOIN customers c ON c.id = customer
SELECT '2024-01-31'::date + interval '1 month', '2024-03-31'::date - interval '1 month', date '2024-01-01' - date '2023-01-01', timestamp '2024-01-01 12:00' - timestamp '2023-12-31 06:30', age('2024-03-01', '2024-02-01'), date_part('day', timestamp '2024-03-01' - timestamp '2024-02-01'), extract(days from interval '40 days 5 hours')
SELECT current_date = now()::date, now() - now(), date_trunc('day', now()) = current_date, localtimestamp::date = current_date
SELECT 'a' < 'B', 'a' < 'b', 'é' > 'z', 'abc' LIKE 'a_c', 'ABC' ILIKE 'a%', 'a%c' LIKE 'a\%c', 'x' NOT LIKE 'y', 'abc' ~ '^a.c$', 'abc' !~* 'X', 'a' || 1 || true, 'a' || NULL
SELECT chr(65), ascii('A'), to_hex(255), strpos('hello', 'l'), left('hello', -2), right('hello', 2), quote_ident('a b'), quote_literal('it''s'), starts_with('hello', 'he'), split_part('a.b.c', '.', -1), ltrim('0012', '0'), concat(1, NULL, 'x'), replace('aaa', 'a', 'bb'), md5('x'), initcap('hello world')
SELECT o1.id, (SELECT string_agg(o2.id::text, ',' ORDER BY o2.id) FROM orders o2 WHERE o2.customer = o1.customer AND o2.id < o1.id) FROM orders o1 WHERE o1.id BETWEEN 70 AND 80 ORDER BY 1
SELECT customer, amount, amount - avg(amount) OVER (PARTITION BY customer) AS diff, amount / sum(amount) OVER (PARTITION BY customer) AS share FROM orders WHERE customer < 3 ORDER BY id
SELECT *, count(*) OVER () AS total FROM (SELECT status, count(*) FROM orders GROUP BY status) t ORDER BY 1 LIMIT 2
SELECT max(s) - min(s), max(c) FROM (SELECT customer c, sum(amount) s FROM orders GROUP BY 1 HAVING sum(quantity) > 10) q
SELECT count(*) FILTER (WHERE amount > avg_amount) FROM orders, (SELECT avg(amount) AS avg_amount FROM orders) a
SELECT CASE WHEN grouping(status) = 1 THEN 'TOTAL' ELSE status::text END AS s, sum(amount) FROM orders GROUP BY ROLLUP(status) ORDER BY grouping(status), 1
SELECT region, status, sum(amount) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY region, CUBE(status) ORDER BY region, status
SELECT a.customer, a.s, b.s FROM (SELECT customer, sum(amount) s FROM orders WHERE placed_at < '2025-03-01' GROUP BY 1) a FULL JOIN (SELECT customer, sum(amount) s FROM orders WHERE placed_at >= '2025-03-01' GROUP BY 1) b USING (customer) ORDER BY 1 LIMIT 5
SELECT lower(region) COLLATE "C" AS r FROM customers GROUP BY 1 ORDER BY r
SELECT id % 2 = 0 AS even, array_agg(id ORDER BY id DESC) FILTER (WHERE id < 10) FROM customers GROUP BY even ORDER BY even
SELECT (ARRAY_AGG(name ORDER BY score DESC))[1], (ARRAY_AGG(name ORDER BY score))[1] FROM customers
SELECT exists(SELECT 1 FROM empty), not exists(SELECT 1 FROM empty), (SELECT a FROM empty), (SELECT count(*) FROM empty), ARRAY(SELECT a FROM empty)
SELECT joined - lag(joined) OVER (ORDER BY joined) AS gap, lead(joined, 1, date '2030-01-01') OVER (ORDER BY joined) FROM customers ORDER BY joined LIMIT 3
SELECT extract(epoch from timestamp '2024-01-01 00:00:00.123456'), extract(epoch from date '2024-01-01'), extract(second from time '12:00:01.5'), extract(milliseconds from timestamp '2024-01-01 00:00:01.5')
SELECT round(1234.5678::numeric, 2)::text, round(1234.5::float8::numeric, 0), 1234.5678::numeric(6,2), to_char(1234.5, 'FM9,999.00'), to_char(-1.5, '990.99'), to_char(0, '9'), to_char(12345, '999')
SELECT first_value(x) OVER (ORDER BY x ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING), count(*) OVER (ORDER BY x GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE GROUP) FROM (VALUES (1), (2), (2), (3)) v(x) ORDER BY x
SELECT d, count(*) OVER (ORDER BY d RANGE BETWEEN '1 month' PRECEDING AND '10 days' FOLLOWING) FROM (VALUES (date '2024-01-31'), ('2024-02-28'), ('2024-02-29'), ('2024-03-31')) v(d)
SELECT extract(day from interval '40 days'), extract(hour from interval '30 hours'), extract(epoch from interval '1 month'), extract(month from interval '14 months'), date_part('year', interval '14 months')
SELECT age(timestamp '2024-03-01', timestamp '2023-02-28'), age(date '2000-01-01', date '2024-06-15'), date '2024-03-31' - 31, '2024-03-31'::timestamp - '2024-03-01'::timestamp
SELECT id, x.e, x.o FROM kinds LEFT JOIN LATERAL jsonb_array_elements(CASE WHEN jsonb_typeof(jb) = 'array' THEN jb END) WITH ORDINALITY AS x(e, o) ON true ORDER BY 1, 3
SELECT count(*) FROM kinds k, LATERAL unnest(k.tarr) t(x) WHERE length(x) > 1
SELECT DISTINCT ON (o.customer) o.customer, o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer WHERE o.status <> 'sad' ORDER BY o.customer, o.placed_at DESC LIMIT 5
SELECT c.region, o.status, count(*), sum(count(*)) OVER (PARTITION BY c.region) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1, 2 ORDER BY 1, 2
SELECT date_trunc('month', placed_at) AS m, sum(amount) AS s, sum(sum(amount)) OVER (ORDER BY date_trunc('month', placed_at)) AS cum FROM orders GROUP BY 1 ORDER BY 1
SELECT m, s, round(s / first_value(s) OVER (ORDER BY m) * 100, 1) AS idx FROM (SELECT date_trunc('month', placed_at)::date AS m, sum(amount) AS s FROM orders GROUP BY 1) t ORDER BY m
WITH first AS (SELECT customer, min(date_trunc('month', placed_at)) AS cohort FROM orders GROUP BY customer), act AS (SELECT o.customer, f.cohort, extract(month FROM age(date_trunc('month', o.placed_at), f.cohort))::int AS k FROM orders o JOIN first f USING (customer)) SELECT cohort::date, k, count(DISTINCT customer) FROM act GROUP BY 1, 2 ORDER BY 1, 2
WITH s AS (SELECT customer, placed_at, placed_at - lag(placed_at) OVER (PARTITION BY customer ORDER BY placed_at) > interval '11 days' AS gap FROM orders) SELECT customer, count(*) FILTER (WHERE gap) + 1 AS sessions FROM s GROUP BY customer ORDER BY customer LIMIT 6
SELECT customer, max(amount) FILTER (WHERE rn = 1) AS latest, max(amount) FILTER (WHERE rn = 2) AS before FROM (SELECT customer, amount, row_number() OVER (PARTITION BY customer ORDER BY placed_at DESC) rn FROM orders) t GROUP BY 1 ORDER BY 1 LIMIT 5
SELECT sum(CASE WHEN extract(isodow FROM placed_at) IN (6, 7) THEN amount ELSE 0 END) AS weekend, sum(amount) FILTER (WHERE extract(isodow FROM placed_at) < 6) AS week FROM orders
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) FILTER (WHERE status = 'ok'), status FROM orders GROUP BY status ORDER BY 2
SELECT id, amount, CASE WHEN amount > avg(amount) OVER () + stddev(amount) OVER () THEN 'high' END AS f FROM orders ORDER BY id LIMIT 6
SELECT a.id, b.id, a.amount - b.amount FROM orders a LEFT JOIN orders b ON b.customer = a.customer AND b.id = (SELECT max(id) FROM orders x WHERE x.customer = a.customer AND x.id < a.id) ORDER BY a.id LIMIT 45
SELECT region, count(*) FILTER (WHERE score BETWEEN 0 AND 20) AS low, count(*) FILTER (WHERE score > 20) AS high, bool_or(is_active), string_agg(name, ', ' ORDER BY name) FILTER (WHERE id < 6) FROM customers GROUP BY region ORDER BY region
SELECT generate_series(date '2025-01-01', date '2025-01-03', interval '1 day')::date AS d, 'x' AS k
SELECT to_char(d, 'YYYY-MM') AS m, count(o.id), coalesce(sum(o.amount), 0.00) FROM generate_series(timestamptz '2024-12-01', '2025-07-01', '1 month') d LEFT JOIN orders o ON o.placed_at >= d AND o.placed_at < d + interval '1 month' GROUP BY d ORDER BY d
SELECT c.name, o.n FROM customers c JOIN (SELECT customer, count(*) n FROM orders GROUP BY customer) o ON o.customer = c.id AND o.n >= 14 ORDER BY 2 DESC, 1
SELECT name FROM customers WHERE id IN (SELECT customer FROM orders GROUP BY customer HAVING sum(amount) > (SELECT 1.3 * avg(s) FROM (SELECT sum(amount) s FROM orders GROUP BY customer) t)) ORDER BY id
SELECT id, (SELECT jsonb_agg(jsonb_build_object('line', i.line, 'price', i.price) ORDER BY i.line) FROM items i WHERE i.order_id = o.id) FROM orders o ORDER BY id LIMIT 3
SELECT o.id, sum(i.price) AS s, o.amount, sum(i.price) > o.amount AS more FROM orders o JOIN items i ON i.order_id = o.id GROUP BY o.id, o.amount ORDER BY o.id LIMIT 5
SELECT id, note FROM orders WHERE note ~ '^note (1|2)[0-9]$' ORDER BY id
SELECT regexp_replace(note, '\D', '', 'g')::int % 7 AS k, count(*) FROM orders WHERE note IS NOT NULL GROUP BY 1 ORDER BY 1
SELECT lower(split_part(name, ' ', 1)) || '_' || lpad(split_part(name, ' ', 2), 3, '0') FROM customers ORDER BY 1 LIMIT 4
SELECT id FROM orders WHERE ARRAY[customer, quantity::int] && ARRAY[3, 99] ORDER BY id LIMIT 5
SELECT customer, quantity, count(*) FROM orders WHERE customer < 3 GROUP BY ROLLUP (customer, quantity) ORDER BY customer NULLS LAST, quantity NULLS LAST
SELECT EXTRACT(EPOCH FROM max(placed_at) - min(placed_at)) / 3600 FROM orders
SELECT placed_at::date - date_trunc('month', placed_at)::date + 1 AS dom, count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 4
SELECT sum(amount)::money, avg(amount)::money FROM orders
SELECT row_number() OVER (ORDER BY sum(amount) DESC) AS r, customer FROM orders GROUP BY customer ORDER BY r LIMIT 3
SELECT count(*) AS "Count", sum("amount") AS "Sum of amount" FROM "public"."orders" WHERE "orders"."note" IS NOT NULL AND (LOWER("public"."orders"."note") LIKE '%note 1%')
SELECT "t1"."region" AS "r", COUNT("t0"."id") AS "n" FROM "orders" AS "t0" LEFT OUTER JOIN "customers" AS "t1" ON "t0"."customer" = "t1"."id" GROUP BY "t1"."region" HAVING COUNT("t0"."id") > 0 ORDER BY "n" DESC, "r" ASC NULLS FIRST LIMIT 100 OFFSET 0
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum
SELECT tc.table_name, kcu.column_name FROM information_schema.table_constraints tc JOIN information_schema.key_column_usage kcu USING (constraint_schema, constraint_name) WHERE tc.constraint_type = 'PRIMARY KEY' AND tc.table_schema = 'public' ORDER BY 1, kcu.ordinal_position
SELECT n.nspname, c.relname, c.relkind, pg_get_userbyid(c.relowner) IS NOT NULL, obj_description(c.oid, 'pg_class') FROM pg_class c LEFT JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_toast' ORDER BY 1, 2
SELECT t.typname, e.enumlabel FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid ORDER BY e.enumsortorder
SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' ORDER BY 1
SELECT datname FROM pg_database WHERE datallowconn AND datname = current_database()
SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2
SELECT i.relname, ix.indisunique, ix.indisprimary, a.attname FROM pg_class t JOIN pg_index ix ON t.oid = ix.indrelid JOIN pg_class i ON i.oid = ix.indexrelid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY(ix.indkey) WHERE t.relkind = 'r' AND t.relname = 'items' ORDER BY 1, 4
SELECT NULL AS TABLE_CAT, n.nspname AS TABLE_SCHEM, c.relname AS TABLE_NAME, CASE n.nspname ~ '^pg_' OR n.nspname = 'information_schema' WHEN true THEN 'SYSTEM' ELSE CASE c.relkind WHEN 'r' THEN 'TABLE' ELSE 'OTHER' END END AS TABLE_TYPE, d.description AS REMARKS FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass) WHERE c.relnamespace = n.oid AND n.nspname = 'public' AND c.relkind = 'r' ORDER BY 4, 2, 3
SELECT column_name, data_type, is_nullable, character_maximum_length, character_octet_length, numeric_precision, numeric_precision_radix, numeric_scale, datetime_precision, udt_name, ordinal_position FROM information_schema.columns WHERE table_schema IN ('public', 'archive') ORDER BY table_name, ordinal_position
SELECT stddev(amount), stddev_pop(rate), variance(amount), stddev(quantity), stddev_samp(id) FROM orders
SELECT customer, stddev(amount), var_pop(amount), stddev(rate) FROM orders GROUP BY 1 ORDER BY 1
SELECT stddev(x), stddev_pop(x) FROM (VALUES (0.0001), (0.00011), (100000000000000000000)) v(x)
SELECT 1 << 4, 256 >> 2, 1::int8 << 40, 1::int2 << 3, -8 >> 1, -1 >> 31, -7 >> 1, 1 << 31, 3 << 31, 1::int2 << 15, 5::int2 >> 15, NULL << 1, 1 << NULL::int, i4 << 1, i8 << 63, i2 << 7, i8 >> 62, i4 >> 3, i2 >> 1, i8 << 5, -i8 >> 1 FROM kinds WHERE id <> 1 ORDER BY id
SELECT g, 1 << g, -1 >> g, -12345 << g, 2147483647 << g, -2147483648 >> g, 1::int8 << g, 123456789012345::int8 << g, -123456789012345::int8 >> g FROM generate_series(0, 31) g
SELECT g, -1::int8 << g, 9223372036854775807 << g, (-9223372036854775808)::int8 >> g, (-9223372036854775807)::int8 << g FROM generate_series(0, 63) g
SELECT g, 1::int2 << g, 32767::int2 << g, (-32768)::int2 >> g, (-32768)::int2 << g FROM generate_series(0, 15) g
SELECT pg_typeof(1), pg_typeof('a'), pg_typeof('a'::text), pg_typeof(NULL), pg_typeof(1.5), pg_typeof(now()), pg_typeof(ARRAY[1]), pg_typeof(true), pg_typeof(1.5::float4), pg_typeof('a'::char(3)), pg_typeof(current_date), pg_typeof(current_user)
SELECT pg_typeof(m), pg_typeof(c), pg_typeof(v), pg_typeof(ch), pg_typeof(arr), pg_typeof(jb), pg_typeof(sum(i4)), pg_typeof(avg(i4)), pg_typeof(count(*)), pg_typeof(i2 + i4), pg_typeof(n2 * 2), pg_typeof(d + 1), pg_typeof(ts - ts), pg_typeof(extract(day from d)), pg_typeof(m)::text, pg_typeof(round(f8)) FROM kinds WHERE id = 5 GROUP BY m, c, v, ch, arr, jb, i2, i4, n2, d, ts, f8
SELECT pg_typeof(1) = 'integer'::regtype
SELECT array_replace(ARRAY[1,2,1], 1, 9), array_replace(ARRAY['a',NULL], NULL, 'x'), array_replace(ARRAY[1,2], NULL, 5), array_replace(NULL::int[], 1, 2), array_replace(ARRAY[1,2], 2, NULL), array_replace(ARRAY[]::int[], 1, 2)
SELECT array_replace(arr, 1, 7), array_replace(tarr, 'x', 'y'), array_replace(arr, NULL, 0) FROM kinds ORDER BY id
SELECT array_replace(ARRAY[1.50, 2], 1.5, 3)
SELECT justify_hours('36 hours'), justify_days('40 days'), justify_interval('1 mon -1 hour'), justify_interval('-1 mon 1 day 25 hours'), justify_hours('-1 day 50 hours'), justify_days('1 mon -40 days')
SELECT justify_hours(iv), justify_days(iv), justify_interval(iv) FROM kinds ORDER BY id
SELECT m, d, h, justify_hours(x), justify_days(x), justify_interval(x) FROM (SELECT m, d, h, make_interval(months => m, days => d, hours => h, secs => h / 7.0) AS x FROM generate_series(-2, 2) m, generate_series(-65, 65, 13) d, generate_series(-75, 75, 25) h) t ORDER BY 1, 2, 3
SELECT m, d, h, justify_interval(x) FROM (SELECT m, d, h, make_interval(months => m, days => d, hours => h) AS x FROM generate_series(-1, 1) m, generate_series(-60, 60, 30) d, generate_series(-48, 48, 12) h) t ORDER BY 1, 2, 3
SELECT justify_interval(max(placed_at) - min(placed_at)), sum(placed_at - joined) FROM orders JOIN customers c ON c.id = customer
SELECT 1 UNION SELECT 1.0 ORDER BY 1
SELECT 1.0 UNION SELECT 1 UNION SELECT 2.50 UNION SELECT 2.5 ORDER BY 1
SELECT count(*) FROM (SELECT rate FROM orders UNION SELECT amount FROM orders) t
(WITH a AS (SELECT 1.50 AS x) SELECT x FROM a) UNION (WITH b AS (SELECT 1.5 AS x) SELECT x FROM b)
