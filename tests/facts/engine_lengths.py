"""Run by the engine tests as a child: what ms-swift itself makes of some files. Not collected by pytest.

stdin: {"model": folder, "jobs": [{"file": path or paths, "template": name, "system": text or null, "load": {}}]};
``load`` holds further arguments of load_dataset
last line of stdout: one entry a job, {"rows": [[tokens, labels], ...]} or {"error": text}
"""

import json
import sys
from functools import cache

from swift.dataset import load_dataset
from swift.model import get_model_processor
from swift.template import get_template


@cache
def loaded(files, more):
    given = {"shuffle": False, **json.loads(more)}
    return list(load_dataset(list(files), load_from_cache_file=False, **given)[0])


def answer(processor, job):
    files = job["file"] if isinstance(job["file"], list) else [job["file"]]
    rows = loaded(tuple(files), json.dumps(job.get("load", {})))
    template = get_template(processor, job["system"], template_type=job["template"])
    template.set_mode("train")
    out = []
    for row in rows:
        try:
            encoded = template.encode(dict(row))
        except Exception:  # the engine drops the row (AddLengthPreprocessor, strict false)
            continue
        labels = encoded["labels"]
        out.append([len(encoded["input_ids"]), sum(label != -100 for label in labels)])
    return {"rows": out}


def main():
    task = json.load(sys.stdin)
    _, processor = get_model_processor(task["model"], load_model=False, model_type="qwen2")
    results = []
    for job in task["jobs"]:
        try:
            results.append(answer(processor, job))
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"})
    print("\n" + json.dumps(results))


main()
