# %% [markdown]
# # Serve calibrated probabilities over HTTP
#
# A server that scores one row per request, and takes over a new artefact while it runs: no request waits for it, none
# is dropped. Plain ASGI on uvicorn; any framework will do. Run it to see it under load on this machine's loopback.

# %%
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import uvicorn

from isolayer import InputError, IsotonicCalibrator
from isolayer.curves.scorer import WatchedScorer

# %% [markdown]
# The application: `POST /` with `{"score": 0.2, "context": {"device": "tv"}}` answers `{"prob": 0.31}`. What is wrong
# with a request is said in the answer, with status 400.


# %%
def application(scorer):
    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            asked = json.loads(body)
            status, answer = 200, {"prob": scorer(asked["score"], asked.get("context"))}
        except (InputError, ValueError, KeyError, TypeError) as error:
            status, answer = 400, {"error": str(error)}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


# %% [markdown]
# Two releases of a calibrator, the second fitted to a day on which everything is clicked more often.


# %%
def fitted(shift, seed):
    random = np.random.default_rng(seed)
    frame = {"score": random.normal(0, 1, 20_000), "device": random.choice(["tv", "web", "app"], 20_000)}
    label = random.random(20_000) < 1 / (1 + np.exp(-frame["score"] - shift))
    return IsotonicCalibrator(("device",)).fit(frame, label).curves_


path = Path(tempfile.mkdtemp()) / "curves.parquet"
old, new = fitted(-1.0, 0), fitted(0.5, 1)
old.save(path)
scorer = WatchedScorer(path, every=0.05)
config = uvicorn.Config(application(scorer), port=0, log_level="warning", lifespan="off")
server = uvicorn.Server(config)
serving = threading.Thread(target=server.run)
serving.start()
while not server.started:
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]

# %% [markdown]
# Four clients ask as fast as they can; meanwhile the artefact is replaced.

# %%
body = json.dumps({"score": 0.2, "context": {"device": "tv"}})
expected = [float(curves.predict_proba([0.2], {"device": ["tv"]})[0]) for curves in (old, new)]
seconds, answers = [], []


def client():
    connection = http.client.HTTPConnection("127.0.0.1", port)
    deadline = time.perf_counter() + 1.5
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        connection.request("POST", "/", body)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        seconds.append(time.perf_counter() - start)
        answers.append((answer.status, content.get("prob")))
    connection.close()


clients = [threading.Thread(target=client) for _ in range(4)]
for one in clients:
    one.start()
time.sleep(0.5)
new.save(path)
for one in clients:
    one.join()
server.should_exit = True
serving.join()
scorer.close()

# %%
served = {prob for status, prob in answers if status == 200}
dropped = sum(status != 200 for status, _ in answers)
p50, p99 = statistics.median(seconds), float(np.quantile(seconds, 0.99))
print(f"{len(answers):,} requests, {dropped} dropped; p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")
assert dropped == 0
assert served == set(expected), "every answer is that of the old release or of the new one"
