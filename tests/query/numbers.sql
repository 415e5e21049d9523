SELECT * FROM orders ORDER BY id
SELECT id, n, mo::numeric FROM kinds ORDER BY id
SELECT sum(rate), max(rate), min(rate), avg(rate), avg(amount), avg(quantity) FROM orders
SELECT rate, rate * 2, rate + 0.5, round(rate, 1), rate * amount FROM orders ORDER BY id
SELECT id FROM orders ORDER BY rate DESC, id
SELECT 7.0 / 2, 1 / 3.0, 22::numeric / 7
SELECT stddev(score), variance(score), avg(score), corr(score, id) FROM customers
SELECT extract(second FROM placed_at), extract(epoch FROM placed_at) FROM orders ORDER BY id LIMIT 9
SELECT trunc(1.256, 2), trunc(2.7), div(7, 2), log(100.0::float8), ln(1.0::float8), exp(0.0::float8), pi()
SELECT round(score::numeric, 1), round(amount, 1) FROM customers JOIN orders USING (id) ORDER BY id
SELECT sum(id)/2 FROM orders
SELECT avg(id) FROM customers
SELECT extract(dow from date '2024-03-03'), extract(isodow from date '2024-03-03'), extract(epoch from interval '1 month 2 days 3 hours'), extract(epoch from interval '1 year'), extract(day from interval '5 days 3 hours'), extract(hour from timestamp '2024-01-01 05:00'), extract(quarter from date '2024-05-05'), extract(century from date '2024-01-01'), extract(decade from date '2024-01-01'), extract(millennium from date '2024-01-01'), extract(isoyear from date '2024-12-31'), extract(julian from date '2024-01-01')
SELECT extract(epoch from timestamp '2024-01-01 00:00:00.5'), extract(second from timestamp '2024-01-01 00:00:01.25'), extract(milliseconds from time '00:00:01.25'), extract(microseconds from time '00:00:01.25'), extract(timezone from timestamptz '2024-01-01 00:00:00+02'), extract(hour from interval '30 hours'), extract(month from interval '14 months'), extract(year from interval '14 months')
SELECT rate::varchar, cast(rate as text), cast(rate as varchar(10)) FROM orders ORDER BY id LIMIT 3
SELECT 7.0 / 2, 1 / 3.0, 10 / 4.0, 1.10 + 2.20, 1.5 * 2, 100.00 - 0.01
SELECT 1 UNION SELECT 2.5 ORDER BY 1
SELECT sum(x)/count(x) FROM (VALUES (1::bigint), (2)) t(x)
SELECT avg(x)/2, avg(x)*2 FROM (VALUES (1), (2)) t(x)
SELECT count(*) * 100 / 3, count(*) * 100.0 / 3, 100 * count(*) FILTER (WHERE is_active) / count(*) FROM customers
SELECT count(*)::float / 3, count(*)::numeric / 3, round(count(*)::numeric / 3, 2), round(100.0 * count(*) / 7, 2) FROM customers
SELECT amount / 3, amount / quantity, round(amount / 3, 2), amount::float8 / 3 FROM orders ORDER BY id LIMIT 3
SELECT amount * amount * amount, amount * rate * rate FROM orders ORDER BY id LIMIT 3
SELECT price * 1.19, price * weight, price::float8 * 2 FROM items ORDER BY order_id, line LIMIT 3
SELECT sum(price * 1.19), sum(amount * quantity), sum(amount) / count(*), sum(amount) / sum(quantity) FROM items, orders WHERE id = order_id
SELECT a / b AS x, a % b AS y, mod(a, b) AS z FROM (VALUES (6.5, 2), (-7, 2)) t(a, b)
SELECT 7 / 2 * 2.0 AS a, 7 / 2.0 AS b, 10 / 3 AS c, -10 / 3 AS d, 10 % -3 AS e, 1.0 / 8 AS f
