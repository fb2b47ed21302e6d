# The engine stage of image: an image that was there already. Its Python with vLLM becomes
# known as /opt/venv, or the build ends with the reason why it does not fit.
ARG BASE_IMAGE=nvidia/vllm@sha256:0000000000000000000000000000000000000000000000000000000000000000
FROM ${BASE_IMAGE}
SHELL ["/bin/sh", "-c"]
USER 0
COPY adopt/ /opt/sparkdeploy/
RUN /bin/sh /opt/sparkdeploy/adopt.sh any cuda
ENV PATH=/opt/venv/bin:$PATH:/usr/local/bin:/usr/bin:/bin
WORKDIR /tmp
