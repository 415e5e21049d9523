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
SELECT json_agg(x) FROM (SELECT 1.5::numeric AS x UNION ALL SELECT NULL) t
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
SELECT 1 UNION SELECT 2.5 ORDER BY 1
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
