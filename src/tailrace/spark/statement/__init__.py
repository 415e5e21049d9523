"""`sql` and `transform` of a sink: stateless statements over change rows, evaluated by Spark before the sink stages.

`catalyst` works on Spark's own plans, `analysis` says what a statement makes of a relation, `image_rows` makes rows of
changes, `result_changes` makes changes of the statement's rows, and `runner` does all of it for a step.
"""
