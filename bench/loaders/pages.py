"""The loader of this benchmark: it returns the id at once. `pages.py batch` takes many keys in one call."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python" / "src"))

from cattlegrid import loader  # noqa: E402

if sys.argv[1:] == ["batch"]:

    @loader.batch(limit=16)
    def load_many(jobs):
        return [job.args["id"] for job in jobs]

else:

    @loader.load
    def load(job):
        return job.args["id"]


loader.serve()
