"""moto's S3 server, whose conditional puts are atomic, as a store's are.

moto looks at the condition and writes afterwards, in a thread for each request: two puts at the
same time would both win, and a race in a bucket would show nothing about the leases.
"""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_one_put_at_a_time = threading.Lock()
_put_object = S3Response.put_object


def put_object(response: S3Response) -> Any:
    with _one_put_at_a_time:
        return _put_object(response)


if __name__ == "__main__":
    S3Response.put_object = put_object  # type: ignore[method-assign]
    main()
