"""``build_definitions``: everything that a code location needs, made from steps."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import dagster as dg

from marin_dagster._compat import cached_method
from marin_dagster.assets.build import build_marin_assets
from marin_dagster.assets.io_manager import MarinIOManager
from marin_dagster.assets.marin_graph import MarinGraph, Steps
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.automation.cache_sensor import build_marin_cache_sensor
from marin_dagster.automation.schedule import DEFAULT_JOB_NAME, build_marin_schedule
from marin_dagster.executor import build_marin_executor
from marin_dagster.runners import Runner


class MarinDefinitions(dg.Definitions):
    """Definitions whose default executor is that of their job, and that merge with any others.

    ``Definitions.merge`` refuses two executors, so the ``executor`` field stays empty. Loaded
    alone, the code location defaults to the executor of its job. Merged, our job keeps its
    executor; everything else, including the UI's Materialize, uses the executor of the other
    definitions or Dagster's default. Give those ``executor=marin_executor`` to use it everywhere.
    """

    @cached_method
    def get_repository_def(self) -> dg.RepositoryDefinition:
        """The repository, with the executor of the first job as its default."""
        job = next(iter(self.jobs or ()), None)
        return dg.Definitions(
            assets=self.assets,
            schedules=self.schedules,
            sensors=self.sensors,
            jobs=self.jobs,
            resources=self.resources,
            executor=getattr(job, "executor_def", None),
            loggers=self.loggers,
            asset_checks=self.asset_checks,
            metadata=self.metadata,
            component_tree=self.component_tree,
        ).get_repository_def()


def build_definitions(
    steps: Steps,
    *,
    max_concurrent: int = 8,
    translator: DagsterMarinTranslator | None = None,
    executor: dg.ExecutorDefinition | None = None,
    runners: Mapping[str, Runner] | None = None,
    job_name: str = DEFAULT_JOB_NAME,
    schedule: str | Sequence[str] | None = None,
    cache_sensor: bool = False,
    checks: bool = True,
    retry_policy: dg.RetryPolicy | None = None,
    group_name: str | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    example_partitions: Sequence[str] | str = (),
    unpartitioned: Iterable[str] | str = (),
    backfill_policy: dg.BackfillPolicy | None = None,
    strict: bool = False,
) -> dg.Definitions:
    """Assets with checks, an IO manager, an executor and one job over all; optionally a schedule
    and a sensor.

    Reads and writes nothing in the store, so a code location loads while the store is unreachable.
    The result merges with other ``Definitions``, also with ones that have an executor; see
    :class:`MarinDefinitions` for which executor then runs what.

    Args:
        steps: the steps, or a function that returns them, or their graph; dependencies need not be
            listed. With ``partitions_def``, a function from a partition's key to its steps.
        max_concurrent: how many steps run at once, unless the run's config sets another number; 0
            means the default, 8.
        translator: how a step looks in Dagster.
        executor: replaces :data:`marin_executor`.
        runners: runners for steps with resources, by name; the run's config can add others. Not
            together with ``executor``.
        job_name: name of the job over all steps. Results with different job names merge, unless
            two of their asset keys differ only in characters that op names write as ``_``
            (``a-b`` and ``a.b``): Dagster then reports conflicting node definitions. Give one
            of them other keys, such as a prefix, with a translator.
        schedule: cron expressions, in UTC, of a schedule ``<job_name>_schedule`` that runs what
            the cache does not have. For a time zone, config or tags, see
            :func:`build_marin_schedule`.
        cache_sensor: adds a sensor, ``<job_name>_cache_sensor``, that reports what others build and
            remove in the store; :func:`build_marin_cache_sensor` has more settings.
        checks: adds the check ``cache_integrity`` to each asset, evaluated in the step's op; see
            :func:`build_marin_checks` for what it compares.
        retry_policy: when a run retries a failed step, such as
            ``dg.RetryPolicy(max_retries=2, delay=60)``; never when None. For single steps, override
            :meth:`DagsterMarinTranslator.get_retry_policy`.
        group_name: group of the assets to which the translator gives none; see
            :func:`build_marin_assets` for the default.
        partitions_def: partitions that choose the steps; ``steps`` is then a function from the key
            of a partition to its steps. Their names and dependencies are the same in every
            partition; a step with one output path in all of them is an asset without partitions.
        example_partitions: keys of the partitions that are compared while the graph is loaded, by
            default the first and four others; required for dynamic partitions.
        unpartitioned: names of steps that all partitions share, where the examples cannot show it.
        backfill_policy: how many partitions a run of a backfill builds; see
            :func:`build_marin_assets`.
        strict: whether inputs that a step uses without depending on them are errors: here, if its
            function refers to them, and in a run, if it reads their files. Otherwise they are
            warnings.

    Raises:
        GraphError: the graph is wrong, or those of two partitions do not fit together; see
            :meth:`MarinGraph.of`.
        UndeclaredInputsError: with ``strict``, see there.
        CollisionError: two steps have one asset key.
        ValueError: ``max_concurrent`` is negative, or ``executor`` and ``runners`` are both given.
    """
    if executor is not None and runners:
        raise ValueError("runners belong to an executor: give them to build_marin_executor.")
    marin = MarinGraph.of(
        steps,
        translator=translator,
        group_name=group_name,
        partitions_def=partitions_def,
        example_partitions=example_partitions,
        unpartitioned=unpartitioned,
        strict=strict,
    )
    assets = build_marin_assets(
        marin, checks=checks, retry_policy=retry_policy, backfill_policy=backfill_policy
    )
    executor_def = executor or build_marin_executor(max_concurrent, runners=runners)
    built = [asset.key for asset in assets if isinstance(asset, dg.AssetsDefinition)]
    jobs, schedules = [], []
    if built:
        jobs.append(
            dg.define_asset_job(
                job_name,
                selection=dg.AssetSelection.assets(*built),
                executor_def=executor_def,
                description=(
                    "Builds every step that is not in the cache. A launch from the UI first "
                    "records each selected asset; a schedule of marin_dagster selects only the "
                    "steps that must run."
                ),
            )
        )
    if built and schedule is not None:
        schedules.append(build_marin_schedule(marin, schedule, job_name=job_name))
    sensors = []
    if cache_sensor:
        sensors.append(build_marin_cache_sensor(marin, name=f"{job_name}_cache_sensor"))
    return MarinDefinitions(
        assets=assets,
        resources={marin.io_manager_key: _default_io_manager()},
        jobs=jobs,
        schedules=schedules,
        sensors=sensors,
    )


@cache
def _default_io_manager() -> MarinIOManager:
    # Shared: Definitions.merge accepts a resource key twice only for the same object.
    return MarinIOManager()
