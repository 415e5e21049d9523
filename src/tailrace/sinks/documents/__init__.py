"""What sinks that keep one document for each row share.

run of changes ── net_effect.py ──▶ NetEffect: at most one write of each key
                                      │ key_text.py      which document a row is
                                      │ row_document.py  the row as a JSON object
                                      └ json_value.py    a column's values as JSON, the same as in messages
"""
