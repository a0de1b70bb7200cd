"""HyperQueue's rate of launches, as its tasks per second: of_hyperqueue.py TASKS SLOTS. Needs `pip install hyperqueue`.

The server and a worker with SLOTS cores run before the clock starts; submitting counts.
"""

import sys
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

tasks, slots = int(sys.argv[1]), int(sys.argv[2])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=slots))
    client = cluster.client()
    started = time.monotonic()
    job = Job()
    for _ in range(tasks):
        job.program(["/bin/true"])
    submitted = client.submit(job)
    client.wait_for_jobs([submitted])
    print(tasks / (time.monotonic() - started))
