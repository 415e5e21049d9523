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
SELECT round(avg(amount), 2), round(avg(quantity), 1) FROM orders
SELECT round(2.5::float8), round(3.5::float8), round(-2.5::float8), round(0.5::float8), round(2.5), round(-2.5), round(2.567, 2), round(1234.5, -2)
SELECT trunc(1.15, 2), trunc(2.3, 1), trunc(-1.999, 2), trunc(1.15::numeric(10,2)), trunc(123.456, -1)
SELECT count(*) FROM orders WHERE placed_at > '2025-02-01 00:00+00'
SELECT count(*) FROM orders WHERE placed_at > '2025-02-01T00:00:00Z' AND placed_at < '2025-03-01T00:00Z'
SELECT 'a_b' LIKE 'a\_b', 'axb' LIKE 'a\_b', 'a%b' LIKE 'a\%b', 'a\b' LIKE 'a\\b', 'a_b' NOT LIKE 'a\_b', 'A_b' ILIKE 'a\_b', 'Axb' NOT ILIKE 'a\_b'
SELECT 'abc' SIMILAR TO 'a.c', 'abc' SIMILAR TO 'a_c', 'abc' SIMILAR TO '%(b|d)%', 'abc' SIMILAR TO '(b|c)%'
SELECT E'a\nb' ~ 'a.b', E'a\nb' ~ '^b', E'a\nb' ~ 'a$', 'AbC' ~* 'aBc', 'x' ~ ''
SELECT regexp_replace(E'a\nb', 'a.b', 'X'), regexp_replace('abc', '(b)', '<\1>'), regexp_replace('aBc', 'b', 'x', 'i'), regexp_replace('abab', 'b', 'x', 'g'), regexp_replace('abab', 'A', 'x', 'gi')
SELECT regexp_matches('abc', 'b')
SELECT substring('abc', 0, 2), substring('abc', -1, 3), substring('abc', 2), substring('abc' from 2), substring('abc' for 2), substr('abc', -1, 3), substr('abc', 0), substring('abc', 2, 0)
SELECT to_char(timestamp '2024-03-05 14:07:09.123456', 'Month'), to_char(timestamp '2024-03-05 14:07:09', 'FMMonth'), to_char(date '2024-03-05', 'Day'), to_char(date '2024-03-05', 'FMDay')
SELECT to_char(timestamp '2024-03-05 14:07:09', 'MON'), to_char(date '2024-03-05', 'mon'), to_char(date '2024-03-05', 'MONTH'), to_char(date '2024-03-05', 'DAY DY dy day month')
SELECT to_char(timestamp '2024-03-05 14:07:09', 'YYYY-"Q"Q'), to_char(date '2024-03-05', 'YYYY"W"IW'), to_char(date '2024-03-05', 'WW W D J CC Q')
SELECT to_char(timestamp '2024-03-05 14:07:09.123456', 'HH24:MI:SS.MS'), to_char(timestamp '2024-03-05 14:07:09.123456', 'HH:MI:SS.US AM'), to_char(timestamp '2024-03-05 14:07:09', 'HH12:MI pm'), to_char(timestamp '2024-03-05 14:07:09', 'FMDD FMMM FMHH24')
SELECT date_trunc('week', timestamp '2024-03-03 12:00'), date_trunc('quarter', date '2024-05-05'), date_trunc('hour', timestamptz '2024-01-01 12:34:56+00'), date_trunc('decade', timestamp '2024-05-05')
SELECT placed_at::timestamp(0), placed_at::timestamptz(0), '12:34:56.789'::time(0) FROM orders WHERE id = 1
SELECT generate_series(1, 3)
SELECT 1.0::float8::text, 1.5::float8::text, 1e20::float8::text, 1e-7::float8::text, 0.1::float4::text, 'NaN'::float8::text, 'Infinity'::float8::text, 123456789012345678::float8::text
SELECT id FROM kinds WHERE bin = '\xdeadbeef'::bytea
SELECT id FROM kinds WHERE bin = '\xdeadbeef'
SELECT md5('abc'), sha256('abc'::bytea), ascii(''), ascii('é'), chr(233)
SELECT jsonb_typeof('1'), jsonb_typeof('"x"'), jsonb_typeof('true'), jsonb_typeof('null'), jsonb_typeof('[]'), jsonb_typeof('{}'), json_typeof('1.5')
SELECT arr[0], arr[-1], arr[1:2], array_length('{}'::int[], 1), array_upper('{}'::int[], 1), array_length(arr, 1), cardinality('{}'::int[]) FROM kinds WHERE id = 1
SELECT '0x1F', 0x1F, 1_000, .5, 5., 1e3
SELECT CASE WHEN id = 1 THEN 'a' ELSE 'b' END::text AS x FROM customers ORDER BY id LIMIT 2
SELECT id::text || '-' || name::varchar AS x FROM customers ORDER BY id LIMIT 2
SELECT (id + 1)::text AS x, (id * 2)::varchar(1) AS y, id::float8::text AS z, id::double precision::text AS w FROM customers ORDER BY id LIMIT 7
SELECT score::numeric(10,2)::text AS a, score::numeric::text AS b, placed_at::timestamp without time zone::text AS c, placed_at::timestamp with time zone::text AS d FROM orders JOIN customers USING (id) ORDER BY id LIMIT 3
SELECT name::text, count(*) FROM customers GROUP BY name::text ORDER BY name::text LIMIT 2
SELECT cast(id as text) AS t, count(*) FROM customers GROUP BY cast(id as text) ORDER BY cast(id as text) LIMIT 2
SELECT cast(placed_at as date) AS d, count(*) FROM orders GROUP BY cast(placed_at as date) ORDER BY 1 LIMIT 2
SELECT cast(placed_at as timestamp(0)) AS d, cast(placed_at as timestamp(0) with time zone) AS e, cast(placed_at as timestamp without time zone) AS f FROM orders ORDER BY id LIMIT 4
SELECT cast(cast(id as bigint) as varchar) AS x, cast(sum(quantity) as text) AS y FROM orders GROUP BY id ORDER BY id LIMIT 2
SELECT cast(name as character varying(4)) AS x, cast(name as character(4)) AS y, name::char AS z, name::character varying AS w FROM customers ORDER BY id LIMIT 1
SELECT date '2024-01-01'::text AS x, interval '1 day 2 hours'::text AS y, timestamp '2024-01-01 10:00'::text AS z
SELECT array_agg(id::text ORDER BY id) AS x, ARRAY['a']::text[] AS y, '{1,2}'::int[] AS z FROM customers WHERE id < 3
SELECT lower(region::text) AS x, upper(region)::text AS y, coalesce(email::text, 'none') AS z FROM customers ORDER BY id LIMIT 5
SELECT count(*) FROM orders WHERE id::text = '5' OR id::text LIKE '1_' OR CAST(id AS text) IN ('7', '8')
SELECT count(*) FROM orders WHERE placed_at::date = '2025-01-05' AND placed_at::timestamp > '2025-01-05 01:00'
SELECT count(*) FROM orders WHERE placed_at::timestamp(0) = '2025-01-01 07:13:05'
SELECT -5::text::int AS x
SELECT (-5)::text AS x, (1.50)::text AS y, (2 > 1)::text AS z, NULL::text AS n, ''::text AS e
SELECT '5'::text::int + 1 AS x, '2024-01-01'::text::date AS y
SELECT x::text AS t FROM (VALUES (1.5::float8), (2), (NULL), ('NaN'), ('-Infinity'), (1e-10), (1e100), (123456789.125)) v(x)
SELECT x::text AS t FROM (VALUES (1.5::float4), (2), (NULL), ('NaN'), (1e-10), (1e30)) v(x)
SELECT sum(amount) FILTER (WHERE quantity > 100) AS none, sum(quantity) FILTER (WHERE id < 10) AS s, sum(amount / (quantity - 1)) FILTER (WHERE quantity > 1) > 0 AS d, avg(amount / (quantity - 1)) FILTER (WHERE quantity > 1) > 0 AS e, max(100 % (quantity - 1)) FILTER (WHERE quantity > 1) AS m FROM orders
SELECT sum(sum(quantity)) OVER (ORDER BY customer) AS x FROM orders GROUP BY customer ORDER BY customer LIMIT 3
SELECT sum(quantity) FILTER (WHERE id > 3) OVER (PARTITION BY customer) AS x FROM orders ORDER BY id LIMIT 3
SELECT sum(DISTINCT quantity) FILTER (WHERE id > 3) AS x, sum(ALL quantity) AS y FROM orders
SELECT sum(CASE WHEN status = 'ok' THEN 1 ELSE 0 END) AS ok, sum(1) AS n, SUM(quantity) AS "Sum", sum(length(note)) AS l FROM orders
SELECT customer, sum(quantity) AS sum FROM orders GROUP BY customer HAVING sum(quantity) > 60 ORDER BY sum(quantity) DESC, customer LIMIT 3
SELECT sum(id) / count(*) > 250 AS x, sum(quantity) / count(*) AS y, sum(id) % 7 AS z, 1.0 * sum(quantity) / count(*) > 4.9 AS w FROM orders
SELECT coalesce(sum(quantity), 0) AS x, sum(quantity)::int AS y, sum(quantity)::float AS z, sum(quantity) + 1 AS a, -sum(quantity) AS b FROM orders
SELECT round(avg(score)::numeric, 2) AS a, round(sum(amount) / 3, 2) AS b, round(123.456, 0) AS c, round(quantity, 1) AS d, round(amount) AS e, round(-1.5) AS f, round(score) AS g FROM orders JOIN customers USING (id) GROUP BY quantity, amount, score ORDER BY 2 LIMIT 2
SELECT round(cast(3.14159 as numeric), 3) AS a, round(100.0 * 1 / 3, 1) AS b, round(1e10::numeric, 2) AS c, round(-0.005, 2) AS d, round(2.345, 2) AS e, round(1234, -2) AS f
SELECT date_trunc('month', joined) AS m, count(*) FROM customers GROUP BY date_trunc('month', joined) ORDER BY 1
SELECT count(*) FROM customers WHERE joined >= date_trunc('month', date '2024-03-15') AND joined < date_trunc('month', date '2024-03-15') + interval '1 month'
SELECT to_char(date_trunc('month', placed_at), 'YYYY-MM-DD"T"HH24:MI') AS x, to_char(placed_at, 'FMMonth DD, YYYY') AS y, to_char(placed_at::date, 'Dy, DD Mon') AS z, to_char(placed_at, 'HH12:MI am') AS w FROM orders ORDER BY id LIMIT 3
SELECT to_char(NULL::timestamp, 'YYYY') AS a, to_char(placed_at, '100%') AS b, to_char(placed_at, 'YYYYMMDDHH24MISS') AS c, to_char(placed_at, 'yyyy-mm-dd') AS d, to_char(placed_at, 'IYYY-IW ID') AS e, to_char(placed_at, 'FMHH24:MI:SS') AS f FROM orders ORDER BY id LIMIT 2
SELECT to_char(placed_at AT TIME ZONE 'Europe/Berlin', 'YYYY-MM-DD HH24:MI') AS x, upper(to_char(placed_at, 'Day')) AS y, trim(to_char(placed_at, 'Month')) AS z FROM orders ORDER BY id LIMIT 2
SELECT to_char(placed_at, 'YYYY-MM') AS m, to_char(placed_at, 'Q') AS q, sum(amount) FROM orders GROUP BY to_char(placed_at, 'YYYY-MM'), to_char(placed_at, 'Q') ORDER BY to_char(placed_at, 'YYYY-MM') LIMIT 3
SELECT to_date('2024 February 05', 'YYYY Month DD') AS a, to_timestamp('05/06/24 03:04 PM', 'MM/DD/YY HH12:MI AM') AS b, to_date('20240105', 'YYYYMMDD') AS c
SELECT format('%s has %s', name, id) AS x, format('100%%') AS y, format('no') AS z, format('%s', NULL) AS n FROM customers ORDER BY id LIMIT 1
SELECT regexp_match('a-b', '(a)(?:-)(b)') AS a, regexp_match('x(y)', '\((y)\)') AS b, regexp_match(name, '([A-Za-z]+) ([0-9]+)') AS c FROM customers ORDER BY id LIMIT 2
SELECT regexp_matches(name, '([0-9])') AS x FROM customers ORDER BY id LIMIT 2
SELECT name FROM customers WHERE name ILIKE '%MER\_%' OR name LIKE '%r 1' ORDER BY id
SELECT count(*) FROM customers WHERE name NOT LIKE '%1%' AND email NOT ILIKE 'C2%'
SELECT count(*) FROM customers WHERE name LIKE name AND name LIKE '%' || id
SELECT substring(name, 1, 3) AS a, substring(name from 10) AS b, substr(name, 3) AS c, substring(name, -2, 5) AS d, substring('abc', 2, 100) AS e FROM customers ORDER BY id LIMIT 2
SELECT id FROM kinds WHERE bin IN ('\x00ff', '\x01') ORDER BY id
SELECT '\x00ff' AS text, 'C:\x41' AS path, '\xzz' AS no
SELECT id FROM kinds WHERE tz BETWEEN '2024-01-01 00:00+00' AND '2025-01-01 00:00Z' ORDER BY id
SELECT generate_series(1, 2) AS x, 'a' AS y
SELECT ARRAY(SELECT generate_series(1, 3)) AS x
SELECT count(*) FROM (SELECT generate_series(1, 10)) t
SELECT 0x10 + 0b11 + 0o7 AS x, 1_000_000 AS y
SELECT a / b AS x FROM (VALUES (6, 2), (7, 2), (NULL, 0)) t(a, b)
SELECT count(*) FROM orders WHERE quantity <> 1 AND amount / (quantity - 1) > 100
SELECT CASE WHEN quantity = 1 THEN 0 ELSE amount / (quantity - 1) END > 0 AS x FROM orders ORDER BY id LIMIT 9
SELECT sha256('\x616263'::bytea) AS a, length(note) AS b, array_length(ARRAY[1,2,3], 1) AS c, array_length(ARRAY[]::int[], 1) AS d FROM orders ORDER BY id LIMIT 1
SELECT (SELECT count(*) FROM unnest(string_to_array('a,b', ',')) x) AS n
SELECT trunc(amount, 1) AS a, trunc(amount) AS b, trunc(-amount / 7, 2) AS c, trunc(score) AS d, trunc(score::numeric, 0) AS e FROM orders JOIN customers USING (id) ORDER BY id LIMIT 3
SELECT jsonb_typeof(jb) AS a, jsonb_typeof(jb->'b') AS b, json_typeof(j) AS c FROM kinds ORDER BY id
SELECT id, bool_and(is_active) OVER (PARTITION BY region ORDER BY id) AS x, every(is_active) OVER (PARTITION BY region) AS y FROM customers ORDER BY id LIMIT 3
SELECT 'a' || 1 || 'b' || 2.50 AS x, 'x' || date '2024-01-01' AS y
SELECT name FROM customers WHERE name SIMILAR TO 'Customer (1|2)_?' ORDER BY id LIMIT 3
SELECT t.typname, CASE WHEN p.proname = 'array_recv' THEN 'a' ELSE t.typtype END AS kind FROM pg_type t LEFT JOIN pg_proc p ON p.oid = t.typreceive WHERE t.oid < 10000 AND t.typtype = 'b' AND t.typnamespace = 11 AND t.typname NOT LIKE 'pg\_%' AND t.typname NOT LIKE '\_pg\_%' ORDER BY t.oid
SELECT column_name, format('%I.%I', table_schema, table_name), col_description(CAST(CAST(format('%I.%I', table_schema, table_name) AS regclass) AS oid), ordinal_position), obj_description((table_schema || '.' || table_name)::regclass) FROM information_schema.columns WHERE table_name = 'customers' ORDER BY ordinal_position
SELECT a.attname, k.attnum FROM pg_index i JOIN pg_attribute k ON k.attrelid = i.indexrelid JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.attnum - 1] WHERE i.indrelid = 'items'::regclass AND i.indisprimary ORDER BY k.attnum
SELECT character_set_name FROM information_schema.character_sets
SELECT quote_ident(table_name) AS "table" FROM information_schema.tables WHERE quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END FROM generate_series(1, array_upper(string_to_array(current_setting('search_path'), ','), 1)) AS i, string_to_array(current_setting('search_path'), ',') s) ORDER BY 1
SELECT column_name FROM information_schema.columns WHERE table_schema = (parse_ident('public.orders'))[1] AND table_name = (parse_ident('public.orders'))[2] ORDER BY ordinal_position
SELECT c.relname, pg_stat_get_numscans(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE false
SELECT id FROM kinds WHERE id > 0 AND jb->>'b' IS NOT NULL ORDER BY id
SELECT id FROM kinds WHERE id > 0 AND (j::json) ->> 'a' IS NOT NULL ORDER BY id
SELECT id FROM kinds WHERE 'x' || (jb->'b'->>'c') LIKE 'x1%' ORDER BY id
SELECT 1 + (j->'a'->>0)::int AS x FROM kinds WHERE id = 1
SELECT id FROM kinds WHERE id = 1 OR j->>'zz' = 'y' AND id = 2 ORDER BY id
SELECT id FROM kinds WHERE id > 0 AND ('{"a": "x"}'::jsonb) ->> 'a' = 'x' ORDER BY id
SELECT id FROM kinds WHERE id > 0 AND lower(j->>'zz') = 'x' OR (jb) ->> 'b' = 'q' ORDER BY id
SELECT id FROM kinds WHERE j->>'a' LIKE '[1%' AND id BETWEEN 0 AND 3
SELECT id FROM kinds WHERE j->'a'->>0 IN ('1', '2') AND j->'a'->>1 BETWEEN '1' AND '3'
SELECT id FROM kinds WHERE -(j->'a'->>0)::int = -1 AND id < 2
SELECT k.id FROM kinds k JOIN kinds l ON l.id = k.id AND k.j->'a'->>0 = l.j->'a'->>0 ORDER BY 1
SELECT count(*) FROM orders WHERE extract(dow from placed_at) = 0
SELECT count(*) FROM orders WHERE coalesce(note, 'none') = 'none'
SELECT count(*) FROM orders WHERE CASE WHEN quantity > 5 THEN 'big' ELSE 'small' END = 'big'
SELECT count(*) FROM orders WHERE concat(note, 'x') = 'x'
SELECT count(*) FROM orders WHERE md5(id::text) < '8'
SELECT count(*) FROM orders WHERE (quantity = 3) = true
SELECT count(*) FROM kinds WHERE length(j->>'a') > 0
SELECT count(*) FROM kinds WHERE lower(j->'a'->>0) = '1'
SELECT count(*) FROM (SELECT coalesce(note, 'none') AS n FROM orders) t WHERE n = 'none'
SELECT count(*) FROM (SELECT *, extract(dow FROM placed_at) AS dow FROM orders) t WHERE dow = 0
WITH d AS (SELECT id, extract(dow FROM placed_at) AS dow FROM orders) SELECT count(*) FROM d WHERE dow = 0 AND id > 5
WITH d AS (SELECT extract(dow FROM placed_at) AS a FROM orders), e AS (SELECT a AS b FROM d) SELECT count(*) FROM e WHERE b = 0
WITH d(x) AS (SELECT extract(dow FROM placed_at) FROM orders) SELECT count(*) FROM d WHERE x = 0
SELECT count(*) FROM (SELECT extract(dow FROM placed_at) FROM orders) AS t(x) WHERE x = 0
SELECT count(*) FROM (SELECT 1 AS x UNION ALL SELECT extract(dow FROM placed_at) FROM orders) t WHERE x = 0
SELECT coalesce(note, 'none') AS n, count(*) FROM orders GROUP BY coalesce(note, 'none') HAVING coalesce(note, 'none') = 'none'
SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer AND extract(dow FROM o.placed_at) = 0
SELECT count(*) FROM orders o JOIN (SELECT 0 AS d) x ON extract(dow FROM o.placed_at) = x.d
SELECT count(*) FROM orders o, (VALUES (0), (1)) v(d) WHERE extract(dow FROM o.placed_at) = v.d AND v.d = 0
SELECT count(*) FROM orders WHERE coalesce(note, 'none') IN ('none')
SELECT count(*) FROM orders WHERE extract(dow FROM placed_at) BETWEEN 0 AND 0
SELECT count(*) FROM orders WHERE NOT extract(dow FROM placed_at) > 0
SELECT count(*) FROM orders WHERE 0 = extract(dow FROM placed_at)
SELECT count(*) FROM orders WHERE extract(dow FROM placed_at) = (SELECT 0)
SELECT count(*) FROM orders WHERE coalesce(note, 'none') = ANY(ARRAY['none'])
SELECT count(*) FROM orders WHERE (coalesce(note, 'none'), 1) = ('none', 1)
SELECT count(*) FROM orders WHERE EXISTS (SELECT 1 FROM customers c WHERE c.id = customer AND coalesce(c.email, 'x') = 'x')
SELECT count(*) FROM orders WHERE customer IN (SELECT id FROM customers WHERE coalesce(email, 'x') = 'x')
SELECT count(*) FROM (SELECT * FROM orders WHERE coalesce(note, 'none') = 'none' LIMIT 1000) t
SELECT count(*) FROM customers WHERE CASE region WHEN 'EU' THEN 1 ELSE 2 END = 1
SELECT count(*) FROM customers WHERE (CASE WHEN email IS NULL THEN 'none' ELSE email END) = 'none'
SELECT count(*) FROM customers WHERE is_active = false AND (is_active IS NULL) = false
SELECT count(*) FROM customers WHERE greatest(score, 5) = 5 AND least(id, 3) = 3
SELECT count(*) FROM customers WHERE id BETWEEN 3 AND 7 AND (id BETWEEN 3 AND 7) = true
SELECT count(*) FROM orders WHERE md5(note) > 'f' AND date_part('hour', placed_at) = 3
SELECT count(*) FROM orders WHERE placed_at::time > '23:00' OR placed_at::date = '2025-01-03'
SELECT count(*) FROM orders WHERE (placed_at AT TIME ZONE 'Europe/Berlin')::date = '2025-01-03'
SELECT count(*) FROM orders WHERE to_char(placed_at, 'D') = '1'
SELECT id FROM kinds WHERE f4 = 'NaN' ORDER BY id
SELECT id FROM kinds WHERE f4 > 1e30 ORDER BY id
SELECT id FROM kinds WHERE f4 >= 'NaN' ORDER BY id
SELECT id FROM kinds WHERE f8 < -1e308 ORDER BY id
SELECT max(f4) FROM kinds
SELECT id FROM kinds WHERE id > 0 AND j->'a'->>0 = '1' ORDER BY id
SELECT id FROM kinds WHERE id > 0 AND (j->'a') ->> 0 = '1' ORDER BY id
SELECT id FROM kinds WHERE NOT j->'a'->>0 = '1' ORDER BY id
SELECT id FROM kinds WHERE id + 0 = 1 AND 'x' || (j->'a'->>0) = 'x1' ORDER BY id
SELECT id, CASE WHEN j->'a'->>0 = '1' THEN 'one' END AS x FROM kinds ORDER BY id
SELECT j->'a'->>0 = '1' AND true AS x, true AND j->'a'->>0 = '1' AS y, 1 = 1 AND (j) ->> 'a' = 'x' AS z FROM kinds WHERE id = 1
SELECT max((j->'a'->>0)::int) AS m, count(*) FILTER (WHERE j->'a'->>0 = '1') AS n FROM kinds
SELECT at, t.at AT TIME ZONE 'UTC' AS x, at AT TIME ZONE 'UTC' AS y FROM (SELECT placed_at AS at FROM orders WHERE id = 1) t WHERE at > '2020-01-01' AND t.at IS NOT NULL ORDER BY at DESC
SELECT show, describe + 1 AS d FROM (SELECT 1 AS show, 2 AS describe) t GROUP BY show, describe HAVING show = 1
SELECT max(at) AS m, count(qualify) FROM (SELECT placed_at AS at, id AS qualify FROM orders) t WHERE qualify BETWEEN 3 AND 9
SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY amount) AS p, percentile_cont(0.25) WITHIN GROUP (ORDER BY amount * 2 DESC) AS q, percentile_cont(0.5) WITHIN GROUP (ORDER BY quantity) FILTER (WHERE id > 7) AS r FROM orders
SELECT customer, amount - lag(amount) OVER (PARTITION BY customer ORDER BY placed_at) AS delta, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS r FROM orders WHERE customer < 4 ORDER BY customer, placed_at
SELECT date_trunc('week', placed_at)::date AS w, count(DISTINCT customer) AS c, sum(amount) FILTER (WHERE status = 'ok') AS ok, round(100.0 * count(*) FILTER (WHERE note IS NULL) / count(*), 1) AS pct FROM orders GROUP BY 1 ORDER BY 1
SELECT g.d::date AS d, count(o.id) FROM generate_series(timestamp '2025-01-01', timestamp '2025-01-05', interval '1 day') AS g(d) LEFT JOIN orders o ON o.placed_at::date = g.d::date GROUP BY 1 ORDER BY 1
SELECT left('abc', -1), right('abc', -1), lpad('abc', 2), lpad('x', 3), rpad('x', 3, 'ab'), rpad('x', 3), repeat('x', -1), repeat('ab', 2), repeat(name, 2) FROM customers ORDER BY id LIMIT 2
SELECT arr[1], tarr[2], arr[2:3] FROM kinds ORDER BY id
SELECT id, m FROM kinds ORDER BY m, id
SELECT id FROM kinds WHERE m > 'sad' ORDER BY id
SELECT max(m), min(m) FROM kinds
SELECT id, net FROM kinds ORDER BY net, id
SELECT id FROM kinds WHERE net << '10.0.0.0/7' OR net = '::1' ORDER BY id
SELECT upper(r), lower(r), isempty(r), r @> 3 FROM kinds ORDER BY id
SELECT avg(i4)::int, avg(i2)::int, avg(id)::int FROM kinds
SELECT count(n), count(n2), sum(n), max(n), avg(n) FROM kinds
SELECT n, n + 1, n * 2, n / 3, round(n, 2), n::text FROM kinds ORDER BY id
SELECT id FROM kinds WHERE t = '\x4142' OR t = '2024-01-01 12:00Z' ORDER BY id
SELECT id::text label, amount::int x FROM orders ORDER BY id LIMIT 2
SELECT value FROM jsonb_array_elements('[1, {"a": 2}, "x"]') ORDER BY value::text
SELECT * FROM jsonb_array_elements_text('[1, {"a": 2}, "x", null]') WITH ORDINALITY
SELECT jsonb_set('{"a": {"b": 1}}', '{a,b}', '[2]'), jsonb_set('{"a": 1}', '{c}', '2'), jsonb_set('{"a": 1}', '{c}', '2', false)
SELECT jsonb_agg(id ORDER BY id DESC), jsonb_agg(name ORDER BY id), json_agg(score ORDER BY id), jsonb_object_agg(id, name) FROM customers WHERE id < 4
SELECT date_bin('15 minutes', placed_at, timestamptz '2025-01-01 00:00+00') FROM orders ORDER BY id LIMIT 5
SELECT width_bucket(amount, 0, 1000, 10), width_bucket(5.35::float8, 0.024, 10.06, 5) FROM orders ORDER BY id LIMIT 5
SELECT length(bin), length('\x0102'::bytea), octet_length(bin) FROM kinds ORDER BY id
SELECT ARRAY[1, 2] || 3, 0 || ARRAY[1], ARRAY[1] || ARRAY[2, 3], ARRAY['a'] || 'b'::text, arr || 9 FROM kinds WHERE id = 1
SELECT sum(iv), sum(iv) FILTER (WHERE id < 2) FROM kinds
SELECT generate_subscripts(tarr, 1) FROM kinds WHERE id = 1
SELECT s, tarr[s] FROM kinds, generate_subscripts(tarr, 1) s WHERE id = 1 ORDER BY s
SELECT j -> 'a', j ->> 'a', jb -> 'b', jb #> '{b}', jb #>> '{b,c}' FROM kinds ORDER BY id
SELECT mo, mo + mo, mo::numeric, sum(mo) OVER () FROM kinds ORDER BY id
SELECT mo FROM kinds ORDER BY mo DESC, id
SELECT B'1010' & B'0110', B'1' || B'01', length(B'101'), B'10' < B'110', B'101'::text
SELECT array_agg(n ORDER BY n), array_agg(m ORDER BY m), array_agg(net ORDER BY net) FROM kinds
SELECT DISTINCT n FROM kinds ORDER BY n
SELECT rate, count(*) FROM orders GROUP BY rate ORDER BY rate
SELECT rate FROM orders WHERE id < 5 UNION SELECT 1.50 ORDER BY 1
SELECT 'NaN'::numeric, 'Infinity'::numeric > 1e400, 1e40::numeric + 1, 0.1::float8::numeric, 1.005::float8::numeric(10,2), 123456789.123456789::numeric * 987654321.987654321
SELECT count(*) FROM orders o JOIN kinds k ON k.n = o.rate
SELECT 10 / 4.0, 1 / 3::numeric, 2::numeric / 3, 100.0 / 7 * 7, 7 % 2.5, -7.5 % 2
SELECT stddev(quantity), variance(amount), stddev_pop(rate) FROM orders
SELECT extract(epoch FROM iv), extract(hour FROM iv), iv * 2, iv + interval '1 day' FROM kinds ORDER BY id
SELECT 'a' || 3.0::float8, 'x' || 1.50, concat(1.5::float4, true, ch, d) FROM kinds ORDER BY id
SELECT ch || '|', ch::text || '|', length(ch), ch = 'ab   ' FROM kinds ORDER BY id
SELECT current_setting('server_version_num')::int > 90000, current_setting('nothing.x', true)
SELECT indkey FROM pg_index WHERE indrelid = 'items'::regclass
SELECT x[1] FROM (SELECT ARRAY[id, 2] AS x FROM customers WHERE id = 1) t
SELECT customer, percentile_disc(0.5) WITHIN GROUP (ORDER BY amount) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 3
SELECT jsonb_build_object('a', 1, 'b', ARRAY[1,2], 'c', NULL), json_build_object('a', 1.50, 'b', 'x'), to_jsonb(ARRAY['x']), row_to_json(c) FROM (SELECT id, name FROM customers WHERE id = 1) c
SELECT * FROM orders ORDER BY id
SELECT id, n, mo::numeric FROM kinds ORDER BY id
SELECT sum(rate), max(rate), min(rate), avg(rate), avg(amount), avg(quantity) FROM orders
SELECT rate, rate * 2, rate + 0.5, round(rate, 1), rate * amount FROM orders ORDER BY id
SELECT id FROM orders ORDER BY rate DESC, id
SELECT 7.0 / 2, 1 / 3.0, 22::numeric / 7
SELECT extract(second FROM placed_at), extract(epoch FROM placed_at) FROM orders ORDER BY id LIMIT 9
SELECT trunc(1.256, 2), trunc(2.7), div(7, 2), log(100.0::float8), ln(1.0::float8), exp(0.0::float8), pi()
SELECT round(score::numeric, 1), round(amount, 1) FROM customers JOIN orders USING (id) ORDER BY id
SELECT sum(x)/count(x) FROM (VALUES (1::bigint), (2)) t(x)
SELECT a / b AS x, a % b AS y, mod(a, b) AS z FROM (VALUES (6.5, 2), (-7, 2)) t(a, b)
SELECT 7 / 2 * 2.0 AS a, 7 / 2.0 AS b, 10 / 3 AS c, -10 / 3 AS d, 10 % -3 AS e, 1.0 / 8 AS f
SELECT id, jb = '{"b": {"c": 1.5}}', jb || '{"z": 1}', jb @> '{"b": {}}', jb ? 'b', jb ?| '{a,b}', jb ?& ARRAY['b'] FROM kinds ORDER BY id
SELECT x #- '{b,c}', x - 'b', x - '{a,b}'::text[] FROM (VALUES ('{"a": 1, "b": {"c": 2, "d": 3}}'::jsonb), ('{}')) v(x)
SELECT e.key, e.value FROM jsonb_each_text('{"a": 1.50, "b": {"c": null}, "d": null}') e ORDER BY 1
SELECT id, i4 = ANY(arr), t = ANY(tarr), 5 <> ALL(arr), t LIKE ANY(tarr), NULL = ANY(arr), tarr @> '{x}', tarr || '{z}' FROM kinds ORDER BY id
SELECT DISTINCT mo FROM kinds ORDER BY mo DESC
SELECT mo FROM kinds EXCEPT ALL SELECT mo FROM kinds WHERE id = 1 ORDER BY 1
SELECT a.id, b.id FROM kinds a LEFT JOIN kinds b ON a.i4 = ANY(b.arr) ORDER BY 1, 2
SELECT to_char(n, 'FM999,999,999,999,999,990.0099'), to_char(n2, '9990.99'), to_char(i4, '0G999'), to_char(i8, 'FM9') FROM kinds ORDER BY id
SELECT b, net, grouping(b, net), count(*) FROM kinds GROUP BY ROLLUP(b, net) ORDER BY 1, 2, 3
SELECT ts::time, d::timestamp(0), ts::timestamp(1) FROM kinds ORDER BY id
SELECT -9223372036854775808, -2147483648, -2147483649
SELECT count(*), string_agg(word, ',' ORDER BY word) FROM pg_get_keywords() WHERE catcode = 'R'
SELECT count(*) FROM (VALUES (interval '1 mon -1 days'), ('29 days')) v(x) GROUP BY x
SELECT timestamp '1999-12-31 23:59:58.5'::timestamp(0), timestamp '2001-01-01 00:00:00.5'::timestamp(0)
SELECT coalesce(jb->>'b', 'a text of more than twelve bytes'), coalesce(jb::text, 'none'), coalesce(j->>'a', u::text) FROM kinds ORDER BY id
SELECT row_to_json(k) FROM kinds k ORDER BY id
SELECT to_jsonb(k) FROM kinds k ORDER BY id
SELECT array_agg(x) = array_agg(x ORDER BY x DESC) FROM (SELECT g AS x FROM generate_series(1, 400000) g ORDER BY g DESC) s
SELECT md5(string_agg(h, ',')), k FROM (SELECT g % 3 AS k, md5(g::text) h FROM generate_series(1, 100000) g ORDER BY md5(g::text)) s GROUP BY k ORDER BY k
SELECT (ARRAY(SELECT g FROM generate_series(1, 130000) g ORDER BY md5(g::text)))[1:4]
SELECT (1, NULL) IN (SELECT 1, NULL::int), (1, NULL) IN (SELECT 2, NULL::int), (1, NULL) NOT IN (SELECT 2, NULL::int), (1, 2) IN (SELECT 1, NULL::int)
SELECT id FROM kinds WHERE (i4, b) IN (SELECT i4, b FROM kinds) ORDER BY id
SELECT count(*) FROM generate_series(1, 100000) g WHERE (g, g + 1) IN (SELECT g, g + 1 FROM generate_series(1, 100000) g)
SELECT c.id, c.name, count(*), max(o.amount) FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.id ORDER BY c.score DESC LIMIT 3
SELECT c.*, count(*) FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.id HAVING c.region = 'EU' ORDER BY c.id LIMIT 3
SELECT date_trunc('century', d), date_trunc('millennium', ts), date_trunc('decade', tz) FROM kinds WHERE id = 1
SELECT interval '1' day, interval '2' month, interval '-3' hour, interval '1.5' second, interval 'P1Y2M3DT4H5M6.5S', interval 'P2W', date '2024-01-31' + interval '1' month
SELECT to_date('69-01-01', 'YY-MM-DD'), to_date('68-01-01', 'YY-MM-DD'), to_date('70-01-01', 'YY-MM-DD'), make_date(-44, 3, 15)
SELECT overlay('abcdef' placing 'X' from 3 for -1), overlay('abc' placing 'x' from 2 for -9), rpad('abc', 2, ''), substring('abc', 3, 2147483647), split_part(NULL, '', 4)
SELECT upper('straße'), 'K' ~* 'k', 'ſ' ~* 's', 'ab' ~* '[A-B]+', '!' ~ '[[:punct:]]', '_' ~ '\w'
SELECT regexp_replace('a1b22', '[0-9]+', '-', 'g'), 'a.b' SIMILAR TO 'a.b', 'axb' SIMILAR TO 'a.b', 'a1' SIMILAR TO 'a\d'
SELECT percentile_cont(0.333) WITHIN GROUP (ORDER BY score DESC), percentile_cont(0.05) WITHIN GROUP (ORDER BY score), percentile_cont(0.777) WITHIN GROUP (ORDER BY amount DESC) FROM customers JOIN orders USING (id)
SELECT stddev(id), var_pop(amount), stddev_samp(quantity), variance(i4), stddev_pop(i2) FROM orders LEFT JOIN kinds USING (id)
SELECT '1.00000005960464477540'::float4::float8, 1.00000005960464477540::float4::float8, degrees(0.1::float8), radians(90::float8), (-9223372036854775808)::int8 % -1
SELECT x[NULL:2], x[1:NULL], array_remove(NULL::int[], 1), '{"a": 1}'::jsonb #> '{+1}', '[1, 2]'::jsonb #> '{+1}', ('5'::jsonb)[0], '[]'::jsonb #- '{a,b}', '"\\u0000"'::jsonb FROM (SELECT ARRAY[1, 2, 3] AS x) t
SELECT '::1.2.3.4'::inet, network('::1.2.3.4/120'::inet), 'a'::char(3)::bytea, format('%L', 'a\b'), json_build_object('t', 'infinity'::timestamptz, 'b', timestamptz '0044-03-15 12:00+00 BC')
SELECT FROM customers WHERE id < 3
SELECT count(*) FROM (SELECT FROM customers) t
SELECT to_timestamp('Infinity'::float8), nth_value(id, 2) OVER (ORDER BY id), exp(-10::float8), power(2, -1074) FROM customers ORDER BY id LIMIT 2
