"""The source tree of the `sparkdeploy-vllm` distribution; nothing here runs outside the image."""
