"""Servers that several test files share, started once; no test has a deadline, since machines are shared.

What the quick run of the studies took is told after the tests; speed is never asserted.
"""

import os
import warnings

import hypothesis
import pytest
import servers

hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")


QUICK_SECONDS = "CPU seconds of a quick run"  # a property that the test of a study records


def pytest_terminal_summary(terminalreporter):
    """Tell how long the quick runs took together."""
    passed = (report.user_properties for report in terminalreporter.getreports("passed") if report.when == "call")
    spent = [seconds for told in passed for name, seconds in told if name == QUICK_SECONDS]
    if spent:
        terminalreporter.write_line(f"quick run of {len(spent)} studies: {sum(spent) / 60:.1f} CPU minutes")


def _or_skip(server):
    """Start a server; where it is not installed the tests that need it are skipped, except in CI."""
    try:
        with server() as ready:
            yield ready
    except servers.Absent as absent:
        if os.environ.get("CI") == "true":
            pytest.fail(str(absent))
        pytest.skip(str(absent))


@pytest.fixture(scope="session")
def postgres():
    yield from _or_skip(servers.postgres)


@pytest.fixture(scope="session")
def java():
    yield from _or_skip(servers.java)


@pytest.fixture(scope="session")
def spark():
    yield from _or_skip(servers.spark)


@pytest.fixture(scope="session")
def spark_backend(spark):
    import ibis

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ibis.pyspark.connect(spark)
