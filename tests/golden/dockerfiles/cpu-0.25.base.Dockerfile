# The base stage of cpu-0.25: a distribution and the packages that the engine needs.
# One flat layer, so that nothing of the network's settings stays in a layer or in the history.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE} AS packages
LABEL dev.sparkdeploy.kind=leftover
COPY network/ /network/
RUN . /network/environment \
 && apt-get update --quiet \
 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends \
      python3 \
      python3-venv \
      python3-dev \
      ca-certificates \
      g++ \
      libnuma1 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /network

FROM scratch
COPY --from=packages / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["/bin/sh"]
