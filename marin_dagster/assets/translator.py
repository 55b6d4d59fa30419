"""``DagsterMarinTranslator``: how a step looks in Dagster. Subclass it to change that."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import dagster as dg
from pydantic_core import to_json

from marin_dagster._compat import without_beta_warnings
from marin_dagster.events.metadata_keys import (
    ADDRESS,
    ATTRIBUTES,
    DEVICE,
    FINGERPRINT,
    HASH_ID,
    NAME_WITH_HASH,
    OWN_HASH,
    RESOURCES,
    RESULT_TYPE,
    SOURCE,
    VERSION,
)
from marin_dagster.steps import StepLike, step_resources
from marin_dagster.steps.attributes import identity_hash, leaves_in
from marin_dagster.steps.protocol import (
    address,
    adopted_source,
    artifact_version,
    attributes,
    code_version,
    data_version,
    is_pinned,
)
from marin_dagster.steps.remote import written_function
from marin_dagster.steps.resources import resources_dict

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")
_TAG_KEY = re.compile(r"(?!dagster/)([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
"""The tag values that Dagster accepts; an empty value would be a tag without a value."""
_MOST_TAGS = 32


class DagsterMarinTranslator:
    """Turns a step into an asset key and an ``AssetSpec``.

    Override any method; the keys of dependencies come from the same ``get_asset_key``, so the two
    always agree::

        class OurTranslator(DagsterMarinTranslator):
            def get_asset_key(self, step):
                return super().get_asset_key(step).with_prefix("research")

            def get_asset_spec(self, step):
                return super().get_asset_spec(step).replace_attributes(owners=["team:nlp"])
    """

    def get_asset_key(self, step: StepLike) -> dg.AssetKey:
        """The asset's key: the step's name, split at ``/``.

        Letters, digits, ``_``, ``-`` and ``.`` stay; accents are dropped, and every other character
        becomes ``_``, because Dagster's asset checks refuse it. (Before Dagster 1.13.4 they also
        refuse ``.``; a translator can replace it there.)
        """
        return dg.AssetKey([key_part(part) for part in step.name.split("/")])

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        """The asset: key, dependencies, kinds, tags, description, code version and metadata.

        A group that is given here wins over that of :func:`build_definitions`.

        The code version is the step's hash, which covers everything upstream, so that Dagster calls
        an asset stale exactly when the cache would rebuild it. The code version of a lazy artifact
        is its version and fingerprint; a ``dev`` version, built every time, has none.
        """
        resources = step_resources(step)
        return dg.AssetSpec(
            key=self.get_asset_key(step),
            deps=list(dict.fromkeys(self.get_asset_key(dep) for dep in step.deps)),
            kinds={"marin"} if resources is None else {"marin", resources.device.kind},
            description=written_function(step)[1],
            tags=_tags(step),
            code_version=code_version(step),
            metadata=_metadata(step, resources),
        )

    def get_op_tags(self, step: StepLike) -> Mapping[str, Any]:
        """Tags of the step's op, for priorities and the executor's ``tag_concurrency_limits``.

        By default the step's resources: ``marin/device`` (``cpu``, ``gpu`` or ``tpu``) and
        ``marin/resources``; nothing for a step without resources.
        """
        resources = step_resources(step)
        if resources is None:
            return {}
        return {
            DEVICE: resources.device.kind,
            RESOURCES: json.dumps(resources_dict(resources)),
        }

    def get_pool(self, step: StepLike) -> str | None:
        """The concurrency pool that the step's runs share with other runs; None by default."""
        return None

    def get_retry_policy(self, step: StepLike) -> dg.RetryPolicy | None:
        """When a run retries the step; None, the default, means the ``retry_policy`` of
        :func:`build_definitions`. ``dg.RetryPolicy(max_retries=0)`` means never."""
        return None


def _metadata(step: StepLike, resources: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "dagster/uri": step.output_path,
        ATTRIBUTES: dg.MetadataValue.json(_plain(attributes(step))),
    }
    if (version := artifact_version(step)) is None:
        metadata[HASH_ID] = step.hash_id
        # The code version is hash_id, which covers everything upstream; this is the step alone.
        metadata[OWN_HASH] = identity_hash(step.name, step.hash_attrs, [])
        metadata[NAME_WITH_HASH] = step.name_with_hash
    else:
        # No hash: neither its path nor its version contains one.
        metadata[ADDRESS] = address(step)
        metadata[VERSION] = version
        metadata[FINGERPRINT] = data_version(step)
        metadata[RESULT_TYPE] = str(step.hash_attrs.get("result_type", ""))
    if (source := adopted_source(step)) is not None:
        metadata[SOURCE] = source
    elif is_pinned(step):
        metadata[SOURCE] = step.output_path
    if resources is not None:
        metadata[RESOURCES] = dg.MetadataValue.json(resources_dict(resources))
    code = getattr(written_function(step)[0], "__code__", None)
    if code is not None:
        with without_beta_warnings():
            reference = dg.LocalFileCodeReference(
                file_path=code.co_filename, line_number=code.co_firstlineno, label=code.co_name
            )
            metadata["dagster/code_references"] = dg.CodeReferencesMetadataValue(
                code_references=[reference]
            )
    return metadata


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    # NaN and infinity as text: JSON in a browser knows neither.
    plain: dict[str, Any] = json.loads(to_json(dict(values), inf_nan_mode="strings"))
    return plain


def _tags(step: StepLike) -> dict[str, str]:
    """The first 32 scalar attributes that Dagster takes as tags: ``lr: 0.1``, ``model.layers: 2``.

    Others are left out, and so are two with the same path: a tag always has its attribute's
    value.
    """
    leaves = list(leaves_in(_plain(attributes(step))))
    paths = Counter(path for path, _ in leaves)
    texts = (
        (path, value if isinstance(value, str) else json.dumps(value))
        for path, value in leaves
        if isinstance(value, (str, int, float)) and paths[path] == 1
    )
    fit = (
        (key, text) for key, text in texts if _TAG_KEY.fullmatch(key) and _TAG_VALUE.fullmatch(text)
    )
    return dict(islice(fit, _MOST_TAGS))


def key_part(text: str) -> str:
    """The text as a part of an asset key: see :meth:`DagsterMarinTranslator.get_asset_key`."""
    return ascii_name(text, _NOT_IN_KEYS)


def ascii_name(text: str, unwanted: re.Pattern[str]) -> str:
    """The text without accents, and with ``_`` for each unwanted character."""
    if not unwanted.search(text):
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    return unwanted.sub("_", plain)
