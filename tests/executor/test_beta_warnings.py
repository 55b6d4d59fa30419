"""Our calls of Dagster's beta features do not warn, and everybody else's still do."""

import warnings

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import build_definitions
from marin_dagster._compat import without_beta_warnings


@pytest.mark.filterwarnings("error::dagster.BetaWarning")
def test_a_run_does_not_warn_of_beta_features(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    assert run_job(build_definitions([recorder.step("raw")]), instance).success


def test_only_the_caller_is_without_warnings() -> None:
    filters = warnings.filters

    with without_beta_warnings():
        assert warnings.filters is filters, "threads share the filters"

    with pytest.warns(dg.BetaWarning):
        dg.Output(1, data_version=dg.DataVersion("1"))
