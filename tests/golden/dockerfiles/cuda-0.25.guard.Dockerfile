# The guard stage of cuda-0.25: the container's first process and the API key's check. Nothing
# of it is known to vLLM, which stays as it is in sparkdeploy/mod:<fingerprint>.
FROM sparkdeploy/mod:<fingerprint> AS guard
LABEL dev.sparkdeploy.kind=leftover
COPY guard/ /guard/
RUN site=$(/opt/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
 && made=/made${site#/opt/venv} \
 && mkdir -p "$made" \
 && cp -R /guard/sparkdeploy_vllm "$made"

FROM sparkdeploy/mod:<fingerprint>
COPY --from=guard /made/ /opt/venv/
RUN PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python -I -m sparkdeploy_vllm.guard --help > /dev/null
WORKDIR /tmp
ENTRYPOINT ["/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.guard"]
