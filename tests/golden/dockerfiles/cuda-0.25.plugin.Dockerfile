# The plugin stage of cuda-0.25: sparkdeploy's vLLM plugin, and proof that it fits this vLLM.
FROM sparkdeploy/engine:<fingerprint> AS plugin
LABEL dev.sparkdeploy.kind=leftover
COPY plugin/ /plugin/
RUN site=$(/opt/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
 && made=/made${site#/opt/venv} \
 && mkdir -p "$made" /made/bin \
 && cp -R /plugin/sparkdeploy_vllm "$made" \
 && cp -R /plugin/dist-info "$made/sparkdeploy_vllm-0.1.0.dist-info" \
 && printf '#!/opt/venv/bin/python -I\nfrom sparkdeploy_vllm.guard import main\nraise SystemExit(main())\n' > /made/bin/sparkdeploy-guard \
 && chmod 0755 /made/bin/sparkdeploy-guard

FROM sparkdeploy/engine:<fingerprint>
COPY --from=plugin /made/ /opt/venv/
RUN PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python -m sparkdeploy_vllm.check.selfcheck
WORKDIR /tmp
ENTRYPOINT ["/opt/venv/bin/sparkdeploy-guard"]
