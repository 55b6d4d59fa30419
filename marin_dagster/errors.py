"""Every error and warning that marin_dagster raises on purpose.

::

    MarinDagsterError
    ├── GraphError (ValueError)            the graph itself is wrong; raised when it is built
    │   ├── CycleError                     steps depend on each other in a ring
    │   ├── CollisionError                 two different steps claim one output path or asset key
    │   ├── StepNameError                  a name or path that cannot be a folder of a store
    │   ├── HashAttributeError (TypeError) an attribute that JSON or a fingerprint cannot hold
    │   ├── VersionError                   an artifact without a version, or one not allowed
    │   ├── InputsError (TypeError)        inputs that a step's function cannot take
    │   ├── UndeclaredInputsError          functions use steps that theirs do not depend on (strict)
    │   └── FingerprintMismatchError       a recipe is not the one that its handle expects
    ├── ResourceError (ValueError)         a resource request that is not valid
    ├── StoreError (OSError)               the store refused to read or write a file of the cache
    │   └── StoreTimeoutError                 it did not answer in time
    ├── RecordError                        a record that is missing or cannot be read
    ├── LeaseLostError                     another worker took over the output while a step ran
    ├── RunnerError                        a runner cannot take a step, or did not finish it
    │   ├── RoutingError (ValueError)      no such runner, or one that cannot honour the resources
    │   ├── EngineError                    the engine does not answer, or refused the job
    │   │   └── EngineTimeoutError         the engine did not answer: the job may have begun or not
    │   ├── RemoteFunctionError            the step's function raised, in its job
    │   ├── JobFailedError                 the job died: a signal, out of memory, an exit code
    │   └── JobLostError                   the engine lost the job: its node is gone, or preempted
    ├── StepsFailedError (ExceptionGroup) (RuntimeError)  steps of a StepRunner's run failed
    └── StepError                          a step cannot run, or its output cannot be used
        ├── StepWithoutFunctionError       nothing is cached and there is no function to build it
        ├── PreviousAttemptFailedError     the last attempt failed and failures are not retried
        ├── PartitionsFailedError          some partitions of a step could not be built
        ├── DependencyNotBuiltError        an input has no successful output and is not being built
        ├── OutputVanishedError            a cached output was removed after its inputs were pruned
        ├── OutputNotReadyError            something asks for an output that is not finished
        │   └── ResultMissingError (FileNotFoundError)  an output without a recorded result
        ├── ArtifactTypeMismatchError      an output was recorded as another type of artifact
        ├── UndeclaredDependencyError (ValueError)  a function asks for what its step does not list
        ├── AdoptedDataMissingError (FileNotFoundError)  adopted or pinned data is not there
        └── ResultError (TypeError)        the function returned what a record cannot hold

    MarinDagsterWarning (UserWarning)      the graph works, but probably not as meant

Each message names the step, the path and what to do.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Any


class MarinDagsterError(Exception):
    """Base of every error in this package."""


class GraphError(MarinDagsterError, ValueError):
    """The graph itself is wrong; raised when it is built, before anything runs."""


class CycleError(GraphError):
    """Steps depend on each other in a ring."""


class CollisionError(GraphError):
    """Two different steps claim one output path, or one asset key."""


class StepNameError(GraphError):
    """A name or output path that cannot be a folder of a store."""


class HashAttributeError(GraphError, TypeError):
    """An attribute that enters a step's hash and that JSON cannot hold."""


class VersionError(GraphError):
    """An artifact has no version, or depends on a version that is not allowed."""


class InputsError(GraphError, TypeError):
    """Inputs that a step's function cannot take."""


class UndeclaredInputsError(GraphError):
    """Functions use outputs of steps that their own steps do not depend on, and the graph is
    strict."""


class FingerprintMismatchError(GraphError):
    """A recipe, or what was built by it, is not the one that the handle expects."""


class ResourceError(MarinDagsterError, ValueError):
    """A resource request that is not valid."""


class StoreError(MarinDagsterError, OSError):
    """The store refused to read or write a file of the cache."""


class StoreTimeoutError(StoreError):
    """The store did not answer in time, after all retries; the next request would wait as long."""


class RecordError(MarinDagsterError):
    """A record that is missing or cannot be read."""


class LeaseLostError(MarinDagsterError):
    """Another worker took over the output while a step ran."""


class RunnerError(MarinDagsterError):
    """A runner cannot take a step, or did not finish it."""


class RoutingError(RunnerError, ValueError):
    """No such runner, or one that cannot honour what the step asks for."""


class EngineError(RunnerError):
    """The engine behind a runner does not answer, or refused the job."""


class EngineTimeoutError(EngineError):
    """The engine did not answer a submission, so the job may have begun or not."""


class RemoteFunctionError(RunnerError):
    """The step's function raised, in its job; the message carries the remote traceback."""

    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details
        """What ``DriverCallbacks.describers`` made of the exception in the job; None for most."""


class JobFailedError(RunnerError):
    """The job died without an exception: a signal, out of memory, an exit code, a cancellation."""


class JobLostError(RunnerError):
    """The engine lost the job through no fault of the step: a node gone, a preemption."""


class StepsFailedError(MarinDagsterError, ExceptionGroup[Exception], RuntimeError):
    """Steps of a ``StepRunner``'s run failed; ``exceptions`` holds the error of each.

    Mirrors Marin: a ``RuntimeError`` whose ``__cause__`` is the first failure.
    """

    def derive(self, excs: Sequence[Exception]) -> "StepsFailedError":  # type: ignore[override]
        """The same with some of the exceptions, for ``except*``."""
        return StepsFailedError(self.message, excs)


class StepError(MarinDagsterError):
    """A step cannot run, or its output cannot be used."""


class StepWithoutFunctionError(StepError):
    """Nothing is cached under the step's hash and it has no function to build it."""


class PreviousAttemptFailedError(StepError):
    """The last attempt failed and this run does not retry failures."""


class PartitionsFailedError(StepError):
    """Some partitions of a step could not be built."""


class DependencyNotBuiltError(StepError):
    """An input of the step has no successful output and is not being built."""


class OutputVanishedError(StepError):
    """A cached output was removed after its inputs had been pruned from the run."""


class OutputNotReadyError(StepError):
    """Something asks for an output that is missing or not finished."""


class ResultMissingError(OutputNotReadyError, FileNotFoundError):
    """A path has no record, or a record without result; as in Marin, a ``FileNotFoundError``."""


class ArtifactTypeMismatchError(StepError):
    """An output was recorded as another type of artifact than it is loaded as."""


class UndeclaredDependencyError(StepError, ValueError):
    """A step's configuration asks for an artifact that the step does not depend on, or the function
    of a strict graph's step has read its output."""


class AdoptedDataMissingError(StepError, FileNotFoundError):
    """Adopted or pinned data is missing or not finished; as in Marin, a ``FileNotFoundError``."""


class ResultError(StepError, TypeError):
    """The step's function returned something that a record cannot hold."""


class MarinDagsterWarning(UserWarning):
    """The graph works, but probably not as meant."""


def warn(message: str) -> None:
    """Issue a :class:`MarinDagsterWarning`, attributed to the code outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("marin_dagster."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, MarinDagsterWarning, stacklevel=level)
