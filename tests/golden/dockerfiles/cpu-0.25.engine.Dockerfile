# The engine stage of cpu-0.25: vLLM 0.25.1 from wheels, as the lock says.
# Containers have a read-only root, so what Python compiles at import has to be here already:
# everything on CUDA engines; on a small CPU only what a server imports (104 MB of 361).
FROM sparkdeploy/base:<fingerprint> AS environment
LABEL dev.sparkdeploy.kind=leftover
RUN python3 -c "import sys; found = '%d.%d' % sys.version_info[:2]; sys.exit(found != '3.11' and 'sparkdeploy-refused: the base has Python ' + found + ' and the lock is for 3.11')"
COPY network/ /network/
COPY lock/ /lock/
RUN . /network/environment \
 && python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /lock/uv.txt
RUN . /network/environment \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --no-deps \
      --only-binary :all: --require-hashes --requirement /lock/packages.txt
RUN . /network/environment \
 && /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --no-deps \
      --only-binary :all: $TORCH_SOURCE --requirement /lock/torch.txt
COPY cpu_engine_fixups.py /lock/
RUN /opt/venv/bin/python /lock/cpu_engine_fixups.py \
 && /opt/venv/bin/python -c "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, vllm.model_executor.models.qwen3_5"

FROM sparkdeploy/base:<fingerprint>
COPY --from=environment /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
WORKDIR /tmp
