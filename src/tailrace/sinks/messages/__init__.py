"""What sinks that publish messages share. A sink on top of it consists of its options and its transport.

    decoded chunk ── encoder ──▶ OutgoingMessages ── transport ──▶ destination
                       │ envelope    what a message says about a change       envelope.py, *_envelope.py
                       │ encoding    how it becomes bytes                     payload_encoding.py
                       │ routing     where it goes                            routing.py
                       └ registry    which table a destination belongs to     destination_registry.py

A transport says how far its destination is, and publishes messages: when it returns, they are durable. It finds out
itself which of them the destination has already, since brokers differ in how they tell. It rejects a message that it
can never publish with a PoisonError that names the position.
"""
