"""A CPU engine asks a model's class what it can do without another process."""

import os

from sparkdeploy_vllm import register
from vllm.model_executor.models import registry
from vllm.platforms import current_platform


def check_a_model_s_class_is_imported_in_this_process() -> None:
    if not current_platform.is_cpu():
        return
    register()
    assert registry._run_in_subprocess(os.getpid) == os.getpid()
