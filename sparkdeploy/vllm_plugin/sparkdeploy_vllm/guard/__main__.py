"""`python -m sparkdeploy_vllm.guard`."""

from sparkdeploy_vllm.guard import main

raise SystemExit(main())
