"""Does the plugin fit the vLLM that is installed?"""
