"""Fixtures are plugins: one module for each kind of real server."""

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.spark", "tests.fixtures.store", "tests.fixtures.tls"]
