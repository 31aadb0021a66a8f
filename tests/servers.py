"""Postgres and Spark, started for real, for the tests and campaigns that ask them."""

import contextlib
import csv
import io
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

Ask = Callable[..., list[list[str]]]


class Absent(Exception):
    """A server is not installed on this machine."""


class Failed(Exception):
    """A server refused a statement."""


def program(name: str) -> str:
    """A program of the server, which Debian keeps off the path."""
    found = shutil.which(name) or next((str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    if found is None:
        raise Absent("PostgreSQL's server is not here: make test installs it where it can")
    return found


@contextlib.contextmanager
def postgres() -> Iterator[Ask]:
    """A question to a server of our own, on a socket in a folder of its own: SQL in, rows of strings out."""
    server, folder = program("pg_ctl"), Path(mkdtemp(prefix="isolayer-"))  # a socket's path must be short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # the server refuses to run as root
    data, options = folder / "data", f"-k {folder} -c listen_addresses='' -c fsync=off"
    run: dict[str, Any] = {"check": True, "capture_output": True, "text": True, "cwd": folder}
    subprocess.run([*as_user, program("initdb"), "-D", data, "-U", "tester", "-E", "UTF8", "--locale=C.UTF-8"], **run)
    subprocess.run([*as_user, server, "-D", data, "-o", options, "-l", folder / "log", "-w", "start"], **run)

    command = ["psql", "-h", str(folder), "-U", "tester", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "--csv", "-tqX"]

    def ask(statement: str) -> list[list[str]]:
        """Run a statement, or several with the rows that they copy."""
        done = subprocess.run([*command, "-f", "-"], input=statement, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Failed(done.stderr)
        return list(csv.reader(io.StringIO(done.stdout)))

    try:
        yield ask
    finally:
        subprocess.run([*as_user, server, "-D", data, "-m", "immediate", "stop"], **run)
        shutil.rmtree(folder)


@contextlib.contextmanager
def java() -> Iterator[str]:
    """Java itself, for tests that start Spark in processes of their own."""
    found = shutil.which("java")
    if found is None:
        raise Absent("Spark needs Java, which is not here")
    yield found


@contextlib.contextmanager
def spark() -> Iterator[Any]:
    """A session of Spark in this process, on one core."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        # Statements here are small and all different: compiling them well takes longer than running them.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
    }
    with java(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[1]").appName("isolayer")
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
