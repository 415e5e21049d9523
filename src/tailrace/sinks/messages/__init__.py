"""What sinks that publish messages share. A sink on top of it consists of its options and its transport.

    decoded chunk ── encoder ──▶ OutgoingMessages ── transport ──▶ destination
                       │ envelope    what a message says about a change       envelope.py, *_envelope.py
                       │ encoding    how it becomes bytes                     payload.py, *_encoding.py
                       │ routing     where it goes                            routing.py
                       └ registry    which table a destination belongs to     destination_registry.py

`message_sink.py` is the sink. Its transport (`transport.py`) says how far the destination is (`progress.py`), and
publishes messages: when it returns, they are durable. It rejects a message that it can never publish with a PoisonError
that names the position.
"""
