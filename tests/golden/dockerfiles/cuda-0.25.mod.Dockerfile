# A mod stage of cuda-0.25: run-d55cc1d7d408. Its author's commands run here as root, once, and without
# a network. A mod that fails or leaves every file as it was ends the build.
FROM sparkdeploy/engine:<fingerprint>
USER 0
COPY mod/ /workspace/mods/run-d55cc1d7d408/
COPY apply/ /opt/sparkdeploy/
RUN WORKSPACE_DIR=/workspace /opt/venv/bin/python -I /opt/sparkdeploy/apply_mod.py run-d55cc1d7d408
WORKDIR /tmp
