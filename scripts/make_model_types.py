"""Writes data/dialects/<dialect>.models.json from the installed ms-swift: how it tells a model's type and template.

    python scripts/make_model_types.py

Three tables, as ``swift/model/model_meta.py`` and ``swift/template/register.py`` consult them: the last path
component of every registered id -> (model type, template); ``architectures[0]`` -> the candidate model types (the
engine takes a lone candidate and refuses several); model type -> its template and candidate templates, and
whether its rows can be packed. And the names of all templates.
Needs torch and ms-swift; run it once for each new engine version, then review the diff.
"""

from __future__ import annotations

import json
from importlib.metadata import version

from swift.model import MODEL_MAPPING, ModelMeta
from swift.template import TEMPLATE_MAPPING

from swift_autobatch.tables import DATA, DIALECT


def packs(meta: ModelMeta) -> bool:
    """Whether rows of this type can be packed, as swift/pipelines/train/sft.py ``_prepare_template`` decides."""
    names = [meta.template] if meta.template else meta.candidate_templates
    said = [TEMPLATE_MAPPING[name].template_cls.support_padding_free for name in names if name in TEMPLATE_MAPPING]
    return any(not meta.is_multimodal if one is None else one for one in said or [None])


def main() -> None:
    ids: dict[str, list[str | None]] = {}
    architectures: dict[str, list[str]] = {}
    types: dict[str, dict[str, object]] = {}
    for model_type, meta in MODEL_MAPPING.items():
        types[model_type] = {
            "template": meta.template,
            "templates": meta.candidate_templates,
            "multimodal": meta.is_multimodal,
            "packs": packs(meta),
        }
        for architecture in meta.architectures:
            architectures.setdefault(architecture, []).append(model_type)
        for group in meta.model_groups:
            for model in group.models:
                for name in (model.ms_model_id, model.hf_model_id, model.model_path):
                    if name:  # the engine takes the first match
                        ids.setdefault(name.rsplit("/", 1)[-1].lower(), [model_type, group.template or meta.template])
    tables = {"version": version("ms-swift"), "types": types, "architectures": architectures, "ids": ids}
    path = DATA / "dialects" / f"{DIALECT}.models.json"
    templates = ",\n".join(f"  {json.dumps(name)}" for name in sorted(TEMPLATE_MAPPING))
    lines = [f' "version": {json.dumps(tables["version"])}', f' "templates": [\n{templates}\n ]']
    for name in ("types", "architectures", "ids"):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(tables[name].items()))
        lines.append(f' "{name}": {{\n{rows}\n }}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {len(types)} types, {len(architectures)} architectures, {len(ids)} ids")


if __name__ == "__main__":
    main()
