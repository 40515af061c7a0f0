"""Run by the engine tests as a child: what ms-swift itself makes of some files. Not collected by pytest.

stdin: {"model": folder, "jobs": [{"file": path, "template": name, "system": text or null}]}
last line of stdout: one entry a job, {"rows": [[tokens, labels], ...]} or {"error": text}
"""

import json
import sys
from functools import cache

from swift.dataset import load_dataset
from swift.model import get_model_processor
from swift.template import get_template


@cache
def loaded(file):
    return list(load_dataset([file], shuffle=False, load_from_cache_file=False)[0])


def answer(processor, job):
    rows = loaded(job["file"])
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
