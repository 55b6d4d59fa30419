"""The lock file on object stores, changed by conditional puts only.

S3 compares ETags and Google Cloud Storage generations, as Marin does on the same object, so two
workers can never hold one lease. Some S3-compatible servers ignore the condition of a put: the
first lease that a process acquires in a bucket tests this, and such a bucket is refused. obstore
sends the puts, with the endpoint and credentials of the fsspec filesystem that serves the data.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from marin_dagster.cache.lease import (
    LOCK_FILE,
    Lease,
    LeaseWatch,
    format_lease,
    new_lease,
    parse_lease,
    require_own,
)
from marin_dagster.cache.store import OutputDir, asking
from marin_dagster.errors import StoreError

T = TypeVar("T")
_Version: TypeAlias = dict[str, str]
"""What a store calls one version of an object: its ETag, its generation, or both."""

_NO_VERSION = {"e_tag": f'"{"0" * 32}"'}
"""A version that no object has."""
_CREDENTIALS_LIVE = timedelta(minutes=10)
_TIMEOUTS = {"connect_timeout": "5s", "timeout": "15s"}
"""Short, so that a renewal whose first try hangs succeeds well before the lease expires."""
_ONE_TRY_S = 20.0
"""A request that fails sooner has been tried once."""
_RETRIES: Any = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=45),
    "backoff": {
        "init_backoff": timedelta(seconds=0.5),
        "max_backoff": timedelta(seconds=10),
        "base": 3,
    },
}
"""While a store is unavailable, obstore retries with growing pauses before the step fails. The time
is the limit, not the number of tries: their pauses are random, 8 of them took 7 to 10 s."""


@dataclass(eq=False)
class ObjectLock:
    """The lock file of one output in a bucket of S3 or Google Cloud Storage.

    A put names the version that this worker last saw, so it needs no look before it: if another
    worker has changed the file since, the store refuses it, and only then is the file read again.
    """

    folder: OutputDir
    _found: tuple[bytes | None, _Version | None] | None = None
    """What :meth:`read` found, until :meth:`acquire` uses it."""
    _own: dict[str, _Version] = field(default_factory=dict)
    """The version that a worker of this process wrote last, by its id."""

    def read(self) -> Lease | None:
        self._found = self._get()
        return parse_lease(self._found[0])

    def acquire(self, worker_id: str, watch: LeaseWatch) -> bool:
        found, self._found = self._found, None
        content, version = found or self._get()
        if watch.is_live(parse_lease(content)):
            return False
        if not self._renew(worker_id, version) and not self._holds(worker_id):
            return False
        bucket, _ = self._object()
        if not bucket.proven:
            try:
                self._prove_conditions(worker_id)
            except BaseException:
                with suppress(StoreError):
                    self.release(worker_id)
                raise
            bucket.proven = True
        return True

    def _prove_conditions(self, worker_id: str) -> None:
        """Raise unless the bucket refuses puts whose condition does not hold.

        This worker holds the lease, so the lock file exists: a put that creates it must fail, and
        so must a put over a version that no object has.
        """
        for version, condition in ((None, "If-None-Match"), (_NO_VERSION, "If-Match")):
            # Twice: the folder may have been removed meanwhile.
            if all(self._put(new_lease(worker_id), version) is not None for _ in range(2)):
                raise StoreError(
                    f"the store ignores conditional puts ({condition}), so that two workers could "
                    f"hold the lease {self.folder.url}/{LOCK_FILE}. Update its server, or use a "
                    "store that honours them."
                )

    def refresh(self, worker_id: str) -> None:
        if (own := self._own.get(worker_id)) is not None:
            began = time.monotonic()
            try:
                if self._renew(worker_id, own):
                    return
            except StoreError:
                # obstore tries a read again that gets no answer, but not such a put.
                if time.monotonic() - began > _ONE_TRY_S:
                    raise
        content, version = self._get()
        require_own(parse_lease(content), worker_id, self.folder.url)
        if not self._renew(worker_id, version):
            require_own(self._lease(), worker_id, self.folder.url)

    def _renew(self, worker_id: str, version: _Version | None) -> bool:
        self._own.pop(worker_id, None)
        written = self._put(new_lease(worker_id), version)
        if written:
            self._own[worker_id] = written
        return written is not None

    def release(self, worker_id: str) -> None:
        if self._holds(worker_id):
            bucket, key = self._object()

            def delete() -> None:
                # Missing if the first try deleted it and only its answer was lost.
                with suppress(FileNotFoundError):
                    bucket.store.delete(key)

            self._ask("delete", delete)

    def _holds(self, worker_id: str) -> bool:
        # Also after a refused put: its first try may have succeeded, and only its answer been lost.
        lease = self._lease()
        return lease is not None and lease.worker_id == worker_id

    def _lease(self) -> Lease | None:
        content, _ = self._get()
        return parse_lease(content)

    def _get(self) -> tuple[bytes | None, _Version | None]:
        """The lock file and its version, for the next conditional put."""
        bucket, key = self._object()

        def get() -> tuple[bytes | None, _Version | None]:
            try:
                found = bucket.store.get(key)
            except FileNotFoundError:
                return None, None
            return bytes(found.bytes()), _version(found.meta)

        return self._ask("read", get)

    def _put(self, lease: Lease, version: _Version | None) -> _Version | None:
        """Write if the object still has this version, or still does not exist.

        Returns:
            The version that was written; None when the store refused.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        bucket, key = self._object()

        def put() -> _Version | None:
            try:
                return _version(
                    bucket.store.put(key, format_lease(lease), mode=version or "create")
                )
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if version is None:
                    raise  # without its bucket
                return None

        return self._ask("lock", put)

    def _ask(self, verb: str, call: Callable[[], T]) -> T:
        with asking(verb, f"{self.folder.url}/{LOCK_FILE}"):
            return call()

    def _object(self) -> "tuple[_Bucket, str]":
        bucket, _, key = self.folder.file(LOCK_FILE).partition("/")
        return _bucket(self.folder.fs, bucket), key


