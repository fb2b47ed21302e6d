# The engine stage of cuda-0.19: vLLM 0.19.1 compiled for SM121a, torch from PyTorch's CUDA index.
# The wheel was compiled in a container of the stage below (compile.sh) and travels in network/.
FROM sparkdeploy/base:<fingerprint> AS environment
LABEL dev.sparkdeploy.kind=leftover
RUN python3 -c "import sys; found = '%d.%d' % sys.version_info[:2]; sys.exit(found != '3.12' and 'sparkdeploy-refused: the base has Python ' + found + ' and the lock is for 3.12')"
COPY network/ /network/
COPY lock/ /lock/
RUN . /network/environment \
 && python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /lock/uv.txt
RUN . /network/environment \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache $TORCH_SOURCE --requirement /lock/torch.txt
# Nothing may resolve torch again: with newer CUDA packages about, that ends at the CPU build.
RUN . /network/environment \
 && /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --no-deps \
      --only-binary :all: --require-hashes --requirement /lock/packages.txt \
 && /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --no-deps --no-index \
      --compile-bytecode /network/compiled/vllm-*.whl \
 && /opt/venv/bin/python -c "import torch, sys; sys.exit(not torch.version.cuda and 'sparkdeploy-refused: torch came as a CPU build')"
COPY inside/ /inside/
RUN /opt/venv/bin/python /inside/trim.py /opt/venv 121

FROM sparkdeploy/base:<fingerprint>
COPY --from=environment /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin
ENV CUDA_HOME=/usr/local/cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
