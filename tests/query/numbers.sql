SELECT stddev(score), variance(score), avg(score), corr(score, id) FROM customers
