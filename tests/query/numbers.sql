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
SELECT sum(x)/count(x) FROM (VALUES (1::bigint), (2)) t(x)
SELECT a / b AS x, a % b AS y, mod(a, b) AS z FROM (VALUES (6.5, 2), (-7, 2)) t(a, b)
SELECT 7 / 2 * 2.0 AS a, 7 / 2.0 AS b, 10 / 3 AS c, -10 / 3 AS d, 10 % -3 AS e, 1.0 / 8 AS f
