"""Spark on a local cluster of two workers, one of which loses its process in the middle of a stage: the same sums."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

SCRIPT = '''
import os, signal, sys, threading, time, warnings
from pathlib import Path

warnings.simplefilter("ignore")
import ibis, numpy as np, pyarrow as pa, pyarrow.parquet as pq
from pyspark.sql import SparkSession
from isolayer import Curves, Grid
from isolayer.tables.histogram_query import ColumnSpec, histogram_of

FOLDER, PARTS, ROWS = Path(sys.argv[1]), 12, 200
random = np.random.default_rng(0)
(FOLDER / "log").mkdir()
for part in range(PARTS):
    score = random.normal(-1, 1.5, ROWS)
    label = (random.random(ROWS) < 1 / (1 + np.exp(-score))).astype(np.int8)
    columns = {"score": score, "label": label, "device": random.choice(["tv", "web", "ios"], ROWS)}
    pq.write_table(pa.table(columns | {"slow": np.arange(ROWS) == 0}), FOLDER / "log" / f"{part}.parquet")
settings = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.local.dir": str(FOLDER / "local"),
    "spark.sql.warehouse.dir": str(FOLDER / "warehouse"),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.openCostInBytes": str(1 << 27),  # every file is a task of its own
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
    # Statements here are small: compiling them well takes longer than running them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
context = spark.sparkContext
spark.read.parquet(str(FOLDER / "log")).createOrReplaceTempView("rows")
# The first row of each part takes a moment, so that there is a stage to interrupt.
slow = "NOT slow OR length(reflect('java.lang.Thread', 'sleep', 400L)) >= 0"
spark.sql(f"SELECT score, label, device FROM rows WHERE {slow}").createOrReplaceTempView("log")
table = ibis.pyspark.connect(spark).table("log")


def sums():
    return histogram_of(table, ColumnSpec(("device",), grid=Grid(-8, 6, 0.5)))[0]


def executors(parent):
    """The processes of executors among the descendants of a process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if above == parent:
            if b"CoarseGrainedExecutorBackend" in command:
                yield int(folder.name)
            yield from executors(int(folder.name))


def lose_one():
    """Kill an executor once two parts of the stage are done and others are not."""
    tracker, deadline = context.statusTracker(), time.monotonic() + 200
    while time.monotonic() < deadline:
        for stage in tracker.getActiveStageIds():
            told = tracker.getStageInfo(stage)
            if told is not None and told.numTasks == PARTS and 2 <= told.numCompletedTasks < PARTS - 2:
                victim = min(executors(os.getpid()))
                os.kill(victim, signal.SIGKILL)
                killed.append((victim, told.numCompletedTasks))
                return
        time.sleep(0.02)


whole = sums()
assert len(list(executors(os.getpid()))) == 2, "two workers"
killed = []
thread = threading.Thread(target=lose_one)
thread.start()
interrupted = sums()
thread.join()
assert len(killed) == 1, "an executor was killed while the stage ran"
known = context._jsc.sc().statusStore().executorList(False)
lost = sum(not known.apply(place).isActive() for place in range(known.size()))
assert lost == 1, f"Spark noticed that one executor was lost, not {lost}"
assert [key.tolist() for key in interrupted.keys] == [key.tolist() for key in whole.keys]
for name in ("group", "bin", "count", "positive"):
    np.testing.assert_array_equal(getattr(interrupted, name), getattr(whole, name))
np.testing.assert_allclose(interrupted.logit, whole.logit, rtol=0, atol=1e-9)
assert whole.rows == PARTS * ROWS
one, two = (Curves.from_histogram(found).values for found in (interrupted, whole))
np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)
print("the same sums")
spark.stop()
'''


def test_a_worker_that_is_killed_in_the_middle_of_a_stage_changes_nothing(java, tmp_path):
    home = tmp_path / "spark"  # executors write beside the jars
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, str(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
    assert "the same sums" in result.stdout, result.stdout[-1000:] + result.stderr[-3000:]