def _version(meta: Mapping[str, Any]) -> _Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


def serves(fs: Any) -> bool:
    """Whether the filesystem is a bucket that supports conditional puts."""
    return _scheme(fs) in ("s3", "gs")


def _scheme(fs: Any) -> str:
    protocol = fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)
    for scheme, names in (("s3", ("s3", "s3a")), ("gs", ("gs", "gcs"))):
        if any(name in names for name in protocol):
            return scheme
    return str(protocol[0])


@dataclass(eq=False)
class _Bucket:
    """One bucket, as this process accesses it."""

    store: Any
    """obstore's."""
    proven: bool = False
    """Whether it refuses puts whose condition does not hold."""


@lru_cache(maxsize=64)
def _bucket(fs: Any, bucket: str) -> _Bucket:
    try:
        from obstore.store import GCSStore, S3Store
    except ImportError as error:
        extra = "s3" if _scheme(fs) == "s3" else "gcs"
        raise StoreError(
            f"leases in {_scheme(fs)}://{bucket} need the package obstore. Install "
            f"marin-dagster[{extra}]."
        ) from error
    if _scheme(fs) == "s3":
        return _Bucket(S3Store(bucket, retry_config=_RETRIES, **_s3_settings(fs, bucket)))
    # Google's service honours conditions.
    return _Bucket(GCSStore(bucket, retry_config=_RETRIES, **_gcs_settings(fs)), proven=True)


def _s3_settings(fs: Any, bucket: str) -> dict[str, Any]:
    fs.connect()
    client = fs.s3.meta
    endpoint = client.endpoint_url
    style = (client.config.s3 or {}).get("addressing_style")
    if style == "virtual":
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "virtual_hosted_style_request": style == "virtual",
        "client_options": {
            **_TIMEOUTS,
            "allow_http": endpoint.startswith("http://"),
            "allow_invalid_certificates": (fs.client_kwargs or {}).get("verify") is False,
        },
        **_s3_policies(fs),
    }
    if client.region_name and client.region_name != "aws-global":
        settings["region"] = client.region_name
    if fs.anon:
        settings["skip_signature"] = True
    elif fs.key and fs.secret:
        # As a provider: with single settings, obstore would add a token from the environment.
        settings["credential_provider"] = lambda: {
            "access_key_id": fs.key,
            "secret_access_key": fs.secret,
            "token": fs.token,
            "expires_at": None,
        }
    else:
        settings["credential_provider"] = _botocore_credentials(fs.session.profile)
    return settings


def _s3_policies(fs: Any) -> dict[str, Any]:
    """Settings of s3fs that a bucket's policy may require of every request."""
    extra = fs.s3_additional_kwargs or {}
    names = {
        "ServerSideEncryption": "server_side_encryption",
        "SSEKMSKeyId": "sse_kms_key_id",
    }
    policies: dict[str, Any] = {own: extra[name] for name, own in names.items() if name in extra}
    if fs.req_kw.get("RequestPayer"):
        policies["request_payer"] = True
    return policies


def _botocore_credentials(profile: str | None) -> Callable[[], dict[str, Any]]:
    """The credentials that botocore, and so s3fs, would find: environment, files, roles."""
    from botocore.session import Session

    credentials = Session(profile=profile).get_credentials()
    if credentials is None:
        raise StoreError("no AWS credentials: set them for s3fs, for example in the environment.")

    def current() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # botocore refreshes them in time; obstore must ask it again soon.
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIVE,
        }

    return current


def _gcs_settings(fs: Any) -> dict[str, Any]:
    endpoint = fs._location
    settings: dict[str, Any] = {
        "client_options": {**_TIMEOUTS, "allow_http": endpoint.startswith("http://")},
        "credential_provider": _google_token(fs.credentials.credentials),
    }
    if endpoint != "https://storage.googleapis.com":
        settings["base_url"] = endpoint
    if fs.credentials.credentials is None:
        settings["skip_signature"] = True
    return settings


def _google_token(credentials: Any) -> Callable[[], dict[str, Any]]:
    """The token that gcsfs uses, refreshed when it has expired.

    obstore's GoogleCredentialProvider refreshes every time, which fails for a fixed access token.
    """

    def current() -> dict[str, Any]:
        if credentials is None:
            # An emulator accepts any; without one, obstore would look for the machine's identity.
            return {"token": "anonymous", "expires_at": None}
        if not credentials.valid:
            from google.auth.transport.requests import Request

            credentials.refresh(Request())
        expiry = credentials.expiry
        return {
            "token": credentials.token,
            "expires_at": expiry.replace(tzinfo=UTC) if expiry else None,
        }

    return current
