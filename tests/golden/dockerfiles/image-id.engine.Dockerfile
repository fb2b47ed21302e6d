# The engine stage of image: an image that was there already. Its Python with vLLM becomes
# known as /opt/venv, or the build ends with the reason why it does not fit.
FROM sha256:1111111111111111111111111111111111111111111111111111111111111111
SHELL ["/bin/sh", "-c"]
USER 0
COPY adopt/ /opt/sparkdeploy/
RUN /bin/sh /opt/sparkdeploy/adopt.sh any cuda
ENV PATH=/opt/venv/bin:$PATH:/usr/local/bin:/usr/bin:/bin
WORKDIR /tmp
